"""The script that hands a cloud's notice on to Ray: against metadata on loopback, with no Ray."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

CLUSTERS = Path(__file__).parents[1] / "clusters"
SCRIPT = CLUSTERS / "spot_notice.sh"

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


class Metadata(HTTPServer):
    """What AWS and Google Cloud let a machine ask about itself."""

    is_noticed = False
    asked = 0


class Answer(BaseHTTPRequestHandler):
    server: Metadata

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        is_right = self.path == "/latest/api/token"
        is_right &= "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self._answer(200 if is_right else 400, "a-token")

    def do_GET(self) -> None:
        self.server.asked += 1
        noticed = self.server.is_noticed
        if self.path == "/latest/meta-data/spot/instance-action":
            is_known = self.headers.get("X-aws-ec2-metadata-token") == "a-token"
            self._answer((200 if noticed else 404) if is_known else 401, '{"action": "terminate"}')
        elif self.path == "/computeMetadata/v1/instance/preempted":
            is_known = self.headers.get("Metadata-Flavor") == "Google"
            self._answer(200 if is_known else 403, "TRUE" if noticed else "FALSE")
        else:
            self._answer(404, "")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_ray_is_told_once_there_is_a_notice(metadata: Metadata, tmp_path: Path, cloud: str) -> None:
    told = tmp_path / "told"
    for name, content in {"ray": f'echo "$@" >{told}', "sleep": "exec /bin/sleep 0.1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{content}\n")
        (tmp_path / name).chmod(0o755)
    address = f"http://127.0.0.1:{metadata.server_port}"
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRIPLU_RAY_METADATA": address}
    with subprocess.Popen(["bash", SCRIPT, cloud], env=variables) as process:
        try:
            while metadata.asked < 3:
                time.sleep(0.01)
            assert process.poll() is None
            assert not told.exists()
            metadata.is_noticed = True
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    assert told.read_text().startswith("drain-node --reason DRAIN_NODE_REASON_PREEMPTION ")


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_every_worker_starts_it(cloud: str) -> None:
    """And goes on: it leaves the shell that started it."""
    cluster = yaml.safe_load((CLUSTERS / f"{cloud}.yaml").read_text())
    start = (
        f"setsid --fork bash ~/triplu-ray/clusters/spot_notice.sh {cloud} </dev/null &>/dev/null"
    )
    assert cluster["worker_start_ray_commands"][-1] == start
    assert not any("spot_notice" in line for line in cluster["head_start_ray_commands"])


def test_the_script_is_clean() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", SCRIPT], check=True)
