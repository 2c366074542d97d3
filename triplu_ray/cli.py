"""The command line: parse, call, print, exit code. Data on stdout, progress and notes on stderr."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from triplu_ray import __version__
from triplu_ray.corpus import Corpus, CorpusSource, check_length, is_at_hand, load_corpus
from triplu_ray.errors import UserError
from triplu_ray.listings import plan_json, print_plan, variant_rows, variant_table
from triplu_ray.plan import CorpusFacts, Plan, make_plan
from triplu_ray.resumption import drop_useless
from triplu_ray.search import Suggestion, suggestions_of
from triplu_ray.selection import chosen_lines
from triplu_ray.sizing import machine_here
from triplu_ray.space import Header, Space, load_space
from triplu_ray.status import read_status, status_view
from triplu_ray.store import Store
from triplu_ray.upkeep import clear_litter, merge_many, set_aside_damaged

OVERRIDES: dict[str, Any] = {
    "nargs": "*",
    "metavar": "key=value",
    "help": "change the space, such as num_steps=500 or seed=[1,2]",
}
EXIT_DONE, EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `triplu-ray` and return its exit code."""
    options = _parse(arguments)
    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    try:
        code: int = options.run(options, stderr)
    except UserError as error:
        stderr.print(f"triplu-ray: error: {' '.join(str(error).split())}")
        return EXIT_MISTAKE
    except KeyboardInterrupt:
        stderr.print("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `triplu-ray plan ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Words of a list may stand behind options too, which argparse leaves over."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    words = next((getattr(options, name, None) for name in ("overrides", "spaces")), None)
    if rest and (words is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if words is not None:
        words += rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triplu-ray", description="Paired sweeps of feed-forward layers on Ray."
    )
    parser.add_argument("--version", action="version", version=f"triplu-ray {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, run: Any, *, store: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        added.add_argument("--json", action="store_true", help="print one JSON object")
        if store:
            added.add_argument(
                "--store",
                default=os.environ.get("TRIPLU_RAY_STORE") or "results",
                help="folder, s3:// or gs:// address of the results "
                "(default: TRIPLU_RAY_STORE, or else results)",
            )
        return added

    for name, text, run in (
        ("plan", "what would run: runs, cohorts, parameters, FLOPs, time; done and missing", _plan),
        ("sweep", "run what is missing; resumes by itself", _sweep),
    ):
        added = command(name, text, run)
        added.add_argument("space", help="a space file, such as search_spaces/quickstart.yaml")
        added.add_argument("overrides", **OVERRIDES)

    status = command("status", "done, running, failed and missing runs, time left", _status)
    status.add_argument("spaces", nargs="*", metavar="space", help="default: all in the store")
    status.add_argument("--watch", action="store_true", help="again and again, until all is done")
    status.add_argument("--interval", type=float, default=5.0, help="seconds between (default: 5)")

    report = command("report", "tables and figures from the store", _report)
    report.add_argument("spaces", nargs="*", metavar="space", help="default: all in the store")
    report.add_argument("--format", choices=("md", "html", "json", "all"), help="write files")
    report.add_argument("--output", default="reports", help="where they go (default: reports)")

    bench = command(
        "bench", "speed on this machine, as ratios to a plain PyTorch loop", _bench, store=False
    )
    bench.add_argument("space", nargs="?", help="default: the papers' two models")
    bench.add_argument("overrides", **OVERRIDES)
    bench.add_argument("--variants", action="store_true", help="every variant against SwiGLU")
    bench.add_argument("--cohorts", type=int, nargs="+", help="cohort sizes")
    bench.add_argument("--rounds", type=int, default=15, help="turns of each mode (default: 15)")
    bench.add_argument("--steps", type=int, help="of a turn (default: half a second's)")
    bench.add_argument("--output", default="reports", help="its bench/ (default: reports)")

    variants = command(
        "variants", "every variant: formula, width, parameters, FLOPs", _variants, store=False
    )
    variants.add_argument(
        "--d-model", type=int, nargs="+", default=[96, 256], help="widths (default: 96 and 256)"
    )
    return parser


def _plan(options: argparse.Namespace, stderr: Console) -> int:
    store = Store(options.store)
    space = load_space(options.space, options.overrides)
    plan, _ = _make_plan(space, store, stderr, draft=True)
    machine = machine_here(space.header.resources)
    plan = plan.on(machine)
    measured = _measured_rates(store)
    if options.json:
        _print_json(plan_json(plan, machine.workers, measured))
    else:
        print_plan(plan, machine.workers, measured, _stdout())
    return EXIT_DONE


def _sweep(options: argparse.Namespace, stderr: Console) -> int:
    store = Store(options.store, stderr.print)
    space = load_space(options.space, options.overrides)
    plan, corpora = _make_plan(space, store, stderr, draft=False)
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
        _print_json(
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
    import shlex

    words = ["triplu-ray", "sweep", options.space, *options.overrides, "--store", options.store]
    return shlex.join(words)


def _make_plan(
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


def _status(options: argparse.Namespace, stderr: Console) -> int:
    if options.interval <= 0:
        raise UserError(f"--interval: expected more than 0 s, got {options.interval:g}")
    if options.watch and options.json:
        raise UserError("--watch: expected no --json beside it")
    store = Store(options.store, stderr.print)
    found = read_status(store, options.spaces)
    if options.json:
        _print_json({"spaces": [status.json() for status in found]})
    elif not options.watch:
        _stdout().print(status_view(found))
    else:
        with Live(status_view(found), console=_stdout(), auto_refresh=False) as live:
            while any(status.done < status.planned + status.to_come for status in found):
                time.sleep(options.interval)
                found = read_status(store, options.spaces)
                live.update(status_view(found), refresh=True)
    return EXIT_DONE


def _report(options: argparse.Namespace, stderr: Console) -> int:
    from triplu_ray.report import build_report, print_report, report_json, space_names, write_report

    store = Store(options.store)
    names = options.spaces or space_names(store)
    if not names:
        raise UserError(f"store {options.store}: no space was swept into it yet")
    formats = ["md", "html", "json"] if options.format == "all" else [options.format]
    built = []
    for name in names:
        try:
            report = build_report(store, name)
        except UserError as error:
            if options.spaces:
                raise
            stderr.print(f"note: {error}")
            continue
        built.append(report_json(report))
        if options.format:
            folder = write_report(report, store, Path(options.output), formats)
            stderr.print(f"wrote {folder}")
        if not options.json:
            print_report(report, _stdout())
    if options.json:
        _print_json(built[0] if len(options.spaces) == 1 else {"reports": built})
    return EXIT_DONE


def _bench(options: argparse.Namespace, stderr: Console) -> int:
    from triplu_ray import bench
    from triplu_ray.report import print_report

    if options.rounds < 2:
        raise UserError(f"--rounds: expected at least 2, got {options.rounds}")
    if options.steps is not None and options.steps < 1:
        raise UserError(f"--steps: expected at least 1, got {options.steps}")
    if options.cohorts and min(options.cohorts) < 1:
        raise UserError(f"--cohorts: expected sizes of at least 1, got {min(options.cohorts)}")
    if options.variants and (options.space or options.cohorts):
        raise UserError("--variants: expected no space and no --cohorts beside it")
    header, subjects = Header(name="papers"), bench.papers_models()
    if options.space:
        space = load_space(options.space, options.overrides)
        plan, _ = _make_plan(space, None, stderr, draft=True)
        header, subjects = space.header, bench.Subject.of_plan(plan)
    turns = options.rounds, options.steps
    if options.variants:
        content = bench.run_variants(header, *turns, stderr)
        report = bench.variants_report(content["rows"], content["measured_on"])
    else:
        content = bench.run_bench(header, subjects, *turns, options.cohorts, stderr)
        report = bench.bench_report(header.name, content["rows"], content["measured_on"])
    folder = bench.write_bench(report, content, Path(options.output))
    stderr.print(f"wrote {folder}")
    if options.json:
        _print_json(content)
    else:
        print_report(report, _stdout())
    return EXIT_DONE


def _variants(options: argparse.Namespace, _stderr: Console) -> int:
    """Every variant at the width that matches SwiGLU of the papers' size."""
    for d_model in options.d_model:
        if d_model < 1:
            raise UserError(f"--d-model: expected a width of at least 1, got {d_model}")
    rows = variant_rows(options.d_model)
    if options.json:
        _print_json({"variants": rows})
    else:
        _stdout().print(variant_table(rows))
    return EXIT_DONE


def _stdout() -> Console:
    """A terminal's own width, or one that holds a table whole where there is none."""
    width = None if sys.stdout.isatty() else 160
    return Console(highlight=False, markup=False, emoji=False, width=width)


def _print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
