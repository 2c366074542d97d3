"""How a step is carried out: precision, device, compilation. Provenance of a run, not its identity.

M members, B batch, T time, V vocabulary
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType

import torch
from torch import Tensor

from triplu_ray.model import Decoder, Precision
from triplu_ray.stacked import cross_entropy

# Compiled code is found by other processes, and tomorrow; the default, in /tmp, would not last.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_CACHE / "triplu_ray" / "inductor"))

Losses = Callable[[Decoder, Tensor], Tensor]


def member_losses(model: Decoder, windows: Tensor) -> Tensor:
    """Mean next-token loss of each member `[M]`, nats, on windows `[M, B, T + 1]`."""
    return cross_entropy(model(windows[..., :-1]), windows[..., 1:].flatten(1))


def missing_units(precision: Precision, device: str) -> str | None:
    """What this machine lacks to compute in a precision at speed; None if nothing."""
    if precision == "fp32":
        return None
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            return "a GPU"
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return None
        return f"a GPU with {precision} units (this is a {torch.cuda.get_device_name(device)})"
    if precision == "tf32":
        return "a GPU (resources.gpu)"
    return None if _cpu_has_bf16_units() else "a CPU with bf16 units (AVX512-BF16, AMX or Arm's)"


def _cpu_has_bf16_units() -> bool:
    if hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return any(present for unit, present in capabilities.items() if unit.endswith("bf16"))
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # before torch 2.11


def missing_compiler(device: str) -> str | None:
    """Why nothing can be compiled for a device here; None if it can."""
    if device.startswith("cuda"):
        return None if find_spec("triton") else "the package triton"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler (g++, clang++, or what CXX names)"
    return None


@dataclass(frozen=True)
class Abilities:
    """What a worker's machine can do."""

    missing_units: Mapping[Precision, str]
    missing_compiler: str | None
    gpu_bytes: int | None


def abilities(precisions: Iterable[Precision], device: str) -> Abilities:
    """Of the process that asks."""
    missing = {precision: missing_units(precision, device) for precision in precisions}
    on_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return Abilities(
        {precision: units for precision, units in missing.items() if units},
        missing_compiler(device),
        torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
    )


def set_matmul_precision(precision: Precision) -> None:
    """Let fp32 products on a GPU use TF32 units, or not; of the whole process."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


class CompiledLosses:
    """`member_losses`, compiled for one variant and its shapes.

    Weights, gains and windows are its inputs: members, cohorts and seeds share it. It is compiled
    once; what would compile it again, or leave it to the interpreter, raises RuntimeError.
    """

    def __init__(self, name: str, device: str) -> None:
        # Dynamo counts compilations by code object, and gives up in silence after eight.
        code = member_losses.__code__.replace(co_name=f"losses_{name}")
        function = FunctionType(code, member_losses.__globals__)
        self._compiled: Losses = torch.compile(
            function,
            fullgraph=True,
            dynamic=False,
            options={} if device.startswith("cuda") else {"cpp_wrapper": True},
        )
        self._ready = False

    def __call__(self, model: Decoder, windows: Tensor) -> Tensor:
        """See `member_losses`."""
        if self._ready:
            with torch.compiler.set_stance("fail_on_recompile"):
                return self._compiled(model, windows)
        before = compiled_graphs()
        losses = self._compiled(model, windows)
        if compiled_graphs() != before + 1:
            raise RuntimeError(f"expected one compiled graph, got {compiled_graphs() - before}")
        self._ready = True
        return losses


def compiled_graphs() -> int:
    """How many graphs this process has compiled so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


_compiled_losses: dict[tuple[str, str], CompiledLosses] = {}


def compiled_losses(name: str, device: str) -> CompiledLosses:
    """The compiled function of a variant and its shapes, `name` being a hash of both."""
    if (name, device) not in _compiled_losses:
        _compiled_losses[name, device] = CompiledLosses(name, device)
    return _compiled_losses[name, device]


def captured(function: Callable[[], object], state: Sequence[Tensor]) -> Callable[[], None]:
    """The function as one CUDA graph: a single launch for all its kernels.

    It must read and write tensors that stay where they are. `state` is what it changes; the trial
    runs before the capture leave it as it was.
    """
    saved = [tensor.clone() for tensor in state]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    for tensor, before in zip(state, saved, strict=True):
        tensor.copy_(before)
    return graph.replay
