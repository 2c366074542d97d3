"""The commands `plan` and `sweep`: they know variants, for which torch is loaded."""

import argparse
import json
import shlex
from functools import cache
from typing import Any

from rich.console import Console

from triplu_ray.corpus import Corpus, CorpusSource, check_length, is_at_hand, load_corpus
from triplu_ray.errors import UserError
from triplu_ray.listings import plan_json, print_plan
from triplu_ray.output import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, print_json, stdout
from triplu_ray.plan import CorpusFacts, Plan, make_plan
from triplu_ray.resumption import drop_useless
from triplu_ray.search import Suggestion, suggestions_of
from triplu_ray.selection import chosen_lines
from triplu_ray.sizing import machine_here
from triplu_ray.space import Space, load_space
from triplu_ray.store import Store
from triplu_ray.upkeep import clear_litter, merge_many, set_aside_damaged


def plan_command(options: argparse.Namespace, stderr: Console) -> int:
    """What would run, what is done, and how long the rest takes."""
    store = Store(options.store)
    space = load_space(options.space, options.overrides)
    plan, _ = plan_with_corpora(space, store, stderr, draft=True)
    machine = machine_here(space.header.resources)
    plan = plan.on(machine)
    measured = _measured_rates(store)
    if options.json:
        print_json(plan_json(plan, machine.workers, measured))
    else:
        print_plan(plan, machine.workers, measured, stdout())
    return EXIT_DONE


def sweep_command(options: argparse.Namespace, stderr: Console) -> int:
    """Train what is missing, in as many rounds as choosing takes."""
    store = Store(options.store, stderr.print)
    space = load_space(options.space, options.overrides)
    plan, corpora = plan_with_corpora(space, store, stderr, draft=False)
    facts = {run.config.corpus_source: run.corpus for run in (*plan.runs, *plan.stand_ins)}
    clear_litter(store)
    if set_aside_damaged(store, [run.run_id for run in plan.runs]):
        plan = make_plan(space, facts.__getitem__, *_known(space, store))
    drop_useless(store)
    trained, is_news = 0, True
    known: set[str] = set()
    # A round may choose the runs of the next one, unless what failed is in the way.
    while is_news:
        known |= {run.run_id for run in plan.runs}
        done_before = len(plan.done) - trained
        store.write_record(f"spaces/{space.header.name}/{plan.plan_id}", plan.record())
        for line in chosen_lines(space.header.select, plan.rows(), plan.axes()):
            stderr.print(f"chosen for {line}")
        for study in plan.studies:
            stderr.print(study.line())
        newly_trained, failed, interrupted = _train_missing(options, plan, corpora, store, stderr)
        trained += newly_trained
        if plan.pending and not interrupted:
            plan = make_plan(space, facts.__getitem__, *_known(space, store))
        # Not their number: runs of suggestions that were stopped early go as others come.
        is_news = not known.issuperset(run.run_id for run in plan.runs)
    if merged := merge_many(store):
        stderr.print(f"note: merged the files of {merged:,} runs in the store")
    if options.json:
        print_json(
            {
                "space": space.header.name,
                "runs": len(plan.runs),
                "done_before": done_before,
                "pending": plan.pending,
                "trained": trained,
                "failed": failed,
                "interrupted": interrupted,
            }
        )
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failed else EXIT_DONE


def _train_missing(
    options: argparse.Namespace,
    plan: Plan,
    corpora: dict[str, Corpus],
    store: Store,
    stderr: Console,
) -> tuple[int, list[dict[str, Any]], bool]:
    """How many runs were trained, which cohorts failed, and whether it was interrupted."""
    name = plan.space.header.name
    if not plan.missing and not plan.is_searching:
        stderr.print(f"{name}: all {len(plan.runs)} runs are done")
        return 0, [], False
    stderr.print(
        f"{name}: {len(plan.missing)} of {len(plan.runs)} runs to train, "
        f"{len(plan.done)} done, store {options.store}"
    )

    from triplu_ray.raytune import sweep

    outcome = sweep(plan, corpora, store, stderr)
    for failed in outcome.failed:
        stderr.print(f"failed: runs {', '.join(failed.run_ids)}: {failed.reason}")
    if outcome.interrupted:
        stderr.print(f"interrupted; go on with: {_same_command(options)}")
    else:
        stderr.print(f"{name}: {outcome.trained} runs trained")
    return outcome.trained, [vars(failed) for failed in outcome.failed], outcome.interrupted


def _known(
    space: Space, store: Store
) -> tuple[frozenset[str], dict[str, float | None], dict[str, tuple[Suggestion, ...]]]:
    """Ids of the finished runs and, where the space chooses by them, their losses; suggestions."""
    header = space.header
    records = store.read_records(f"searches/{header.name}") if header.search else []
    results = store.results() if header.chosen_keys else {}
    return frozenset(store.finished_run_ids()), results, suggestions_of(records)


def _same_command(options: argparse.Namespace) -> str:
    """The command line that continues a sweep."""
    words = ["triplu-ray", "sweep", options.space, *options.overrides, "--store", options.store]
    return shlex.join(words)


def plan_with_corpora(
    space: Space, store: Store | None, stderr: Console, *, draft: bool
) -> tuple[Plan, dict[str, Corpus]]:
    """The plan, and the corpora by fingerprint; a draft does not fetch what is not at hand."""
    corpora: dict[str, Corpus] = {}

    @cache
    def load(source: CorpusSource) -> CorpusFacts:
        vocab_size = source.vocab_size or space.header.vocab_size
        if draft and vocab_size is not None and not is_at_hand(source):
            _check_vocab_size(space, vocab_size, f"tokenizer {source.tokenizer}")
            stderr.print(f"note: the corpus {source.corpus} is not here yet: run ids are drafts")
            return CorpusFacts(vocab_size, None, source.assumed_bytes_per_token)
        try:
            corpus = load_corpus(source)
        except UserError as error:
            raise UserError(f"{space.origin}: {error}") from error
        _check_vocab_size(space, corpus.vocab_size, corpus.description)
        stderr.print(f"corpus {corpus.description}")
        corpora[corpus.sha256] = corpus
        return CorpusFacts(corpus.vocab_size, corpus.sha256, corpus.mean_bytes_per_token)

    plan = make_plan(space, load, *(_known(space, store) if store else ()))
    for run in (*plan.runs, *plan.stand_ins):
        if run.corpus.sha256 is not None:
            check_length(corpora[run.corpus.sha256], run.config.context_length, space.origin)
    return plan, corpora


def _check_vocab_size(space: Space, found: int, origin: str) -> None:
    expected = space.header.vocab_size
    if expected is not None and found != expected:
        raise UserError(
            f"{space.origin}: vocab_size: expected a corpus of {expected} entries, "
            f"got {found} from {origin}"
        )


def _measured_rates(store: Store) -> dict[str, float]:
    """Median training FLOPs a second of the runs in the store, by precision."""
    columns = ["flops_per_token", "tokens_per_second", "config"]
    runs = store.read_runs(columns=columns).to_pandas()
    rates = 3 * runs["flops_per_token"] * runs["tokens_per_second"]
    precision = runs["config"].map(lambda config: json.loads(config)["precision"])
    measured = rates[rates > 0].groupby(precision).median()
    return {str(key): float(rate) for key, rate in measured.items()}
