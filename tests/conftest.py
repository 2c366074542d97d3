"""What all tests share: timing is not judged here, and one thread leaves the cores to workers."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cohorts import write_space
from commands import Command
from hypothesis import settings
from sweeps import LONG, run

from triplu_ray import cli
from triplu_ray.store import Store

torch.set_num_threads(1)
# Ray's workers are nicer than whatever else runs here, which looks as if they hung.
os.environ.setdefault("RAY_worker_niceness", "0")
# Fixed examples: a failure on one machine is the same failure on every other.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def every_lease_is_given_back() -> Iterator[None]:
    """A thread that still renews one would write into the tests that follow."""
    before = threading.enumerate()
    yield
    started = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in started if name.startswith("lease ")] == []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one, a folder of the test's own."""
    return Store(str(tmp_path / "store"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A space of four runs, and the store of its sweep, to which nothing happened."""
    folder = tmp_path_factory.mktemp("undisturbed")
    space, store = write_space(folder, **LONG), folder / "store"
    code, _, stderr = run(space, store)
    assert code == 0, stderr
    return space, store


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`triplu-ray ...` in an empty folder: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for variable in ("TRIPLU_RAY_STORE", "TRIPLU_RAY_DATA"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run
