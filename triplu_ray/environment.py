"""The environment of worker processes, and what a cluster's Ray is started without."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any


def worker_environment() -> dict[str, str]:
    """What a worker is started with: how it allocates memory.

    Activations of a few megabytes are allocated anew each step; left to itself, glibc hands them
    back to the system and every step pays for the page faults. jemalloc with huge pages, a copy of
    which Ray brings along, is best; where its path does not exist, the loader goes on without it
    and glibc is told to keep what it has.
    """
    environment = {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
        "MALLOC_TOP_PAD_": str(1 << 26),
    }
    ray = find_spec("ray")
    library = Path(ray.origin).parent / "core" / "libjemalloc.so" if ray and ray.origin else None
    if library and library.exists():
        environment |= {
            "LD_PRELOAD": str(library),
            "MALLOC_CONF": "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1",
        }
    return environment


def without_ray_client(parameters: Any, _head: bool) -> None:
    """A hook of `ray start`, named by RAY_START_HOOK: Ray's client gets no server.

    Sweeps run on the head, as jobs, and never come in through it; left alone, `ray start` opens its
    port on all of the head's addresses.
    """
    parameters.ray_client_server_port = None
