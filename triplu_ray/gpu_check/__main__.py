"""The command line of the check."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from triplu_ray import provenance
from triplu_ray.errors import UserError, reason
from triplu_ray.files import write_atomically
from triplu_ray.gpu_check.agreement import (
    cpu_against_device,
    graph_against_eager,
    member_against_alone,
)
from triplu_ray.gpu_check.check import TINY, Check, Row, Sizes
from triplu_ray.gpu_check.main_setting import main_setting
from triplu_ray.gpu_check.throughput import best_cohorts, throughput

SECTIONS: tuple[Callable[[Check], list[Row]], ...] = (
    cpu_against_device,
    graph_against_eager,
    member_against_alone,
    main_setting,
    throughput,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; 0 if all agreements hold, 1 if not, 2 for a mistake in the arguments."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    try:
        return _check(options, console)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _check(options: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    sizes = TINY if options.quick else Sizes()
    check = Check(options.device, sizes, options.minutes, console)
    place = provenance.place(options.device, torch.get_num_threads())
    check.tell(f"{place}, torch {torch.__version__}, precisions {', '.join(check.precisions)}")
    content: dict[str, Any] = {
        "place": place,
        "torch": torch.__version__,
        "git": provenance.git_sha(),
        "corpus": check.corpus.description,
        "sizes": asdict(sizes),
        "failures": check.failures,
        "skipped": check.skipped,
    }
    _save(content, options.output)  # whether it can, before minutes are spent
    for section in SECTIONS:
        content[section.__name__] = section(check)
        content["seconds"] = time.monotonic() - started
        _save(content, options.output)
    content["best_cohorts"] = best_cohorts(check, content["throughput"])
    _save(content, options.output)
    failures = f"{len(check.failures)} disagreements" if check.failures else "all agree"
    check.tell(f"{failures}, {len(check.skipped)} skipped, {content['seconds']:.0f} s")
    return 1 if check.failures else 0


def _save(content: Mapping[str, Any], path: Path | None) -> None:
    if path is None:
        return
    try:
        write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise UserError(f"--output {path}: cannot be written: {reason(error)}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m triplu_ray.gpu_check",
        description="Hold a GPU against the CPU and measure it.",
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--quick", action="store_true", help="tiny models, a few steps, no compiler"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="where figures go as well")
    parser.add_argument("--minutes", type=float, default=8.0, help="time in all (default: 8)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
