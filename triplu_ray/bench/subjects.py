"""What is measured: models, ways of training them, and the matrix products of a step."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from triplu_ray.config import RunConfig, resolve_ffn
from triplu_ray.ffn import FeedForwardConfig
from triplu_ray.listings import variant_rows
from triplu_ray.model import ModelShape, Precision
from triplu_ray.plan import Plan
from triplu_ray.sizing import EAGER_FLOPS_PER_SECOND

TURN_SECONDS, MAX_TURN_STEPS = 0.5, 20
"""About how long the plain loop's turn takes; steps of tiny models take longer than FLOPs say."""


@dataclass(frozen=True)
class Subject:
    """A model to measure: one variant in one shape."""

    name: str
    config: RunConfig
    vocab_size: int

    @staticmethod
    def of_plan(plan: Plan) -> "list[Subject]":
        """The models of a plan's runs, each once; sizes that differ are part of their names."""
        models: dict[str, tuple[RunConfig, int]] = {}
        for run in (*plan.runs, *plan.stand_ins):
            config = run.config.model_copy(update={"precision": "fp32"})
            model = (config, run.corpus.vocab_size)
            models.setdefault(config.code_key(run.corpus.vocab_size, 1), model)
        sizes = [
            {
                "heads": config.num_heads,
                "context": config.context_length,
                "batch": config.batch_size,
                "vocabulary": vocab_size,
            }
            for config, vocab_size in models.values()
        ]
        varied = [key for key in sizes[0] if len({size[key] for size in sizes}) > 1]
        return [
            Subject(
                ", ".join([_model_name(config), *(f"{key} {size[key]}" for key in varied)]), *model
            )
            for model, size in zip(models.values(), sizes, strict=True)
            for config in [model[0]]
        ]

    @property
    def shape(self) -> ModelShape:
        """Its sizes."""
        return self.config.shape(self.vocab_size)

    @property
    def turn_steps(self) -> int:
        """Steps of one turn."""
        flops = 3 * self.shape.flops_per_token(self.config.ffn) * self.config.tokens_per_step
        steps = round(TURN_SECONDS * EAGER_FLOPS_PER_SECOND["fp32"] / flops)
        return min(max(1, steps), MAX_TURN_STEPS)


def _model_name(config: RunConfig) -> str:
    return f"{config.ffn.label} {config.hidden}, L{config.num_layers} d{config.d_model}"


def papers_models() -> list[Subject]:
    """TriPLU's character setting and its subword model, each with SwiGLU and TriPLU."""
    settings: list[tuple[dict[str, int], dict[str, Any]]] = [
        ({"swiglu": 322, "triplu": 242}, {}),
        (
            {"swiglu": 768, "triplu": 576},
            {"d_model": 256, "num_layers": 8, "num_heads": 4, "context_length": 128},
        ),
    ]
    subjects = []
    for (widths, sizes), vocab_size in zip(settings, (79, 512), strict=True):
        for variant, hidden in widths.items():
            ffn = resolve_ffn(variant, {}, "")
            config = RunConfig.model_validate({"ffn": ffn, "hidden": hidden, **sizes})
            subjects.append(Subject(_model_name(config), config, vocab_size))
    return subjects


def every_variant() -> list[Subject]:
    """Every variant in TriPLU's character setting at the width that matches SwiGLU, which leads."""
    baseline, *_ = papers_models()
    subjects = {baseline.config.ffn.label: baseline}
    for row in variant_rows([baseline.config.d_model]):
        ffn = resolve_ffn(row["variant"], {}, "")
        config = baseline.config.model_copy(update={"ffn": ffn, "hidden": row["hidden"]})
        subject = Subject(_model_name(config), config, baseline.vocab_size)
        subjects.setdefault(ffn.label, subject)
    return list(subjects.values())


@dataclass(frozen=True)
class Mode:
    """A way of training it; the plain loop if `plain`."""

    precision: Precision = "fp32"
    compiled: bool = False
    members: int = 1
    plain: bool = False

    @property
    def name(self) -> str:
        """Words for tables."""
        if self.plain:
            return "plain loop"
        cohort = f", cohort of {self.members}" if self.members > 1 else ""
        return f"{self.precision} {'compiled' if self.compiled else 'eager'}{cohort}"


PLAIN = Mode(plain=True)


def modes_for(
    precisions: Iterable[Precision], cohorts: Iterable[int], *, compiling: bool
) -> list[Mode]:
    """What is compared with the plain loop: each precision, eager and compiled, as a cohort of one.

    The last of them, which is the fastest, comes in the other cohort sizes too.
    """
    single = [
        Mode(precision, compiled)
        for precision in precisions
        for compiled in ((False, True) if compiling else (False,))
    ]
    sizes = sorted({size for size in cohorts if size > 1})
    return single + [replace(single[-1], members=size) for size in sizes]


Size = tuple[int, int, int, int]
"""Of a matrix product: how many at once, rows, inner size, columns."""


def products(shape: ModelShape, ffn: FeedForwardConfig, batch_size: int) -> list[Size]:
    """The matrix products of one training step.

    Every product of the forward pass has two of the same size behind it: the gradients of its
    factors. A multiply-add counting 2, they are three times `ModelShape.flops_per_token`.
    """
    positions, width, time = batch_size * shape.context_length, shape.d_model, shape.context_length
    heads, head_width = batch_size * shape.num_heads, shape.d_model // shape.num_heads
    attention: list[Size] = [
        (1, positions, width, 3 * width),
        (1, positions, width, width),
        (heads, time, head_width, time),
        (heads, time, time, head_width),
    ]
    branches: list[Size] = [
        (1, positions, inputs, outputs)
        for layer, hidden in shape.layers_of(ffn)
        for inputs, outputs in layer.projections(width, hidden)
    ]
    head = (1, positions, width, shape.vocab_size)
    forward = [*attention * shape.num_layers, *branches, head]
    return [
        size
        for count, m, k, n in forward
        for size in ((count, m, k, n), (count, m, n, k), (count, k, m, n))
    ]
