"""Where a result comes from: code, libraries, machine, memory, start-up."""

import hashlib
import importlib.metadata
import platform
import resource
import subprocess
import time
from functools import cache
from pathlib import Path

import psutil

from triplu_ray import __version__

_LIBRARIES = ("numpy", "pyarrow", "ray", "torch")

_READERS = {
    *("bench", "cli.py", "commands.py", "compare.py", "gpu_check", "listings.py", "output.py"),
    *("report", "status.py"),
}
"""What only reads results, or only runs elsewhere."""


def git_sha() -> str | None:
    """The checkout's commit, with `+` if files differ from it; None for an installed package."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        commit, changes = (
            subprocess.run(
                ["git", *arguments],
                cwd=root,
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "triplu_ray"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + "+" * bool(changes)


@cache
def versions() -> dict[str, str]:
    """Of the project, Python and the libraries that results depend on; every run is told them."""
    libraries = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"triplu_ray": __version__, "python": platform.python_version(), **libraries}


@cache
def code() -> dict[str, str]:
    """What must be the same in all processes of a sweep, or their results do not compare.

    Of the sources, those that training runs, as they were when first asked for; the builds of torch
    may differ, for CPU and for GPU.
    """
    sources, package = hashlib.sha256(), Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in _READERS:
            sources.update(f"{name}".encode() + path.read_bytes())
    return {
        **{name: version.partition("+")[0] for name, version in versions().items()},
        "sources of triplu_ray": sources.hexdigest()[:12],
    }


def hardware(
    device: str, num_threads: int, members: int, *, compiled: bool, micro_batches: int = 1
) -> str:
    """What a cohort ran on, and how, in a few words."""
    mode = "compiled" if compiled else "eager"
    parts = f", batch in {micro_batches} parts" if micro_batches > 1 else ""
    return f"{place(device, num_threads)}, cohort of {members}{parts}, {mode}"


def place(device: str, num_threads: int) -> str:
    """The device, and on a CPU the threads."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {num_threads} thread{'s' * (num_threads != 1)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def process_age() -> float:
    """Seconds since this process started."""
    return time.time() - psutil.Process().create_time()


def peak_memory_mib() -> float:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if platform.system() == "Darwin" else 1 << 10)
