"""What all tests share: timing is not judged here, and one thread leaves the cores to workers."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from triplu_ray.store import Store

torch.set_num_threads(1)
# Fixed examples: a failure on one machine is the same failure on every other.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one, a folder of the test's own."""
    return Store(str(tmp_path / "store"))
