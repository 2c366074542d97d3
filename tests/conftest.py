"""What all tests share: timing is not judged here, and one thread leaves the cores to workers."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
# Fixed examples: a failure on one machine is the same failure on every other.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
