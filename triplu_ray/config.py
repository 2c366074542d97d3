"""One run's configuration, fully resolved, and its identity."""

import dataclasses
import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping, Set
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from triplu_ray.added_keys import ADDED_KEYS
from triplu_ray.corpus import CorpusName, CorpusSource, TokenizerName
from triplu_ray.errors import UserError, brief
from triplu_ray.ffn import ALIASES, FeedForward, FeedForwardConfig
from triplu_ray.model import Initialization, ModelShape, Precision
from triplu_ray.optim import Decay, Schedule, schedule_factor

SCHEMA_VERSION = 1
"""Part of every run's id; raised when a key changes its meaning."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class RunConfig(BaseModel):
    """One run, fully resolved; the defaults are the TriPLU paper's character setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    corpus: CorpusName = "tinystories_lite"
    train_bytes: PositiveInt | None = 1_000_000
    validation_bytes: PositiveInt | None = 200_000
    train_file: str | None = None
    validation_file: str | None = None
    heldout_bytes: PositiveInt | None = None
    heldout_file: str | None = None
    tokenizer: TokenizerName = "char"
    tokenizer_vocab_size: Annotated[int, Field(ge=256, le=1 << 16)] = 512
    """Of bbpe; the 256 bytes are part of it."""

    ffn: FeedForward
    hidden: PositiveInt
    d_model: PositiveInt = 96
    num_layers: PositiveInt = 2
    num_heads: PositiveInt = 2
    context_length: PositiveInt = 64
    initialization: Initialization = "normal"

    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` updates the weights of the blocks' linear maps, and leaves the rest to AdamW."""
    learning_rate: Positive = 3e-4
    adamw_learning_rate: Positive | None = None
    """Beside `muon` only: the rate of the rest. Both rates follow the schedule."""
    momentum: Beta = 0.95
    """Muon's; the betas are AdamW's."""
    weight_decay: NonNegative = 0.1
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    decay: Decay = "all"
    gradient_clip: Positive = 1.0
    schedule: Schedule = "constant"
    warmup_steps: NonNegativeInt = 0
    decay_fraction: Fraction = 1.0
    final_learning_rate_ratio: Fraction = 0.0

    batch_size: PositiveInt = 32
    num_steps: PositiveInt = 5_000
    train_budget_bytes: PositiveInt | None = None
    """Bytes of text to train on, from which a plan derives `num_steps`: `plan.make_plan`."""
    eval_interval: PositiveInt = 250
    eval_batches: PositiveInt = 50
    seed: NonNegativeInt = 1
    precision: Precision = "fp32"
    patience: PositiveInt | None = None
    """Evaluations in a row without a new best after which a run is stopped; None: it goes on."""

    @model_validator(mode="after")
    def _fits_together(self) -> "RunConfig":
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model: expected a multiple of num_heads ({self.num_heads}), got {self.d_model}"
            )
        self.corpus_source.check()
        for key in ("adamw_learning_rate", "momentum"):
            given = getattr(self, key) != RunConfig.model_fields[key].default
            if self.optimizer != "muon" and given:
                raise ValueError(f"{key}: expected optimizer: muon beside it, got {self.optimizer}")
        if self.optimizer == "muon" and self.adamw_learning_rate is None:
            raise ValueError("adamw_learning_rate: expected a value with optimizer: muon, got none")
        if self.warmup_steps > self.num_steps:
            raise ValueError(
                f"warmup_steps: expected at most num_steps ({self.num_steps}), "
                f"got {self.warmup_steps}"
            )
        if self.eval_interval > self.num_steps:
            raise ValueError(
                f"eval_interval: expected at most num_steps ({self.num_steps}), "
                f"got {self.eval_interval}"
            )
        return self

    @property
    def corpus_source(self) -> CorpusSource:
        """Which text it reads."""
        return CorpusSource(*(getattr(self, key) for key in CorpusSource._fields))

    def shape(self, vocab_size: int) -> ModelShape:
        """The model's sizes, given those of the vocabulary."""
        return ModelShape(
            vocab_size=vocab_size,
            context_length=self.context_length,
            d_model=self.d_model,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            hidden=self.hidden,
        )

    @property
    def tokens_per_step(self) -> int:
        """Token positions of one update."""
        return self.batch_size * self.context_length

    @property
    def learning_rates(self) -> list[float]:
        """Peaks of all the learning rates that its optimizer has, in the optimizer's order."""
        rates = [self.learning_rate, self.adamw_learning_rate]
        return [rate for rate in rates if rate is not None]

    def learning_rate_factor(self, step: int) -> float:
        """A learning rate of an update (from 0) over its peak."""
        return schedule_factor(
            self.schedule,
            step,
            num_steps=self.num_steps,
            warmup_steps=self.warmup_steps,
            decay_fraction=self.decay_fraction,
            final_ratio=self.final_learning_rate_ratio,
        )

    def run_id(self, corpus_sha256: str) -> str:
        """Hash of everything that decides the result: equal runs are the same run everywhere.

        Where the text lies does not count, what it says does.
        """
        places = {"train_file", "validation_file", "heldout_file"}
        as_before = {key for key, value in ADDED_KEYS.items() if getattr(self, key) == value}
        identity = self.model_dump(exclude=places | as_before)
        identity |= {"schema": SCHEMA_VERSION, "corpus_sha256": corpus_sha256}
        return short_hash(identity)

    @property
    def cohort_key(self) -> Hashable:
        """Equal for runs that can be members of one cohort."""
        ignored = {"seed", "learning_rate", "adamw_learning_rate", "weight_decay", "ffn"}
        return *_all_but(self, ignored), *_all_but(self.ffn, set(self.ffn.per_member))

    def code_key(self, vocab_size: int, members: int) -> str:
        """Equal for cohorts whose losses and gradients are computed by the same code."""
        shape = dataclasses.asdict(self.shape(vocab_size))
        return short_hash([self._ffn_structure(), shape, self.batch_size, members, self.precision])

    def _ffn_structure(self) -> dict[str, Any]:
        return self.ffn.model_dump(exclude=set(self.ffn.per_member))

    @property
    def pair_key(self) -> Hashable:
        """Equal for runs that differ at most in the feed-forward layer."""
        return self.pair_key_but_for(())

    def pair_key_but_for(self, keys: Iterable[str]) -> Hashable:
        """Equal for runs that differ at most in the feed-forward layer and these keys."""
        return _all_but(self, {"ffn", "hidden", *keys})


def _all_but(model: BaseModel, keys: Set[str]) -> tuple[Any, ...]:
    """The values of a model's fields, in order; a plan asks for those of many runs."""
    return tuple(value for key, value in model if key not in keys)


def short_hash(content: Any) -> str:
    """16 hexadecimal digits that depend on the content, not on the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


_FFN_CONFIGS: tuple[type[FeedForwardConfig], ...] = get_args(get_args(FeedForward)[0])
_FFN_BY_KIND = {
    kind: config
    for config in _FFN_CONFIGS
    for kind in get_args(config.model_fields["kind"].annotation)
}
_FFN_ADAPTER: TypeAdapter[FeedForwardConfig] = TypeAdapter(FeedForward)

FFN_KEYS = {key for config in _FFN_CONFIGS for key in config.model_fields} - {"kind"}
"""Keys that belong to some variants only."""

VARIANTS = sorted({*ALIASES, *_FFN_BY_KIND})
"""What the key `variant` may say: kinds, and the papers' names."""


def _number(kind: Any) -> type[int] | type[float] | None:
    """What a field that is a number, or a number or None, holds; None for all others."""
    kinds = set(get_args(kind) or [kind]) - {NoneType}
    return kinds.pop() if kinds in ({int}, {float}) else None


NUMBERS: dict[str, type[int] | type[float]] = {
    key: number
    for config in (RunConfig, *_FFN_CONFIGS)
    for key, kind in get_type_hints(config).items()
    if (number := _number(kind))
}
"""The keys that are numbers, of runs and of variants."""


def is_complete(variant: str) -> bool:
    """Whether its name says everything; `product`, for one, has no default degree."""
    fields = ALIASES.get(variant, {"kind": variant})
    known = _FFN_BY_KIND[fields["kind"]].model_fields
    return all(name in fields for name, field in known.items() if field.is_required())


def ffn_keys_of(variant: str) -> set[str]:
    """The keys that a variant, or alias, understands."""
    kind = ALIASES[variant]["kind"] if variant in ALIASES else variant
    return set(_FFN_BY_KIND[kind].model_fields) - {"kind"}


def resolve_ffn(variant: str, settings: Mapping[str, Any], where: str) -> FeedForwardConfig:
    """The variant's configuration: its alias's fields, overlaid by the keys that it understands.

    Raises UserError, which begins with `where`, for a value out of range or one that an alias
    excludes (a triplu of degree 4).
    """
    fields = dict(ALIASES.get(variant, {"kind": variant}))
    config = _FFN_BY_KIND[fields["kind"]]
    for key in ffn_keys_of(variant) & settings.keys():
        fixed = key in fields and key not in config.per_member
        if fixed and fields[key] != settings[key]:
            raise UserError(
                f"{where}: {key}: {variant} means {fields[key]}, got {brief(settings[key])}; "
                f"write variant: {fields['kind']}"
            )
        fields[key] = settings[key]
    try:
        return _FFN_ADAPTER.validate_python(fields, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {variant}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """The first problem of a validation as one line: `key: expected ..., got ...`."""
    problem = error.errors()[0]
    names = [str(part) for part in problem["loc"] if part not in _FFN_BY_KIND]
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    if problem["type"] == "extra_forbidden":
        message = "unknown key"
    elif problem["type"] == "missing":
        message = "expected a value, got none"
    elif problem["type"] in ("dict_type", "model_type"):
        message = f"expected a mapping, got {brief(problem['input'])}"
    elif "got" not in message:
        message += f", got {brief(problem['input'])}"
    return ": ".join([".".join(names)] * bool(names) + [message])
