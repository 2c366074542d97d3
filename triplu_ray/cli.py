"""The command line: parse, call, print, exit code. Data on stdout, progress and notes on stderr."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from triplu_ray import __version__
from triplu_ray.errors import UserError
from triplu_ray.output import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISTAKE, print_json, stdout
from triplu_ray.status import read_status, status_view
from triplu_ray.store import Store

OVERRIDES: dict[str, Any] = {
    "nargs": "*",
    "metavar": "key=value",
    "help": "change the space, such as num_steps=500 or seed=[1,2]",
}


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
    from triplu_ray.commands import plan_command

    return plan_command(options, stderr)


def _sweep(options: argparse.Namespace, stderr: Console) -> int:
    from triplu_ray.commands import sweep_command

    return sweep_command(options, stderr)


def _status(options: argparse.Namespace, stderr: Console) -> int:
    if options.interval <= 0:
        raise UserError(f"--interval: expected more than 0 s, got {options.interval:g}")
    if options.watch and options.json:
        raise UserError("--watch: expected no --json beside it")
    store = Store(options.store, stderr.print)
    found = read_status(store, options.spaces)
    if options.json:
        print_json({"spaces": [status.json() for status in found]})
    elif not options.watch:
        stdout().print(status_view(found))
    else:
        with Live(status_view(found), console=stdout(), auto_refresh=False) as live:
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
            print_report(report, stdout())
    if options.json:
        print_json(built[0] if len(options.spaces) == 1 else {"reports": built})
    return EXIT_DONE


def _bench(options: argparse.Namespace, stderr: Console) -> int:
    from triplu_ray import bench
    from triplu_ray.commands import plan_with_corpora
    from triplu_ray.report import print_report
    from triplu_ray.space import Header, load_space

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
        plan, _ = plan_with_corpora(space, None, stderr, draft=True)
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
        print_json(content)
    else:
        print_report(report, stdout())
    return EXIT_DONE


def _variants(options: argparse.Namespace, _stderr: Console) -> int:
    """Every variant at the width that matches SwiGLU of the papers' size."""
    from triplu_ray.listings import variant_rows, variant_table

    for d_model in options.d_model:
        if d_model < 1:
            raise UserError(f"--d-model: expected a width of at least 1, got {d_model}")
    rows = variant_rows(options.d_model)
    if options.json:
        print_json({"variants": rows})
    else:
        stdout().print(variant_table(rows))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
