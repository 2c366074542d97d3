"""What a space amounts to: runs with ids and matched widths, their cost, their cohorts. Pure."""

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import ValidationError

from triplu_ray.config import FFN_KEYS, RunConfig, explain, ffn_keys_of, resolve_ffn, short_hash
from triplu_ray.corpus import CorpusSource
from triplu_ray.errors import UserError
from triplu_ray.ffn import FeedForwardConfig
from triplu_ray.selection import Selection, two_stages
from triplu_ray.sizing import EAGER_FLOPS_PER_SECOND, Machine, cohort_size, compiling_pays
from triplu_ray.space import Axis, Block, Header, Space

MAX_COMBINATIONS = 1_000_000
"""Of one block; more is a slip, and would take minutes to list."""


class CorpusFacts(NamedTuple):
    """What a plan needs of a corpus; `sha256` is None while the text is not there."""

    vocab_size: int
    sha256: str | None
    bytes_per_token: Fraction | float | None = None
    """UTF-8 bytes of the training text over its tokens; None where a token's bytes are unknown."""


@dataclass(frozen=True)
class PlannedRun:
    """One training: a configuration, with what follows from it."""

    config: RunConfig
    corpus: CorpusFacts

    @cached_property
    def run_id(self) -> str:
        """The run's id; `draft-...` while the corpus is not there to be hashed."""
        if self.corpus.sha256 is None:
            return f"draft-{self.config.run_id('')}"
        return self.config.run_id(self.corpus.sha256)

    @cached_property
    def params(self) -> int:
        """Trainable parameters."""
        return self.config.shape(self.corpus.vocab_size).num_params(self.config.ffn)

    @cached_property
    def flops_per_token(self) -> int:
        """Forward FLOPs of the whole model."""
        return self.config.shape(self.corpus.vocab_size).flops_per_token(self.config.ffn)

    @property
    def tokens(self) -> int:
        """Token positions of the whole training."""
        return self.config.num_steps * self.config.tokens_per_step

    @property
    def training_flops(self) -> int:
        """Forward and backward pass, counted as three forward passes."""
        return 3 * self.flops_per_token * self.tokens

    def row(self) -> dict[str, Any]:
        """The columns of the table `runs` that are known beforehand; `config` as an object."""
        config = self.config
        return {
            "run_id": self.run_id,
            "variant": config.ffn.label,
            "seed": config.seed,
            "learning_rate": config.learning_rate,
            "gain": getattr(config.ffn, "gain", None),
            "degree": getattr(config.ffn, "degree", None),
            "num_layers": config.num_layers,
            "hidden": config.hidden,
            "params": self.params,
            "ffn_flops_per_token": config.ffn.flops(config.d_model, config.hidden),
            "flops_per_token": self.flops_per_token,
            "tokens": self.tokens,
            "config": config.model_dump(),
        }


@dataclass(frozen=True)
class Cohort:
    """Runs of equal shapes, trained in lock-step in one process."""

    runs: tuple[PlannedRun, ...]

    @cached_property
    def cohort_id(self) -> str:
        """Depends on its members alone."""
        return short_hash(sorted(run.run_id for run in self.runs))

    @property
    def description(self) -> str:
        """What it trains, in a few words."""
        config = self.runs[0].config
        seeds = ", ".join(str(run.config.seed) for run in self.runs)
        return f"{config.ffn.label} L{config.num_layers} lr {config.learning_rate:g} seed {seeds}"

    @cached_property
    def code_key(self) -> str:
        """Equal for cohorts that run the same code."""
        first = self.runs[0]
        return first.config.code_key(first.corpus.vocab_size, len(self.runs))


@dataclass(frozen=True)
class Plan:
    """The runs of a space, and the cohorts of those not done."""

    space: Space
    baseline: str | None
    runs: tuple[PlannedRun, ...]
    cohorts: tuple[Cohort, ...]
    done: frozenset[str]
    pending: int = 0
    """Runs that are known once `select` has chosen for them."""

    @property
    def plan_id(self) -> str:
        """Depends on the runs, the baseline and the targets."""
        header = self.space.header
        return short_hash([sorted(r.run_id for r in self.runs), self.baseline, header.targets])

    @property
    def missing(self) -> tuple[PlannedRun, ...]:
        """Runs that a sweep would train."""
        return tuple(run for run in self.runs if run.run_id not in self.done)

    def on(self, machine: Machine) -> "Plan":
        """The same runs in cohorts that suit the machine."""
        header = self.space.header
        return replace(self, cohorts=_form_cohorts(self.runs, header, self.done, machine))

    def compiled_cohorts(self, machine: Machine) -> frozenset[str]:
        """Ids of the cohorts whose code is worth compiling."""
        flops: dict[str, int] = {}
        for cohort in self.cohorts:
            work = sum(run.training_flops for run in cohort.runs)
            flops[cohort.code_key] = flops.get(cohort.code_key, 0) + work
        return frozenset(
            cohort.cohort_id
            for cohort in self.cohorts
            for config in [cohort.runs[0].config]
            if compiling_pays(config.precision, config.num_layers, flops[cohort.code_key], machine)
        )

    def axes(self) -> list[str]:
        """Keys that some grid of the space varies, and the one that it selects."""
        select = self.space.header.select
        selected = {select.key} if select else set()
        return sorted({key for block in self.space.blocks for key in block.grid} | selected)

    def rows(self) -> list[dict[str, Any]]:
        """`PlannedRun.row` of every run, with the values of all axes."""
        rows = []
        for run in self.runs:
            config = run.config.model_dump()
            flat = {**config["ffn"], **config}
            axes = {key: flat.get(key) for key in self.axes() if key != "variant"}
            rows.append(axes | run.row() | {"done": run.run_id in self.done})
        return rows

    def record(self) -> dict[str, Any]:
        """What the store keeps of a plan, for reports."""
        header = self.space.header
        return {
            "space": header.name,
            "description": header.description,
            "baseline": self.baseline,
            "targets": list(header.targets),
            "select": header.select and header.select.model_dump(),
            "runs": [run.row() for run in self.runs],
        }

    def estimated_seconds(self, workers: int, measured: Mapping[str, float]) -> float:
        """Training time of the missing runs: FLOPs a second by precision, measured or assumed."""
        rates = {**EAGER_FLOPS_PER_SECOND, **measured}
        return sum(r.training_flops / rates[r.config.precision] for r in self.missing) / workers


def make_plan(
    space: Space,
    corpus_facts: Callable[[CorpusSource], CorpusFacts],
    finished: frozenset[str] = frozenset(),
    results: Mapping[str, float | None] | None = None,
) -> Plan:
    """Expand a space; raises UserError for combinations that make no run.

    A budget of bytes becomes `num_steps` here: as many updates as its share of the training text,
    bytes over the mean bytes of a token, holds.

    `results`, for a space that selects, are the best losses of finished runs by id, None if
    diverged: they decide which of its runs are known (`selection.two_stages`).
    """
    baseline = _resolve_baseline(space)

    def resolve(settings: dict[str, Any], where: str) -> PlannedRun:
        return _resolve_run(settings, baseline, corpus_facts, where)

    wanted = (
        (settings, where)
        for index, block in enumerate(space.blocks)
        for where in [f"{space.origin}: blocks[{index}]" if space.blocks[1:] else space.origin]
        for settings in expand(block, where)
    )
    if space.header.select is None:
        known, pending = [resolve(*run) for run in wanted], 0
    else:
        known, pending = two_stages(space.header.select, wanted, resolve, results or {})
    runs = {run.run_id: run for run in known}
    return Plan(
        space,
        baseline and baseline[0].label,
        tuple(runs.values()),
        _form_cohorts(tuple(runs.values()), space.header, finished, Machine()),
        finished.intersection(runs),
        pending,
    )


def _form_cohorts(
    runs: Sequence[PlannedRun], header: Header, finished: frozenset[str], machine: Machine
) -> tuple[Cohort, ...]:
    """Candidates of a selection first, apart: what they choose must not cut their cohorts anew."""
    seeds = header.select.seeds if header.select else []
    stages = (
        [run for run in runs if (run.config.seed in seeds) == first] for first in (True, False)
    )
    return tuple(
        cohort for stage in stages for cohort in _cohorts_of_stage(stage, header, finished, machine)
    )


def _cohorts_of_stage(
    runs: Sequence[PlannedRun], header: Header, finished: frozenset[str], machine: Machine
) -> list[Cohort]:
    """Unfinished runs in cohorts of a size at most; those of a pair follow one another.

    What changes on a machine while a sweep runs then slows both sides of a pair alike.
    """
    groups: dict[str, list[PlannedRun]] = {}
    place: dict[str, int] = {}
    for run in runs:
        groups.setdefault(f"{run.config.cohort_key} {run.corpus.sha256}", []).append(run)
        place.setdefault(_pair(run, header.select), len(place))
    # Cut before finished runs are left out: what remains of a cohort keeps its members.
    chunks: list[list[PlannedRun]] = []
    for group in groups.values():
        size = header.cohort
        if size == "auto":
            size = cohort_size(group[0].config, group[0].corpus.vocab_size, len(runs), machine)
        chunks += (list(chunk) for chunk in _evenly(group, size))
    unfinished = (tuple(run for run in chunk if run.run_id not in finished) for chunk in chunks)
    cohorts = [Cohort(chunk) for chunk in unfinished if chunk]
    return sorted(cohorts, key=lambda cohort: place[_pair(cohort.runs[0], header.select)])


def _pair(run: PlannedRun, select: Selection | None) -> str:
    """Equal for the runs of a pair, each of which may have chosen its own value."""
    update = {select.key: RunConfig.model_fields[select.key].default} if select else {}
    return run.config.model_copy(update=update).pair_key


def _evenly(group: Sequence[PlannedRun], size: int) -> Iterator[Sequence[PlannedRun]]:
    """As few chunks of at most a size as possible, as even as possible."""
    chunks = math.ceil(len(group) / size)
    cuts = [len(group) * i // chunks for i in range(chunks + 1)]
    return (group[a:b] for a, b in itertools.pairwise(cuts))


def expand(block: Block, where: str) -> Iterator[dict[str, Any]]:
    """Every combination of a block's axes that applies, each one once.

    An axis whose condition is not met is left out, and so is a variant's key (gain, degree, ...)
    for the variants that have no such key: both then count once, not once for every value.
    """
    if "variant" not in block.settings and "variant" not in block.grid:
        raise UserError(f"{where}: variant: expected a value or an axis, got none")
    size = math.prod(len(axis.values) for axis in block.grid.values())
    if size > MAX_COMBINATIONS:
        raise UserError(
            f"{where}: grid: expected at most {MAX_COMBINATIONS:,} combinations, got {size:,}"
        )
    seen = set()
    used: set[str] = set()
    for values in itertools.product(*(axis.values for axis in block.grid.values())):
        combination = {**block.settings, **dict(zip(block.grid, values, strict=True))}
        foreign = FFN_KEYS - ffn_keys_of(combination["variant"])
        settings = {key: value for key, value in combination.items() if key not in foreign}
        # What does not apply cannot make another axis apply either.
        while excluded := [
            key for key in settings if key in block.grid and not _applies(block.grid[key], settings)
        ]:
            for key in excluded:
                del settings[key]
        if "variant" not in settings:
            raise UserError(f"{where}: grid.variant.when: expected to be met by every run")
        used |= settings.keys()
        identity = repr(sorted(settings.items()))
        if identity not in seen:
            seen.add(identity)
            yield settings
    unused = sorted((block.settings.keys() | block.grid.keys()) - used)
    if unused:
        raise UserError(f"{where}: {unused[0]}: applies to no run of the space")


def _applies(axis: Axis, settings: Mapping[str, Any]) -> bool:
    return all(settings.get(key) in allowed for key, allowed in axis.when.items())


def _resolve_baseline(space: Space) -> tuple[FeedForwardConfig, int] | None:
    baseline = space.header.baseline
    if baseline is None:
        return None
    ffn = resolve_ffn(baseline["variant"], baseline, f"{space.origin}: baseline")
    return ffn, baseline["hidden"]


def _resolve_run(
    settings: dict[str, Any],
    baseline: tuple[FeedForwardConfig, int] | None,
    corpus_facts: Callable[[CorpusSource], CorpusFacts],
    where: str,
) -> PlannedRun:
    settings = dict(settings)
    ffn = resolve_ffn(settings.pop("variant"), settings, where)
    fields = {key: value for key, value in settings.items() if key not in FFN_KEYS}
    if fields.get("hidden", "match") == "match":
        if baseline is None:
            raise UserError(f"{where}: hidden: match needs a baseline with variant and hidden")
        d_model = fields.get("d_model", RunConfig.model_fields["d_model"].default)
        fields["hidden"] = matched_width(ffn, *baseline, d_model, where)
    fields["ffn"] = ffn
    if fields.get("train_budget_bytes") is not None:
        fields["num_steps"] = _steps_of_budget(fields, corpus_facts, where)
    config = _validated(fields, where)
    return PlannedRun(config, corpus_facts(config.corpus_source))


def _validated(fields: Mapping[str, Any], where: str) -> RunConfig:
    try:
        return RunConfig.model_validate(fields)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error)}") from error


def _steps_of_budget(
    fields: Mapping[str, Any], corpus_facts: Callable[[CorpusSource], CorpusFacts], where: str
) -> int:
    """Whole updates whose token positions stand for at most so many bytes of text; at least 1."""
    if "num_steps" in fields:
        raise UserError(
            f"{where}: num_steps: expected none beside train_budget_bytes, from which it follows, "
            f"got {fields['num_steps']}"
        )
    endless = _validated({**fields, "num_steps": sys.maxsize}, where)
    bytes_per_token = corpus_facts(endless.corpus_source).bytes_per_token
    if bytes_per_token is None:
        raise UserError(
            f"{where}: train_budget_bytes: expected tokenizer: bbpe beside it, whose tokens' bytes "
            f"are known, got {endless.tokenizer}"
        )
    tokens = Fraction(fields["train_budget_bytes"]) / Fraction(bytes_per_token)
    return max(1, tokens // endless.tokens_per_step)


def matched_width(
    ffn: FeedForwardConfig,
    baseline: FeedForwardConfig,
    baseline_hidden: int,
    d_model: int,
    where: str = "",
) -> int:
    """The width whose parameters come nearest the baseline's; of two equally near, the larger.

    All else being equal between the two models, a layer's parameters decide.
    """
    wanted = baseline.num_params(d_model, baseline_hidden)
    width = 1
    while ffn.num_params(d_model, 2 * width) <= wanted:
        width *= 2
    step = width
    while step:
        if ffn.num_params(d_model, width + step) <= wanted:
            width += step
        step //= 2
    below, above = (abs(ffn.num_params(d_model, w) - wanted) for w in (width, width + 1))
    if ffn.num_params(d_model, 1) > 2 * wanted:
        raise UserError(f"{where}: hidden: no width of {ffn.label} is near the baseline's size")
    return width if below < above else width + 1
