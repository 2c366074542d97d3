import io
import json
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
import pytest
from fabricate import FEED_FORWARD, curve, planned_run, stored_run, write_space
from rich.console import Console

from triplu_ray.errors import UserError
from triplu_ray.report import (
    Report,
    build_report,
    print_report,
    report_json,
    space_names,
    to_html,
    to_markdown,
    write_report,
)
from triplu_ray.store import Store

LOSSES = {"triplu": 1.065, "quad_prod": 1.078, "swiglu": 1.101, "double_prod": 1.104}
HOSTILE = "<script>alert(1)</script>|*_`![x](javascript:1)"


def loss(run: Any) -> float:
    """Every variant's loss, a little worse with each seed."""
    return LOSSES.get(run["variant"], 1.2) + 0.004 * float(run["seed"]) ** 2


@pytest.fixture
def main_report(store: Store) -> Report:
    planned = [planned_run(variant, seed) for variant in FEED_FORWARD for seed in (1, 2, 3)]
    write_space(store, "main_1m", planned, loss, targets=(1.10, 1.08))
    sweep = {"space": "main_1m", "started_at": "2026-01-01T00:00:00", "wall_seconds": 1000.0}
    sweep |= {"ray_start_seconds": 4.0, "workers": 2, "busy_seconds": 1900.0, "trained": 12}
    store.write_record("sweeps/a", {**sweep, "failed": []})
    return build_report(store, "main_1m")


def terminal(report: Report, width: int = 160) -> str:
    output = io.StringIO()
    print_report(report, Console(file=output, width=width, color_system=None))
    return output.getvalue()


class Page(HTMLParser):
    """Checks that tags close in order, and keeps what the page holds."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str | None] = Counter()
        self.links: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids.update(value for name, value in attrs if name == "id")
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# Contents


def test_headline_says_what_came_out(main_report: Report) -> None:
    assert main_report.headline[0] == (
        "triplu beats swiglu in 3 of 3 seeds: mean paired gap +0.0360 (95 % interval +0.0360 to "
        "+0.0360), exact p 0.25, the smallest that 3 seeds can give, 0.75 after Holm over 3 "
        "variants."
    )
    assert main_report.headline[2].startswith("double_prod loses to swiglu in 3 of 3 seeds")
    assert main_report.warnings == [
        "with 3 seeds no exact test can give p below 0.25",
        "what the headline begins with is the best of 3 variants, picked on the seeds that are "
        "reported, which flatters it; fresh seeds would settle it",
    ]


def test_sections_follow_from_the_axes(main_report: Report, store: Store) -> None:
    titles = [section.title for section in main_report.sections]
    assert titles == [
        "Setting", "Variants", "Paired gaps", "Degree", "Cost", "Beside the paper", "Provenance"
    ]  # fmt: skip
    planned = [
        planned_run(variant, seed, learning_rate=rate, num_layers=depth)
        for variant in ("swiglu", "triplu")
        for seed in (1, 2)
        for rate in (1e-4, 1e-3)
        for depth in (2, 4)
    ]
    planned += [planned_run("triplu", 1, gain=gain, num_layers=2) for gain in (1.0, 10.0)]
    write_space(store, "axes", planned, loss)
    report = build_report(store, "axes")
    assert [section.title for section in report.sections] == [
        "Setting", "Variants", "Paired gaps", "Depth", "Learning rate", "Gain", "Cost", "Provenance"
    ]  # fmt: skip
    names = [table.name for table in report.tables()]
    assert {"by_num_layers", "by_learning_rate", "best_learning_rate", "by_gain"} < set(names)
    assert len(names) == len(set(names))
    panels = {figure.name: len(figure.draw().axes) for figure in report.figures()}
    assert panels == {
        "loss_curves": 5, "paired_seeds": 4, "gap_curves": 4, "loss_by_num_layers": 3,
        "loss_by_learning_rate": 2, "loss_by_gain": 5, "loss_by_cost": 9,
    }  # fmt: skip


def test_markdown_tables_are_whole(main_report: Report) -> None:
    text = to_markdown(main_report)
    # The last training loss is 0.02 below the last validation loss.
    assert (
        "| triplu | 1.0837 | 0.0162 | 2.955 | 1.0867 | 1.0637 | 3 | 242 | 5 | 282,624 | +0.14% |"
    ) in text
    assert "| triplu | +0.0360 | 3/3 | +0.0360 | +0.0360 | +0.0360 |" in text
    assert "| triplu | paper | 282,624 | 1.0637 | 0.0031 | 2.897 | 70.7 | 331.8 |" in text
    assert "| workers' time outside cohorts | 5.0%: start of Ray and of workers, " in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for above, below in pairwise(rows):
        if below.startswith("| :--") or below.startswith("| --:"):
            assert above.count("|") == below.count("|")


def test_html_is_one_whole_file(main_report: Report) -> None:
    page = Page(to_html(main_report))
    assert page.open == []
    assert page.tags["table"] == len(main_report.tables())
    assert page.tags["svg"] == len(main_report.figures())
    assert page.tags["img"] == page.tags["link"] == page.tags["script"] == 0
    assert all(link is not None and link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links if link} <= set(page.ids)
    assert max(page.ids.values()) == 1
    for figure in main_report.figures():
        assert figure.images[0].startswith(b"\x89PNG")
        assert "currentColor" not in figure.images[1]


def test_json_has_raw_numbers_and_no_nan(main_report: Report) -> None:
    content = json.loads(json.dumps(report_json(main_report), allow_nan=False))
    assert content["space"] == "main_1m"
    first = content["tables"]["gap_statistics"][0]
    assert first["label"] == "triplu"
    assert first["mean_gap"] == pytest.approx(0.036)
    assert first["bca_low"] is first["bca_high"] is None
    gaps = content["tables"]["paired_gaps"]
    assert [gap["seed"] for gap in gaps if gap["label"] == "triplu"] == [1, 2, 3]
    assert content["tables"]["variants"][-1]["degree"] == 2
    assert content["tables"]["cost_to_target"][0]["tokens"] is None


def test_terminal_leaves_columns_out_rather_than_wrapping(main_report: Report) -> None:
    wide, narrow = terminal(main_report, 160), terminal(main_report, 72)
    assert "tokens/s" in wide
    assert "warning: with 3 seeds" in wide
    assert "Left out for want of width: " in narrow
    assert max(map(len, narrow.splitlines())) <= 72
    assert "triplu" in narrow


# Files


def test_equal_reports_give_equal_files(main_report: Report, store: Store, tmp_path: Path) -> None:
    first = write_report(main_report, store, tmp_path / "first")
    second = write_report(build_report(store, "main_1m"), store, tmp_path / "second")
    names = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    assert names == sorted(
        ["report.md", "report.html", "report.json", "runs.parquet", "evals.parquet"]
        + [f"figures/{figure.name}.png" for figure in main_report.figures()]
        + [f"figures/{figure.name}.svg" for figure in main_report.figures()]
        + ["spaces/main_1m/space.json"]
    )
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    for name in ("report.md", "report.json"):
        assert str(tmp_path) not in (first / name).read_text()


def test_only_the_runs_of_the_space_are_written(main_report: Report, store: Store, tmp_path: Path) -> None:  # fmt: skip  # noqa: E501
    other = stored_run(planned_run("triplu", 9), 1.0)
    store.write_run(other, curve(other))
    folder = write_report(main_report, store, tmp_path, ["json"])
    assert pq.read_table(folder / "runs.parquet").num_rows == 12
    assert pq.read_table(folder / "evals.parquet").num_rows == 12 * 21
    assert not (folder / "report.md").exists()
    assert not (folder / "figures").exists()


def test_a_reports_folder_can_be_reported_again(main_report: Report, store: Store, tmp_path: Path) -> None:  # fmt: skip  # noqa: E501
    folder = write_report(main_report, store, tmp_path, ["json"])
    again = build_report(Store(str(folder)), "main_1m")
    assert to_markdown(again) == to_markdown(main_report)


def test_drawing_leaves_no_trace(main_report: Report) -> None:
    before = dict(mpl.rcParams)
    assert all(figure.images for figure in main_report.figures())
    assert dict(mpl.rcParams) == before
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


# Odd stores


def test_unknown_spaces_and_spaces_without_runs_are_mistakes(store: Store) -> None:
    with pytest.raises(UserError, match="no space 'x'; the store has no spaces"):
        build_report(store, "x")
    write_space(store, "depth", [planned_run("swiglu", 1)], lambda _: None)
    with pytest.raises(UserError, match="no space 'dept'; did you mean 'depth'"):
        build_report(store, "dept")
    with pytest.raises(
        UserError, match="space 'depth': none of its runs is finished; known spaces: depth"
    ):
        build_report(store, "depth")
    assert space_names(store) == ["depth"]


@pytest.mark.parametrize(
    ("variants", "seeds", "baseline", "words"),
    [
        (["triplu"], [1, 2, 3], None, "the space names no baseline"),
        (["triplu"], [1, 2, 3], "swiglu", "no run of the baseline swiglu"),
        (["swiglu"], [1, 2], "swiglu", "nothing is paired with it"),
        (["swiglu", "triplu"], [7], "swiglu", "one seed says nothing about luck"),
    ],
)
def test_odd_spaces_still_report(
    store: Store, variants: list[str], seeds: list[int], baseline: str | None, words: str
) -> None:
    planned = [planned_run(variant, seed) for variant in variants for seed in seeds]
    write_space(store, "odd", planned, loss, baseline=baseline, targets=(1.1,))
    report = build_report(store, "odd")
    assert words in " ".join(to_markdown(report).split())
    assert Page(to_html(report)).open == []
    assert words in " ".join(terminal(report).split())
    json.dumps(report_json(report), allow_nan=False)


def test_a_space_that_only_diverged_still_reports(store: Store) -> None:
    planned = [planned_run(variant, seed) for variant in ("swiglu", "triplu") for seed in (1, 2)]
    write_space(store, "hot", planned, lambda _: 9.0, status="diverged", best_val_loss=None,
                final_val_loss=None, git_sha=None, hardware=None)  # fmt: skip
    report = build_report(store, "hot")
    assert report.headline == ["No run finished: 4 diverged, 0 are missing."]
    assert report.warnings[0].startswith("4 of 4 runs diverged: swiglu seed 1, ")
    assert Page(to_html(report)).open == []
    assert "| code | unknown |" in to_markdown(report)


def test_the_last_sweeps_failures_are_named(store: Store) -> None:
    planned = [planned_run("swiglu", seed) for seed in (1, 2)]
    write_space(store, "cut", planned, lambda run: 1.1 if run["seed"] == 1 else None)
    failure = {"cohort_id": "c9", "run_ids": [planned[1]["run_id"]], "reason": "worker died"}
    sweep = {"space": "cut", "started_at": "2026", "wall_seconds": 9.0, "ray_start_seconds": 4.0}
    sweep |= {"workers": 1, "busy_seconds": 5.0, "trained": 1, "failed": [failure]}
    store.write_record("sweeps/a", sweep)
    assert "cohort c9 failed in the last sweep: worker died" in build_report(store, "cut").warnings


def test_a_short_run_is_not_set_beside_the_paper(store: Store, tmp_path: Path) -> None:
    planned = [planned_run(variant, 1, num_steps=50) for variant in ("swiglu", "triplu")]
    write_space(store, "main_1m", planned, loss)
    words = "no run has the settings of the paper's tables"
    assert words in build_report(store, "main_1m").warnings
    assert words not in build_report(store, "main_1m", paper=tmp_path / "absent.yaml").warnings


def test_plans_of_one_name_are_one_space(store: Store) -> None:
    planned = [planned_run(variant, seed) for variant in ("swiglu", "triplu") for seed in (1, 2)]
    write_space(store, "grown", planned[:2], loss, targets=(1.1,))
    plan = {"space": "grown", "description": "", "baseline": "swiglu", "targets": [1.0]}
    store.write_record("spaces/grown/second", {**plan, "runs": planned[1:]})
    report = build_report(store, "grown")
    assert len(report.record["runs"]) == 4
    assert report.record["targets"] == [1.1, 1.0]
    assert "2 of 4 runs missing: triplu seed 1, triplu seed 2" in report.warnings


def test_hostile_names_are_text(store: Store) -> None:
    planned = [planned_run(variant, seed) for variant in ("swiglu", HOSTILE) for seed in (1, 2)]
    write_space(store, "evil", planned, loss, hardware=HOSTILE)
    store.write_record("spaces/evil/plan", {
        "space": "evil", "description": f"# {HOSTILE}\n\n- $x$", "baseline": "swiglu",
        "targets": [], "runs": planned,
    })  # fmt: skip
    report = build_report(store, "evil")
    page = Page(to_html(report))
    assert page.open == []
    assert page.tags["script"] == page.tags["a"] == page.tags["img"] == page.tags["em"] == 0
    assert page.tags["h1"] == 1
    assert HOSTILE in terminal(report, 400)
    rows = [line for line in to_markdown(report).splitlines() if line.startswith("| ")]
    assert not any("<script" in line.replace(r"\<", "") for line in rows)
