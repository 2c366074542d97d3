"""What a space amounts to: runs with ids and matched widths, their cost, their cohorts. Pure."""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple

from triplu_ray.config import RunConfig, short_hash
from triplu_ray.corpus import CorpusSource
from triplu_ray.errors import UserError
from triplu_ray.grid import expand
from triplu_ray.resolve import Baseline, resolve_baseline, resolve_config
from triplu_ray.search import Suggestion, in_words
from triplu_ray.selection import two_stages
from triplu_ray.sizing import EAGER_FLOPS_PER_SECOND, Machine, cohort_size, compiling_pays
from triplu_ray.space import Header, Space
from triplu_ray.studies import Study, search_runs


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
    def uniform_loss(self) -> float:
        """The loss of a guess that knows nothing, nats a token."""
        return math.log(self.corpus.vocab_size)

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
    values: str = ""
    """Those that were suggested for it, in words."""
    on_cpu: bool = False
    """Whether cores train it though others have GPUs: `cpu_share`."""

    @cached_property
    def cohort_id(self) -> str:
        """Depends on its members alone."""
        return short_hash(sorted(run.run_id for run in self.runs))

    @property
    def description(self) -> str:
        """What it trains, in a few words."""
        config = self.runs[0].config
        seeds = ", ".join(str(run.config.seed) for run in self.runs)
        words = f"{config.ffn.label} L{config.num_layers} lr {config.learning_rate:g} seed {seeds}"
        return f"{words} {self.values}".strip()

    @cached_property
    def code_key(self) -> str:
        """Equal for cohorts that run the same code."""
        first = self.runs[0]
        return first.config.code_key(first.corpus.vocab_size, len(self.runs))


PlannedStudy = Study[PlannedRun]


def suggested_cohort(study: PlannedStudy, values: Mapping[str, float]) -> Cohort:
    """The runs of a suggestion, one for each seed."""
    return Cohort(tuple(study.runs(values)), in_words(values))


@dataclass(frozen=True)
class Plan:
    """The runs of a space, and the cohorts of those not done."""

    space: Space
    baseline: str | None
    runs: tuple[PlannedRun, ...]
    cohorts: tuple[Cohort, ...]
    done: frozenset[str]
    stand_ins: tuple[PlannedRun, ...] = ()
    """As many runs, of the same cost, as will be known once `select` or `search` has gone on."""
    studies: tuple[PlannedStudy, ...] = ()

    @property
    def plan_id(self) -> str:
        """Depends on the runs, the baseline and the targets."""
        header = self.space.header
        return short_hash([sorted(r.run_id for r in self.runs), self.baseline, header.targets])

    @property
    def missing(self) -> tuple[PlannedRun, ...]:
        """Runs that a sweep would train."""
        return tuple(run for run in self.runs if run.run_id not in self.done)

    @property
    def pending(self) -> int:
        """Runs that are not known yet."""
        return len(self.stand_ins)

    @property
    def is_searching(self) -> bool:
        """Whether a study has suggestions to come, or to train."""
        return not all(study.is_done for study in self.studies)

    @cached_property
    def suggested(self) -> frozenset[str]:
        """Ids of the runs that are trained suggestion by suggestion, not in `cohorts`."""
        return frozenset(
            run.run_id
            for study in self.studies
            for suggestion in study.suggestions
            for run in study.runs(suggestion.values)
        )

    def on(self, machine: Machine) -> "Plan":
        """The same runs in cohorts that suit the machine."""
        runs = [run for run in self.runs if run.run_id not in self.suggested]
        return replace(self, cohorts=_form_cohorts(runs, self.space.header, self.done, machine))

    def compiled(self, machine: Machine) -> frozenset[str]:
        """Ids of the cohorts, and of the studies, whose code is worth compiling."""
        cohorts = {cohort.cohort_id: [cohort] for cohort in self.cohorts}
        cohorts |= {study.study_id: _cohorts_to_come(study) for study in self.studies}
        flops: dict[str, int] = {}
        for cohort in itertools.chain(*cohorts.values()):
            work = sum(run.training_flops for run in cohort.runs)
            flops[cohort.code_key] = flops.get(cohort.code_key, 0) + work
        return frozenset(
            name
            for name, of_name in cohorts.items()
            for cohort in of_name[:1]
            for config in [cohort.runs[0].config]
            if compiling_pays(config.precision, config.num_layers, flops[cohort.code_key], machine)
        )

    def axes(self) -> list[str]:
        """Keys that some grid of the space varies, and those that it selects or searches."""
        keys = {key for block in self.space.blocks for key in block.grid}
        return sorted(keys.union(self.space.header.chosen_keys))

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
            "pending": self.pending,
            "select": header.select and header.select.model_dump(exclude_defaults=True),
            "search": header.search
            and header.search.model_dump() | {"studies": [one.record() for one in self.studies]},
            "runs": [run.row() for run in self.runs],
        }

    def estimated_seconds(self, workers: int, measured: Mapping[str, float]) -> float:
        """Training time of all runs to come: FLOPs a second by precision, measured or assumed."""
        rates = {**EAGER_FLOPS_PER_SECOND, **measured}
        runs = (*self.missing, *self.stand_ins)
        return sum(run.training_flops / rates[run.config.precision] for run in runs) / workers


def make_plan(
    space: Space,
    corpus_facts: Callable[[CorpusSource], CorpusFacts],
    finished: frozenset[str] = frozenset(),
    results: Mapping[str, float | None] | None = None,
    suggestions: Mapping[str, Sequence[Suggestion]] | None = None,
) -> Plan:
    """Expand a space; raises UserError for combinations that make no run.

    A budget of bytes becomes `num_steps` here: as many updates as its share of the training text,
    bytes over the mean bytes of a token, holds.

    `results`, for a space that selects or searches, are the best losses of finished runs by id,
    None if diverged, and `suggestions` those made so far, by study: they decide which of its runs
    are known (`selection.two_stages`, `studies.search_runs`).
    """
    header, baseline = space.header, resolve_baseline(space)
    label = baseline and baseline[0].label
    facts: dict[CorpusSource, CorpusFacts] = {}

    def look_up(source: CorpusSource) -> CorpusFacts:
        if source not in facts:
            facts[source] = corpus_facts(source)
        return facts[source]

    resolve = partial(_resolve_run, baseline=baseline, corpus_facts=look_up)
    wanted = (
        (settings, where)
        for index, block in enumerate(space.blocks)
        for where in [f"{space.origin}: blocks[{index}]" if space.blocks[1:] else space.origin]
        for settings in expand(block, where)
    )
    stand_ins: list[PlannedRun] = []
    studies: tuple[PlannedStudy, ...] = ()
    if header.select is not None:
        known, stand_ins = two_stages(header.select, wanted, resolve, results or {}, space.origin)
    elif header.search is not None:
        axes = {key for block in space.blocks for key in block.grid}
        made = search_runs(
            header.search, wanted, axes, resolve, label, results or {}, suggestions or {}
        )
        known, stand_ins = made.runs, made.stand_ins
        # Workers make runs too, of facts that travel.
        travelling = partial(_resolve_run, baseline=baseline, corpus_facts=facts.__getitem__)
        studies = tuple(replace(study, resolve=travelling) for study in made.studies)
        for study in studies:
            if header.cohort != "auto" and header.cohort < len(study.seeds):
                raise UserError(
                    f"{study.where}: cohort: expected at least the {len(study.seeds)} seeds of a "
                    f"suggestion, got {header.cohort}"
                )
    else:
        known = [resolve(*run) for run in wanted]
    runs = {run.run_id: run for run in known}
    plan = Plan(
        space,
        label,
        tuple(runs.values()),
        (),
        finished.intersection(runs),
        tuple(stand_ins),
        studies,
    )
    return plan.on(Machine())


def _form_cohorts(
    runs: Sequence[PlannedRun], header: Header, finished: frozenset[str], machine: Machine
) -> tuple[Cohort, ...]:
    """Candidates of a selection first, what confirms a search last, each apart.

    What is known only later must not cut the cohorts of what is known before anew.
    """
    first = header.select.seeds if header.select else []
    last = header.search.confirm_seeds if header.search else []
    stages = (
        [run for run in runs if (run.config.seed in last) - (run.config.seed in first) == stage]
        for stage in (-1, 0, 1)
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

    def pair(run: PlannedRun) -> Hashable:
        """Equal for the runs of a pair, each of which may be at a chosen value of its own."""
        return run.config.pair_key_but_for(header.chosen_keys)

    groups: dict[Hashable, list[PlannedRun]] = {}
    place: dict[Hashable, int] = {}
    for run in runs:
        place.setdefault(pair(run), len(place))
    on_gpu, on_cpu = _shared_out(runs, pair, header.cpu_share if machine.gpu_bytes else 0.0)
    for run in on_gpu:
        groups.setdefault((run.config.cohort_key, run.corpus.sha256), []).append(run)
    # Cut before finished runs are left out: what remains of a cohort keeps its members.
    chunks: list[list[PlannedRun]] = []
    for group in groups.values():
        size = header.cohort
        if size == "auto":
            size = cohort_size(group[0].config, group[0].corpus.vocab_size, len(runs), machine)
        chunks += (list(chunk) for chunk in _evenly(group, size))
    unfinished = (tuple(run for run in chunk if run.run_id not in finished) for chunk in chunks)
    cohorts = [Cohort(chunk) for chunk in unfinished if chunk]
    cohorts += [Cohort((run,), on_cpu=True) for run in on_cpu if run.run_id not in finished]
    return sorted(cohorts, key=lambda cohort: place[pair(cohort.runs[0])])


def _shared_out(
    runs: Sequence[PlannedRun], pair: Callable[[PlannedRun], Hashable], share: float
) -> tuple[list[PlannedRun], list[PlannedRun]]:
    """Runs for GPUs, and for cores at most a share of the FLOPs: whole pairs, the first ones.

    Both sides of a pair are rounded by the same hardware then.
    """
    pairs: dict[Hashable, list[PlannedRun]] = {}
    for run in runs:
        pairs.setdefault(pair(run), []).append(run)
    left = share * sum(run.training_flops for run in runs)
    on_gpu: list[PlannedRun] = []
    on_cpu: list[PlannedRun] = []
    for members in pairs.values():
        left -= sum(run.training_flops for run in members)
        (on_cpu if left >= 0 else on_gpu).extend(members)
    return on_gpu, on_cpu


def _cohorts_to_come(study: PlannedStudy) -> list[Cohort]:
    """One for each suggestion that is not done, or only one where each runs code of its own."""
    cohort = suggested_cohort(study, study.lowest)
    codes = {Cohort((run,)).code_key for run in study.ends}
    count = study.search.num_suggestions - len(study.done)
    return [cohort] * (count if len(codes) == 1 else min(count, 1))


def _evenly(group: Sequence[PlannedRun], size: int) -> Iterator[Sequence[PlannedRun]]:
    """As few chunks of at most a size as possible, as even as possible."""
    chunks = math.ceil(len(group) / size)
    cuts = [len(group) * i // chunks for i in range(chunks + 1)]
    return (group[a:b] for a, b in itertools.pairwise(cuts))


def _resolve_run(
    settings: dict[str, Any],
    where: str,
    baseline: Baseline | None,
    corpus_facts: Callable[[CorpusSource], CorpusFacts],
) -> PlannedRun:
    config = resolve_config(settings, where, baseline, corpus_facts)
    return PlannedRun(config, corpus_facts(config.corpus_source))
