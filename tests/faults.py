"""Faults for real sweeps: code that is injected into their processes, and a bucket that fails."""

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.fs as pafs
import pytest

_SITE = '''
import importlib.abc, importlib.machinery, sys

PATCHES = {patches!r}

class Finder(importlib.abc.MetaPathFinder):
    """Runs a patch in a module's own namespace once the module is loaded."""

    def find_spec(self, name, path, target=None):
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            exec(PATCHES[name], module.__dict__)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
'''


def injected(folder: Path, **patches: str) -> dict[str, str]:
    """Variables of processes in which code runs after `triplu_ray.<module>` is imported.

    Keys name modules with `__` for a dot. The sources on disk, which nodes compare, stay as they
    are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    modules = {f"triplu_ray.{name.replace('__', '.')}": code for name, code in patches.items()}
    (folder / "sitecustomize.py").write_text(_SITE.format(patches=modules))
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def slow_while_there(file: Path) -> str:
    """For `train`: a step takes its time while a file is there, so that things happen in between.

    What takes its time asks for no core; without the file, all goes on at full speed.
    """
    file.touch()
    return f"""
_train_step = CohortTrainer.train_step

def train_step(self):
    import os, time
    if os.path.exists({str(file)!r}):
        time.sleep(0.1)
    _train_step(self)

CohortTrainer.train_step = train_step
"""


_COUNTING = """
_write_runs = CohortTrainable._write_runs

def write_runs(self, cohort, trainer):
    def note(word):
        with open({path!r}, "a") as file:
            file.writelines(f"{{word}} {{run.run_id}}\\n" for run in cohort.runs)

    note("begins")
    _write_runs(self, cohort, trainer)
    note("ends")

CohortTrainable._write_runs = write_runs
"""


@dataclass(frozen=True)
class Trainings:
    """Runs that were trained to the end, as the workers themselves note it."""

    file: Path

    @property
    def patch(self) -> str:
        """For `raytune__trainable`."""
        return _COUNTING.format(path=str(self.file))

    def begun(self) -> Counter[str]:
        """How often each run began to be written."""
        return self._noted("begins")

    def ended(self) -> Counter[str]:
        """How often each run was wholly written; what is killed meanwhile has to be trained on."""
        return self._noted("ends")

    def _noted(self, word: str) -> Counter[str]:
        lines = map(str.split, self.file.read_text().splitlines())
        return Counter(run_id for noted, run_id in lines if noted == word)


class Bucket:
    """A bucket on loopback, and what goes wrong with it next: `status` 0 only takes its time."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._faults: list[tuple[str, int, str, float]] = []

    def fail(
        self, times: int, methods: str, status: int, code: str = "", seconds: float = 0.0
    ) -> None:
        """Let the next requests of some methods fail, each after some seconds."""
        self._faults += [(methods, status, code, seconds)] * times

    @property
    def faults_left(self) -> int:
        """Of those that are still to come."""
        return len(self._faults)

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()

    def serve(
        self, application: Any, environment: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        if self._faults and environment["REQUEST_METHOD"] in self._faults[0][0].split():
            _, status, code, seconds = self._faults.pop(0)
            if seconds:
                time.sleep(seconds)
            if status:
                body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
                start(f"{status} injected", [("Content-Length", str(len(body)))])
                return [body]
        answer: Iterable[bytes] = application(environment, start)
        return answer


def serve_bucket(monkeypatch: pytest.MonkeyPatch) -> tuple[Bucket, Any]:
    """An empty bucket of moto's, and the server to shut down; skips without moto."""
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    quiet = type("Quiet", (WSGIRequestHandler,), {"log": lambda *_, **__: None})
    for name, value in (
        ("ACCESS_KEY_ID", "x"),
        ("SECRET_ACCESS_KEY", "x"),
        ("REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    application = DomainDispatcherApplication(create_backend_app)
    made: list[Bucket] = []
    server = make_server(
        "127.0.0.1",
        0,
        lambda environment, start: made[0].serve(application, environment, start),
        threaded=True,
        request_handler=quiet,
    )
    options = f"scheme=http&endpoint_override=127.0.0.1:{server.port}&region=us-east-1"
    name = f"results-{uuid.uuid4().hex}"  # moto's buckets outlive its server
    made.append(Bucket(f"s3://{name}/sweeps?{options}"))
    Thread(target=server.serve_forever, daemon=True).start()
    system, _ = pafs.FileSystem.from_uri(f"s3://{name}?{options}&allow_bucket_creation=true")
    system.create_dir(name)
    return made[0], server
