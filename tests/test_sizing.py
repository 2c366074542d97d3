import math
import os
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triplu_ray.config import RunConfig
from triplu_ray.ffn import GatedLinearUnit, PolyGlu, SquaredRelu
from triplu_ray.sizing import (
    GPU_MEMORY_SHARE,
    Machine,
    cohort_size,
    compile_seconds,
    compiling_pays,
    machine_here,
    member_bytes,
    micro_batches,
)
from triplu_ray.space import Resources

SWIGLU = GatedLinearUnit(kind="swiglu")
GIB = 1 << 30


def config(**changes: object) -> RunConfig:
    return RunConfig.model_validate({"ffn": SWIGLU, "hidden": 322, **changes})


def bytes_of(run: RunConfig) -> int:
    return member_bytes(run, run.shape(79), run.ffn)


def test_on_a_cpu_a_cohort_is_one_run() -> None:
    assert cohort_size(config(), 79, 1000, Machine(workers=2)) == 1


def test_on_a_gpu_it_grows_until_the_kernels_are_long_enough() -> None:
    # 32 x 64 positions of width 96: 196,608 elements a member, 82 of which make 16 million.
    assert cohort_size(config(), 79, 1000, Machine(1, 100 * GIB)) == 82
    # 32 x 128 of width 256: 1,048,576, and 16 of them.
    large = config(d_model=256, num_heads=4, context_length=128, num_layers=8, hidden=768)
    assert cohort_size(large, 512, 1000, Machine(1, 100 * GIB)) == 16


def test_memory_bounds_it() -> None:
    one = bytes_of(config())
    room = int(7.5 * one / GPU_MEMORY_SHARE)
    assert cohort_size(config(), 79, 1000, Machine(1, room)) == 7
    assert cohort_size(config(), 79, 1000, Machine(1, one // 2)) == 1


def test_few_runs_are_shared_among_the_gpus() -> None:
    for workers, expected in ((1, 12), (2, 6), (4, 3), (8, 2), (12, 1), (100, 1)):
        assert cohort_size(config(), 79, 12, Machine(workers, 100 * GIB)) == expected


@given(num_runs=st.integers(1, 5000), workers=st.integers(1, 64), memory=st.integers(1, 200 * GIB))
def test_no_gpu_is_idle_for_the_sake_of_a_fuller_cohort(
    num_runs: int, workers: int, memory: int
) -> None:
    size = cohort_size(config(), 79, num_runs, Machine(workers, memory))
    assert size >= 1
    assert -(-num_runs // size) >= min(workers, num_runs) // 2
    assert size == 1 or size * bytes_of(config()) <= memory


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine_here(Resources()) == Machine(8)
    assert machine_here(Resources(cpu=3.0)) == Machine(2)
    assert machine_here(Resources(cpu=16.0)) == Machine(1)
    assert machine_here(Resources(gpu=1.0)) == Machine(1, 24 * GIB)
    assert machine_here(Resources(gpu=0.25)) == Machine(4, 6 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    properties = SimpleNamespace(total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert machine_here(Resources()) == Machine(4, 80 * GIB)
    assert machine_here(Resources(gpu=0.0)) == Machine(8)
    assert machine_here(Resources(gpu=1.0)) == Machine(4, 80 * GIB)
    assert machine_here(Resources(cpu=4.0, gpu=1.0)) == Machine(2, 80 * GIB)


def test_members_memory_by_hand() -> None:
    """One layer of width 2, one head, context 2, one sequence, SwiGLU of width 3, V = 5."""
    tiny = config(d_model=2, num_heads=1, context_length=2, batch_size=1, num_layers=1, hidden=3)
    params = tiny.shape(5).num_params(SWIGLU)
    state = 6 * 4 * params
    # Elements a position: residual and norms 12, attention 16 + 6, branch 2 x 3 x 3, logits 15.
    assert member_bytes(tiny, tiny.shape(5), SWIGLU) == state + 4 * 2 * (12 + 22 + 18 + 15)


def test_a_batch_is_cut_until_one_member_fits() -> None:
    run = config(batch_size=12)
    divisors = [1, 2, 3, 4, 6, 12]
    for parts, more in zip(divisors, [*divisors[1:], 12], strict=True):
        needed = member_bytes(run, run.shape(79), SWIGLU, parts) / GPU_MEMORY_SHARE
        assert micro_batches(run, 79, math.ceil(needed)) == parts
        assert micro_batches(run, 79, math.floor(needed) - 1) == more
    assert micro_batches(run, 79, None) == 1


def test_noise_that_is_drawn_for_a_batch_keeps_it_whole() -> None:
    assert micro_batches(config(ffn=PolyGlu()), 79, 1) == 1


def test_the_untied_sources_batch_fits_a_gpu_in_parts() -> None:
    """Logits of 524,288 positions over 50,257 tokens are 98 GiB in fp32 alone."""
    sizes = {"d_model": 768, "num_layers": 12, "num_heads": 6, "hidden": 3072}
    run = config(ffn=SquaredRelu(), context_length=1024, batch_size=512, **sizes)
    assert member_bytes(run, run.shape(50_257), run.ffn) > 3 * 98 * GIB
    assert micro_batches(run, 50_257, 80 * GIB) == 32


def test_compiling_pays_when_it_saves_more_than_it_costs() -> None:
    cost = compile_seconds(2)
    assert cost == 23.0
    # fp32 saves a tenth at 8e10 FLOP/s, shared by the workers, each of which compiles.
    break_even = cost / 0.1 * 8e10
    assert not compiling_pays("fp32", 2, 0.99 * break_even, Machine())
    assert compiling_pays("fp32", 2, 1.01 * break_even, Machine())
    assert not compiling_pays("fp32", 2, 1.01 * break_even, Machine(workers=2))
    assert compiling_pays("bf16", 2, 0.99 * break_even, Machine())


@pytest.mark.parametrize(("precision", "pays"), [("fp32", True), ("bf16", True)])
def test_the_papers_main_comparison_is_worth_compiling(precision: str, pays: bool) -> None:
    run = config(precision=precision)
    flops = 3 * 3 * run.shape(79).flops_per_token(SWIGLU) * run.num_steps * run.tokens_per_step
    assert compiling_pays(run.precision, run.num_layers, flops, Machine(workers=2)) is pays
