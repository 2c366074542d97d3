"""Search: values of numbers that a sampler suggests, where a grid would list them. Pure.

Runs of a space that have a searched key and are equal but for it and the seed are a study. A
suggestion is a value of each searched key; its runs, one for every seed of the study, are trained
as one cohort, and their mean loss is what the sampler learns. Once all suggestions of a study are
done, the best one is trained on seeds apart, beside the baseline and a fixed value.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from triplu_ray.config import FFN_KEYS, NUMBERS, ffn_keys_of
from triplu_ray.corpus import CorpusSource
from triplu_ray.errors import brief, did_you_mean

SEARCHABLE = NUMBERS.keys() - CorpusSource._fields - {"seed", "eval_interval", "eval_batches"}
"""The keys that may be searched: numbers, but for those that say what is read and how it is
judged."""

PACKAGES = {"tpe": "optuna", "random": "optuna", "gp": "optuna", "cmaes": "cmaes"}
"""What the samplers need beyond this project's own code; gp needs torch too, as runs do."""


def _finite(value: Any) -> Any:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


Number = Annotated[Any, AfterValidator(_finite)]


class Range(BaseModel):
    """Where a key's values lie; `log` says that ratios count, not differences."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    low: Number
    high: Number
    log: bool = False

    @model_validator(mode="after")
    def _has_room(self) -> "Range":
        if self.low >= self.high:
            raise ValueError(f"expected low below high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: expected a number above 0 with log: true, got {self.low:g}")
        return self


def _searchable(keys: dict[str, Range]) -> dict[str, Range]:
    if not keys:
        raise ValueError("expected at least one key")
    for key in sorted(keys.keys() - SEARCHABLE):
        raise ValueError(
            f"expected numbers of runs or of variants, got {brief(key)}; "
            f"{did_you_mean(key, SEARCHABLE)}"
        )
    return keys


def _installed(sampler: str) -> str:
    if find_spec(PACKAGES[sampler]) is None:
        raise ValueError(f"{sampler} needs the package {PACKAGES[sampler]}, got none")
    return sampler


def _pruning(value: Any) -> Any:
    """YAML reads `off` as false."""
    if value is not False and value not in ("off", "asha"):
        raise ValueError("expected off or asha")
    return value or "off"


class Search(BaseModel):
    """Which keys are searched, in which ranges, how, and on which seeds the best is confirmed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    keys: Annotated[dict[str, Range], AfterValidator(_searchable)]
    num_suggestions: PositiveInt
    """Of each study."""
    sampler: Annotated[Literal["tpe", "random", "gp", "cmaes"], AfterValidator(_installed)] = "tpe"
    seed: NonNegativeInt = 1
    """Of the sampler."""
    concurrency: PositiveInt = 1
    """Suggestions of one study that are trained at the same time, and cannot learn of each other.

    With 1 a study is a function of its seed, however often it was interrupted.
    """
    objective: Literal["best_val_loss", "paired_gap"] = "best_val_loss"
    """The mean over the seeds; `paired_gap`: above the baseline's, whose runs are trained once."""
    confirm_seeds: list[Any] = []
    """Apart from the space's; the best is trained on them, the baseline, and what it is compared
    with."""
    pruning: Annotated[Literal["off", "asha"], BeforeValidator(_pruning)] = "off"
    """`asha`: a suggestion whose mean over the seeds is behind at an evaluation is stopped."""
    compare_with: dict[str, Number] | None = None
    """What the best is compared with; by default the gain that the paper gives the layer."""

    @model_validator(mode="after")
    def _compares_all_keys(self) -> "Search":
        compared = self.keys if self.compare_with is None else self.compare_with
        for key in sorted(compared.keys() - self.keys.keys()):
            raise ValueError(f"compare_with.{key}: unknown key; {did_you_mean(key, self.keys)}")
        for key in sorted(self.keys.keys() - compared.keys()):
            raise ValueError(f"compare_with.{key}: expected a value beside the others, got none")
        return self

    def keys_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The searched keys that runs of these settings have."""
        foreign = FFN_KEYS - ffn_keys_of(settings["variant"])
        return tuple(key for key in self.keys if key not in foreign)


@dataclass(frozen=True)
class Suggestion:
    """The values of a study's keys that a sampler suggested as its `number`-th, from 1."""

    number: int
    values: Mapping[str, float]
    pruned: tuple[float, ...] | None = None
    """`mean_losses` until it was stopped early; None if it was not."""


def in_words(values: Mapping[str, float]) -> str:
    """`gain 4.7, learning_rate 0.001`."""
    return ", ".join(f"{key} {value:g}" for key, value in values.items())


def suggestions_of(records: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Suggestion, ...]]:
    """The suggestions of each study, in order, as the store's records have them.

    What follows a gap in the numbers is left out: it was suggested without knowing of all others.
    """
    studies: dict[str, dict[int, Suggestion]] = {}
    for record in records:
        pruned = record["pruned"] and tuple(record["pruned"])
        suggestion = Suggestion(record["number"], record["values"], pruned)
        studies.setdefault(record["study"], {})[suggestion.number] = suggestion
    return {
        study: tuple(
            found[number] for number in itertools.takewhile(found.__contains__, itertools.count(1))
        )
        for study, found in studies.items()
    }


def mean_losses(members: Sequence[tuple[Sequence[float], bool]], worst: float) -> list[float]:
    """Lowest loss so far, the mean over the seeds, after each evaluation but that of step 0.

    `members` are each seed's losses by evaluation, and whether it diverged: then it counts as
    `worst` after the last of them. One that patience stopped stays at its lowest.
    """

    def lowest(losses: Sequence[float], diverged: bool, place: int) -> float:
        return worst if diverged and place >= len(losses) else min(losses[: place + 1])

    evaluations = max(len(losses) for losses, _ in members)
    return [
        statistics.fmean(lowest(losses, diverged, place) for losses, diverged in members)
        for place in range(1, evaluations)
    ]
