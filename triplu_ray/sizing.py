"""What follows from a plan's sizes before it runs: cohorts, micro-batches, whether to compile.

All figures here steer the execution alone; no result depends on them.
"""

import math
import os
from dataclasses import dataclass

import torch

from triplu_ray.config import RunConfig
from triplu_ray.ffn import FeedForwardConfig
from triplu_ray.model import ModelShape, Precision
from triplu_ray.space import Granted, Resources


@dataclass(frozen=True)
class Machine:
    """What a sweep's workers are; the default is one on a CPU."""

    workers: int = 1
    gpu_bytes: int | None = None
    """Memory granted to a worker on its GPU; None on a CPU."""


ASSUMED_GPU_BYTES = 24 * (1 << 30)
"""Where a plan for GPUs is made on a machine without one."""

EAGER_FLOPS_PER_SECOND: dict[str, float] = {"fp32": 8e10, "bf16": 1.5e11, "tf32": 8e10}
"""Of one core of a recent server, measured; tf32, a GPU's, is assumed to be no slower than fp32."""

SAVED_BY_COMPILING: dict[str, float] = {"fp32": 0.1, "bf16": 0.33, "tf32": 0.1}
"""Share of an eager step's time, measured on a CPU; that of tf32 is assumed."""

GPU_ELEMENTS = 16_000_000
"""Elements of the residual stream of all members from which on a large GPU's kernels last ten
times as long as its gaps between them, so that more members add little: estimated from memory
bandwidth, not measured."""

GPU_MEMORY_SHARE = 0.8
"""Of a worker's GPU memory that a cohort may fill."""


def granted_here(resources: Resources) -> Granted:
    """What a cohort gets of this machine."""
    return resources.granted(gpus=torch.cuda.is_available())


def machine_here(resources: Resources) -> Machine:
    """This machine, as cohorts that are granted `resources` see it."""
    cpu, gpu = granted_here(resources)
    cores = int((os.cpu_count() or 1) / cpu)
    if not gpu:
        return Machine(max(1, cores))
    gpus, gpu_bytes = 1, ASSUMED_GPU_BYTES
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        gpu_bytes = torch.cuda.get_device_properties(0).total_memory
    workers = max(1, min(cores, int(gpus / gpu)))
    return Machine(workers, int(min(1.0, gpu) * gpu_bytes))


def compile_seconds(num_layers: int) -> float:
    """Of one variant in one process with an empty cache, measured on one core."""
    return 5.0 + 9.0 * num_layers


def compiling_pays(
    precision: Precision, num_layers: int, training_flops: float, machine: Machine
) -> bool:
    """Whether the steps planned for one variant and its shapes save more than compiling costs.

    Every worker compiles for itself: at a first start they all find the cache empty.
    """
    eager = training_flops / EAGER_FLOPS_PER_SECOND[precision] / machine.workers
    return eager * SAVED_BY_COMPILING[precision] > compile_seconds(num_layers)


def cohort_size(config: RunConfig, vocab_size: int, num_runs: int, machine: Machine) -> int:
    """How many members to train as one, of `num_runs` runs in the whole plan.

    On a CPU one: stacking gains nothing there. On a GPU as many as its memory holds and its speed
    still grows with, but no more than leaves every worker a cohort.
    """
    if machine.gpu_bytes is None:
        return 1
    shape = config.shape(vocab_size)
    fitting = int(GPU_MEMORY_SHARE * machine.gpu_bytes / member_bytes(config, shape, config.ffn))
    useful = math.ceil(GPU_ELEMENTS / (config.tokens_per_step * config.d_model))
    shared = math.ceil(num_runs / machine.workers)
    return max(1, min(fitting, useful, shared))


def micro_batches(config: RunConfig, vocab_size: int, gpu_bytes: int | None) -> int:
    """In how many parts to work on a batch, so that a GPU holds what one member needs of it.

    The fewest that fit, or sequence by sequence if none does; 1 on a CPU, and for layers whose
    noise is drawn for a batch as a whole.
    """
    if gpu_bytes is None or config.ffn.draws_noise:
        return 1
    shape, room = config.shape(vocab_size), GPU_MEMORY_SHARE * gpu_bytes
    parts = divisors(config.batch_size)
    fitting = (n for n in parts if member_bytes(config, shape, config.ffn, n) <= room)
    return next(fitting, parts[-1])


def divisors(number: int) -> list[int]:
    """Of a positive number, rising."""
    return [n for n in range(1, number + 1) if number % n == 0]


def member_bytes(
    config: RunConfig, shape: ModelShape, ffn: FeedForwardConfig, micro_batches: int = 1
) -> int:
    """Memory of one member in training: state, and what the backward pass needs of the forward.

    State is six fp32 values a parameter: itself, its gradient twice (as computed, and in the
    optimizer's buffer), two moments, its best value.
    """
    state = 6 * 4 * shape.num_params(ffn)
    attention = 8 * shape.d_model + 3 * shape.num_heads * shape.context_length
    branch = 2 * (ffn.num_streams + 1) * shape.hidden
    per_position = shape.num_layers * (6 * shape.d_model + attention + branch)
    logits = 3 * shape.vocab_size
    positions = config.tokens_per_step // micro_batches
    return state + 4 * positions * (per_position + logits)
