"""The Ray that a sweep runs on: what becomes of one that does not start, or has no nodes yet."""

import io

import pytest
import ray
from rich.console import Console

from triplu_ray.errors import UserError
from triplu_ray.raytune import cluster
from triplu_ray.space import Granted, Resources


@pytest.mark.parametrize(
    "error",
    [Exception("The current node timed out during startup.\nMore."), ConnectionError(), OSError(5)],
)
def test_a_ray_that_does_not_start_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_options: object) -> None:
        raise error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError) as caught, cluster.running_ray("space.yaml", Granted(1)):
        pass
    what = str(error).splitlines()[0] if str(error) else type(error).__name__
    assert str(caught.value) == f"Ray did not start: {what}"


def test_the_first_node_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{}, {"memory": 1e9}, {"CPU": 4.0, "GPU": 1.0}])
    monkeypatch.setattr(ray, "cluster_resources", lambda: next(looks))
    monkeypatch.setattr("time.sleep", lambda _: None)
    console = Console(file=io.StringIO())
    assert cluster.granted_there("space.yaml", Resources(), console) == Granted(1, 1)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "waits up to 60 s for a node that could train\n"


def test_no_node_is_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(cluster, "JOINING_SECONDS", 0.0)
    console = Console(quiet=True)
    with pytest.raises(UserError, match=r"space.yaml: resources.gpu: auto: the cluster has no"):
        cluster.granted_there("space.yaml", Resources(), console)
    assert cluster.granted_there("space.yaml", Resources(gpu=2), console) == Granted(1, 2)
