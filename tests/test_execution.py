import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cohorts import cohort, corpus, needs_bf16, needs_compiler

from triplu_ray import execution
from triplu_ray.execution import (
    CompiledLosses,
    abilities,
    compiled_graphs,
    compiled_losses,
    member_losses,
    missing_compiler,
    missing_units,
)
from triplu_ray.ffn import Product
from triplu_ray.model import Decoder, ModelShape, Precision
from triplu_ray.plan import Cohort
from triplu_ray.stacked import initialize
from triplu_ray.train import CohortTrainer


@pytest.fixture
def traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's part of compilation alone, without generated code: its counts and its limits."""

    def with_eager_backend(
        function: Callable[..., object], *, fullgraph: bool, dynamic: bool, options: object
    ) -> object:
        assert options is not None
        return compile_(function, backend="eager", fullgraph=fullgraph, dynamic=dynamic)

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", with_eager_backend)


def model(vocab_size: int = 11, gain: float = 5.0) -> Decoder:
    shape = ModelShape(
        vocab_size=vocab_size, context_length=4, d_model=8, num_layers=1, num_heads=2, hidden=6
    )
    decoder = Decoder([Product(degree=3, gain=gain)], shape)
    initialize(decoder, [1])
    return decoder


WINDOWS = torch.arange(10).view(1, 2, 5)


def test_what_a_precision_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_units(*units: str) -> None:
        capabilities = {"avx2": True, "avx512_bf16": False} | dict.fromkeys(units, True)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with_units()
    assert missing_units("fp32", "cpu") is None
    assert missing_units("tf32", "cpu") == "a GPU (resources.gpu)"
    assert missing_units("tf32", "cuda") == "a GPU"
    assert "bf16 units" in (missing_units("bf16", "cpu") or "")
    for unit in ("avx512_bf16", "amx_bf16"):
        with_units(unit)
        assert missing_units("bf16", "cpu") is None


@pytest.mark.parametrize("generation", [(7, 5), (8, 0), (9, 0)])
def test_gpus_before_ampere_have_neither(
    monkeypatch: pytest.MonkeyPatch, generation: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: generation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    precisions: tuple[Precision, ...] = ("bf16", "tf32")
    for precision in precisions:
        missing = missing_units(precision, "cuda")
        assert (missing is None) == (generation >= (8, 0))
        assert missing is None or ("Old GPU" in missing and precision in missing)


def test_abilities_name_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    can = abilities(["fp32", "tf32"], "cpu")
    assert can.missing_units == {"tf32": "a GPU (resources.gpu)"}
    assert can.gpu_bytes is None


def test_a_machine_without_a_compiler_is_told_so() -> None:
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert "C++ compiler" in (missing_compiler("cpu") or "")


@pytest.mark.usefixtures("traced_only")
def test_models_of_equal_shapes_share_one_graph_and_keep_their_own_weights_and_gains() -> None:
    losses, before = CompiledLosses("shared", "cpu"), compiled_graphs()
    for gain in (5.0, 7.0, 1.0):
        decoder = model(gain=gain)
        assert torch.equal(losses(decoder, WINDOWS), member_losses(decoder, WINDOWS))
    assert compiled_graphs() == before + 1


@pytest.mark.usefixtures("traced_only")
def test_more_shapes_than_the_recompile_limit_are_all_compiled() -> None:
    before, many = compiled_graphs(), torch._dynamo.config.recompile_limit + 3
    for vocab_size in range(11, 11 + many):
        losses = CompiledLosses(f"vocab {vocab_size}", "cpu")
        assert losses(model(vocab_size), WINDOWS).shape == (1,)
    assert compiled_graphs() == before + many


@pytest.mark.usefixtures("traced_only")
@pytest.mark.parametrize("windows", [WINDOWS[..., :4], WINDOWS.expand(1, 2, 5).int()])
def test_what_would_compile_again_raises(windows: torch.Tensor) -> None:
    losses = CompiledLosses("once", "cpu")
    losses(model(), WINDOWS)
    with pytest.raises(RuntimeError, match="recompile"):
        losses(model(), windows)


def test_what_was_not_compiled_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with pytest.raises(RuntimeError, match="expected one compiled graph, got 0"):
        CompiledLosses("left to the interpreter", "cpu")(model(), WINDOWS)


def test_a_variant_and_shape_have_one_function_in_a_process() -> None:
    assert compiled_losses("a", "cpu") is compiled_losses("a", "cpu")
    assert compiled_losses("a", "cpu") is not compiled_losses("b", "cpu")


def test_compiled_code_outlives_the_process() -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert Path(cache_dir()) == Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert not cache_dir().startswith("/tmp/torchinductor")


def trained(planned: Cohort, *, compiled: bool = False) -> CohortTrainer:
    trainer = CohortTrainer(planned, corpus(), compiled=compiled)
    for _ in range(20):
        trainer.train_step()
    trainer.synchronize()
    return trainer


def losses_of(trainer: CohortTrainer) -> list[float]:
    """The last validation loss of each member, and its mean training loss."""
    rows = trainer.evaluate()
    return [loss for row in rows for loss in (row.loss, row.train_loss or 0.0)]


@needs_bf16
@pytest.mark.parametrize("variant", ["swiglu", "triplu"])
def test_bf16_stays_near_fp32(tmp_path: Path, variant: str) -> None:
    """bf16 keeps 8 bits of a factor: relative errors of 2e-3 that average out over a batch."""
    fp32, bf16 = (
        losses_of(trained(cohort(tmp_path, variant=variant, precision=p, grid={"seed": [1, 2]})))
        for p in ("fp32", "bf16")
    )
    assert bf16 != fp32
    assert bf16 == pytest.approx(fp32, abs=2e-3)
    seeds_apart = abs(fp32[0] - fp32[2])
    assert max(abs(a - b) for a, b in zip(bf16, fp32, strict=True)) < seeds_apart


@needs_bf16
def test_weights_and_state_are_fp32_in_bf16(tmp_path: Path) -> None:
    trainer = trained(cohort(tmp_path, variant="triplu", precision="bf16", grid={"seed": [1]}))
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {t.dtype for t in trainer.optimizer.state().values()} == {torch.float32}
    seen: dict[str, torch.dtype] = {}
    for name, module in trainer.model.named_modules():
        module.register_forward_hook(lambda *call, name=name: seen.update({name: call[2].dtype}))
    member_losses(trainer.model, torch.zeros(1, 1, 17, dtype=torch.int64))
    residual = {name for name in seen if name in ("embedding", "blocks.0")}
    assert {seen[name] for name in residual} == {torch.float32}
    inside = {name for name in seen if "qkv" in name or "streams" in name or "norm" in name}
    assert {seen[name] for name in inside} == {torch.bfloat16}


@needs_bf16
def test_a_bf16_member_of_four_is_bit_equal_to_the_same_run_alone(tmp_path: Path) -> None:
    """Eager products and reductions run member by member; only compiled code differs."""
    grid = {"seed": [1, 2], "learning_rate": [1e-3, 1e-2]}
    four = cohort(tmp_path, variant="triplu", precision="bf16", grid=grid)
    together = trained(four)
    for index, run in enumerate(four.runs):
        alone = trained(Cohort((run,)))
        assert torch.equal(together.optimizer.values[index], alone.optimizer.values[0])


@needs_compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(
    ("precision", "seeds", "tolerance"),
    [
        # Fused kernels sum in another order, and fp32 keeps 24 bits.
        ("fp32", [1], 1e-5),
        # bf16 rounds what eager code stores between two operations and fused code does not.
        pytest.param("bf16", [1], 1e-3, marks=needs_bf16),
        pytest.param("bf16", [1, 2, 3, 4], 1e-3, marks=needs_bf16),
        pytest.param("fp32", [1, 2, 3, 4], 1e-5, marks=pytest.mark.slow),
    ],
)
def test_compiled_equals_eager(
    tmp_path: Path, precision: Precision, seeds: list[int], tolerance: float
) -> None:
    planned = cohort(tmp_path, variant="triplu", precision=precision, grid={"seed": seeds})
    compiled = trained(planned, compiled=True)
    graphs = compiled_graphs()
    again = trained(
        cohort(tmp_path, variant="triplu", precision=precision, grid={"seed": [9, *seeds[1:]]}),
        compiled=True,
    )
    assert compiled_graphs() == graphs, "a second cohort shares the compiled code"
    assert losses_of(compiled) == pytest.approx(losses_of(trained(planned)), abs=tolerance)
    assert losses_of(again)[0] != losses_of(compiled)[0]


def test_tf32_is_asked_of_torch_and_taken_back() -> None:
    execution.set_matmul_precision("tf32")
    assert torch.get_float32_matmul_precision() == "high"
    for precision in ("bf16", "fp32"):
        execution.set_matmul_precision(precision)
        assert torch.get_float32_matmul_precision() == "highest"
