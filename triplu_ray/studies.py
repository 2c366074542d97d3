"""What a space's `search` amounts to, given what was suggested and is finished so far. Pure."""

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from triplu_ray.choice import choose
from triplu_ray.config import RunConfig, short_hash
from triplu_ray.errors import UserError
from triplu_ray.ffn import ALIASES
from triplu_ray.search import Range, Search, Suggestion, in_words

Settings = dict[str, Any]
Results = Mapping[str, float | None]
"""Best validation loss of finished runs by id, None if diverged."""


class Trained(Protocol):
    """What is asked of a planned run here."""

    @property
    def config(self) -> RunConfig:
        """Its configuration."""

    @property
    def run_id(self) -> str:
        """Its id."""

    @property
    def uniform_loss(self) -> float:
        """The loss of a guess that knows nothing, nats a token."""


Run = TypeVar("Run", bound=Trained)
Resolve = Callable[[Settings, str], Run]
"""Makes a run of settings, and of where they stand."""


@dataclass(frozen=True)
class Confirmation(Generic[Run]):
    """Runs on the confirmation seeds: at the best values, at the fixed ones, and the baseline's."""

    best: Sequence[Run]
    fixed: Sequence[Run]
    baseline: Sequence[Run]


@dataclass(frozen=True)
class Study(Generic[Run]):
    """One search: the runs that are equal but for the seed and the searched keys."""

    search: Search
    name: str
    settings: Settings
    where: str
    seeds: tuple[int, ...]
    keys: tuple[str, ...]
    resolve: Resolve[Run]
    reference: tuple[str, ...] = ()
    """Ids of the baseline's runs, for the objective `paired_gap`."""
    suggestions: tuple[Suggestion, ...] = ()
    results: Results = field(default_factory=dict)
    confirmation: Confirmation[Run] | None = None
    """None while suggestions are not done, or without seeds for it."""

    def runs(self, values: Mapping[str, float], seeds: Sequence[int] | None = None) -> list[Run]:
        """The runs of a suggestion, one a seed."""
        settings = {**self.settings, **values}
        seeds = self.seeds if seeds is None else seeds
        return [self.resolve({**settings, "seed": seed}, self.where) for seed in seeds]

    @property
    def lowest(self) -> dict[str, float]:
        """The low end of each range."""
        return {key: self.search.keys[key].low for key in self.keys}

    @cached_property
    def ends(self) -> tuple[Run, Run]:
        """A run at the low end of each range, and one at the high end."""
        highest = {key: self.search.keys[key].high for key in self.keys}
        seed = self.seeds[:1]
        return self.runs(self.lowest, seed)[0], self.runs(highest, seed)[0]

    @property
    def label(self) -> str:
        """Of its feed-forward layer, at the low end."""
        return self.ends[0].config.ffn.label

    @property
    def evaluations(self) -> int:
        """Of a run after its first step, at least."""
        configs = [run.config for run in self.ends]
        return min(math.ceil(config.num_steps / config.eval_interval) for config in configs)

    @cached_property
    def study_id(self) -> str:
        """Depends on all that decides which values are suggested, not on how many are."""
        runs = self.runs(self.lowest)
        ranges = {key: self.search.keys[key].model_dump() for key in self.keys}
        how = [self.search.sampler, self.search.seed, self.search.objective, self.search.pruning]
        identity = [sorted(run.run_id for run in runs), ranges, how]
        return f"{self.label}-{short_hash(identity)}"

    @cached_property
    def worst(self) -> float:
        """What a diverged seed counts: twice the loss of a guess that knows nothing.

        Worse than whatever trains, and near enough to it that a Gaussian process keeps its scale;
        samplers and schedulers take no infinity.
        """
        return 2 * self.ends[0].uniform_loss

    @property
    def is_ready(self) -> bool:
        """Whether the baseline's runs are there, if its objective needs them."""
        return self.results.keys() >= set(self.reference)

    @property
    def level(self) -> float:
        """What the objective is measured from: the baseline's mean loss at the same seeds, or 0."""
        losses = [self.results.get(run_id) for run_id in self.reference]
        return statistics.fmean([loss for loss in losses if loss is not None] or [0.0])

    def losses(self, values: Mapping[str, float]) -> list[float | None] | None:
        """Best validation loss of each seed, None if it diverged; no list while one is missing."""
        run_ids = [run.run_id for run in self.runs(values)]
        if not self.results.keys() >= set(run_ids):
            return None
        return [self.results[run_id] for run_id in run_ids]

    def objective(self, suggestion: Suggestion) -> float | None:
        """What the sampler minimizes: the mean loss over the seeds, above `level`.

        `worst` where a seed diverged, None while a run is missing. One that was stopped early
        counts as it stood, which is no better than it would have become.
        """
        if not self.is_ready:
            return None
        if suggestion.pruned:
            return suggestion.pruned[-1] - self.level
        losses = self.losses(suggestion.values)
        if losses is None:
            return None
        finite = [loss for loss in losses if loss is not None]
        mean = statistics.fmean(finite) if len(finite) == len(losses) else self.worst
        return mean - self.level

    @property
    def done(self) -> list[Suggestion]:
        """The suggestions whose objective is known."""
        return [one for one in self.suggestions if self.objective(one) is not None]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to suggest or to train."""
        return len(self.done) >= self.search.num_suggestions

    @property
    def to_come(self) -> list[Run]:
        """Runs in place of those that are not suggested yet."""
        return self.runs(self.lowest) * (self.search.num_suggestions - len(self.suggestions))

    @property
    def best(self) -> Suggestion | None:
        """Of those that were trained to the end: fewest divergences, then the lowest mean loss."""
        trained = [one for one in self.done if one.pruned is None]
        losses = [self.losses(one.values) or [] for one in trained]
        return trained[choose(losses)] if trained else None

    @property
    def fixed(self) -> dict[str, float] | None:
        """What the best is compared with: `compare_with`, or what the paper gives its layer."""
        known = self.search.compare_with
        known = ALIASES.get(self.label, {}) if known is None else known
        return {key: known[key] for key in self.keys} if known.keys() >= set(self.keys) else None

    def line(self) -> str:
        """How far it is: `triplu: 5 of 12 suggestions done, 1 begun; best so far gain 4.7`."""
        begun = len(self.suggestions) - len(self.done)
        stopped = sum(one.pruned is not None for one in self.suggestions)
        counts = {"stopped early": stopped, "begun": begun}
        parts = [f"{len(self.done)} of {self.search.num_suggestions} suggestions done"]
        parts += [f"{count} {words}" for words, count in counts.items() if count]
        line = f"{self.name}: {', '.join(parts)}"
        if self.best is not None:
            line += f"; best{' so far' * (not self.is_done)} {in_words(self.best.values)}"
        return line

    def record(self) -> dict[str, Any]:
        """What the store keeps of a study in the record of a plan."""
        confirmation = self.confirmation and {
            name: [run.run_id for run in runs] for name, runs in vars(self.confirmation).items()
        }
        return {
            "study": self.study_id,
            "name": self.name,
            "seeds": self.seeds,
            "keys": self.keys,
            "fixed": self.fixed,
            "suggested": len(self.suggestions),
            "best": self.best and dict(self.best.values),
            "confirmation": confirmation,
        }


@dataclass(frozen=True)
class Searched(Generic[Run]):
    """All that is known of a space that searches, and what stands for the rest."""

    runs: list[Run]
    stand_ins: list[Run]
    studies: tuple[Study[Run], ...]


def search_runs(
    search: Search,
    wanted: Iterable[tuple[Settings, str]],
    axes: Collection[str],
    resolve: Resolve[Run],
    baseline: str | None,
    results: Results,
    suggestions: Mapping[str, Sequence[Suggestion]],
) -> Searched[Run]:
    """Runs without a searched key, those suggested so far, and those that confirm the best.

    `wanted` are the settings of the space's runs, without the searched keys, and where they stand;
    `axes` are the keys that vary between them, `baseline` is a label. Raises UserError for a seed
    of both kinds, a key that no run has, ranges some of whose values make no run, and an objective
    or pruning that cannot be.
    """
    plain: list[tuple[Settings, str]] = []
    groups: dict[str, list[tuple[Settings, str]]] = {}
    for given, where in wanted:
        settings = {"seed": RunConfig.model_fields["seed"].default, **given}
        if settings["seed"] in search.confirm_seeds:
            raise UserError(
                f"{where}: search.confirm_seeds: expected seeds apart from those of the space, got "
                f"{settings['seed']} in both"
            )
        if search.keys_of(settings):
            group = repr(sorted({**settings, "seed": None}.items()))
            groups.setdefault(group, []).append((settings, where))
        else:
            plain.append((settings, where))
    for key in search.keys:
        if not any(key in search.keys_of(group[0][0]) for group in groups.values()):
            raise UserError(f"{where}: search.keys.{key}: applies to no run of the space")
    runs = [resolve(*run) for run in plain]
    studies = [_study(search, group, axes, resolve) for group in groups.values()]
    by_id = {study.study_id: study for study in studies}
    known = [
        _with_results(study, _reference(study, runs, by_id.values(), baseline), results, found)
        for study_id, study in by_id.items()
        for found in [suggestions.get(study_id, ())[: search.num_suggestions]]
    ]
    return _with_confirmations(search, plain, runs, known, resolve, baseline)


def _study(
    search: Search,
    group: Sequence[tuple[Settings, str]],
    axes: Collection[str],
    resolve: Resolve[Run],
) -> Study[Run]:
    """The study of runs that differ in the seed alone; raises UserError if it is none."""
    (settings, where), keys = group[0], search.keys_of(group[0][0])
    # Blocks may overlap.
    seeds = tuple(dict.fromkeys(settings["seed"] for settings, _ in group))
    study = Study(search, "", settings, where, seeds, keys, resolve)
    _check_ranges(study)
    details = [
        f"{axis}={settings[axis]}"
        for axis in sorted(axes)
        if axis in settings and axis not in ("variant", "hidden", "seed")
    ]
    if study.fixed is not None:
        study.runs(study.fixed)
    if search.pruning == "asha" and study.evaluations < 2:
        raise UserError(
            f"{where}: search.pruning: asha needs at least 2 evaluations of a run, got "
            f"{study.evaluations}"
        )
    return replace(study, name=" ".join([study.label, *details]))


def _check_ranges(study: Study[Run]) -> None:
    """Raise UserError if some values of the ranges make no run: a sampler would come to them."""
    for values in _values_to_check({key: study.search.keys[key] for key in study.keys}):
        try:
            study.runs(values, study.seeds[:1])
        except UserError as error:
            raise UserError(
                f"{study.where}: search.keys: expected ranges whose values all make a run, got "
                f"{in_words(values)}: {str(error).removeprefix(f'{study.where}: ')}"
            ) from error


def _values_to_check(ranges: Mapping[str, Range]) -> Iterator[dict[str, float]]:
    """All corners: what holds there holds between them, but for what must divide one another."""
    values: dict[str, Iterable[float]] = {
        key: range(of.low, of.high + 1) if key in ("d_model", "num_heads") else (of.low, of.high)
        for key, of in ranges.items()
    }
    return (dict(zip(values, some, strict=True)) for some in itertools.product(*values.values()))


def _reference(
    study: Study[Run], plain: Sequence[Run], studies: Iterable[Study[Run]], baseline: str | None
) -> tuple[str, ...]:
    """Ids of the baseline's runs that the study's objective needs."""
    if study.search.objective == "best_val_loss":
        return ()
    here = f"{study.where}: search.objective: paired_gap needs"
    if baseline is None:
        raise UserError(f"{here} a baseline, got none")
    if any(other.label == baseline for other in studies):
        raise UserError(f"{here} a baseline without searched keys, got one for {baseline}")
    of_pair = {run.config.pair_key: run.run_id for run in plain if run.config.ffn.label == baseline}
    pairs = [run.config.pair_key for run in study.runs(study.lowest)]
    if not of_pair.keys() >= set(pairs):
        raise UserError(f"{here} runs of {baseline} at the seeds and settings of {study.name}")
    return tuple(of_pair[pair] for pair in pairs)


def _with_results(
    study: Study[Run],
    reference: tuple[str, ...],
    results: Results,
    suggestions: Sequence[Suggestion],
) -> Study[Run]:
    own = {run.run_id for one in suggestions for run in study.runs(one.values)} | {*reference}
    return replace(
        study,
        reference=reference,
        suggestions=tuple(suggestions),
        results={run_id: results[run_id] for run_id in own & results.keys()},
    )


def _with_confirmations(
    search: Search,
    plain: Iterable[tuple[Settings, str]],
    runs: Sequence[Run],
    studies: Iterable[Study[Run]],
    resolve: Resolve[Run],
    baseline: str | None,
) -> Searched[Run]:
    """All runs and stand-ins; studies that are done with their runs on the confirmation seeds."""
    seeds = search.confirm_seeds
    once_more = (
        resolve({**settings, "seed": seed}, where) for settings, where in plain for seed in seeds
    )
    again = list({run.run_id: run for run in once_more}.values())
    at_best = {
        study.study_id: study.runs(study.best.values, seeds)
        for study in studies
        if seeds and study.is_done and study.best
    }
    of_baseline = {
        run.config.pair_key_but_for(search.keys): run
        for run in itertools.chain(again, *at_best.values())
        if run.config.ffn.label == baseline
    }
    searched: list[Run] = []
    confirming, stand_ins = (again, []) if at_best else ([], again)
    confirmed: list[Study[Run]] = []
    for study in studies:
        kept = [one for one in study.suggestions if one.pruned is None]
        searched += [run for one in kept for run in study.runs(one.values)]
        best = at_best.get(study.study_id)
        fixed = study.runs(study.fixed, seeds) if study.fixed else []
        if best is None:
            stand_ins += [*study.to_come, *study.runs(study.lowest, seeds), *fixed]
        else:
            pairs = [run.config.pair_key_but_for(search.keys) for run in best]
            baselines = [of_baseline[pair] for pair in pairs if pair in of_baseline]
            study = replace(study, confirmation=Confirmation(best, fixed, baselines))
            confirming += [*best, *fixed]
        confirmed.append(study)
    return Searched([*runs, *searched, *confirming], stand_ins, tuple(confirmed))
