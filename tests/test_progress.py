import io
import itertools
from dataclasses import replace

import pytest
from rich.console import Console
from spacefiles import SMALL, plan_of

from triplu_ray import progress as progress_module
from triplu_ray.plan import Cohort
from triplu_ray.progress import SweepProgress


class Clock:
    """Time that passes when told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def cohorts(*, cohort: int = 1, num_steps: int = 1000) -> tuple[Cohort, ...]:
    """Two seeds of SwiGLU, whose cohorts cost the same."""
    grid = {"seed": [1, 2], "variant": ["swiglu"]}
    return plan_of({**SMALL, "cohort": cohort, "num_steps": num_steps, "grid": grid}).cohorts


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    # The width keeps long lines whole, as the command line's console does.
    return Console(file=text, force_terminal=terminal, width=200, markup=False), text


def test_plain_lines_tell_who_finished_and_what_is_left(clock: Clock) -> None:
    first, second = cohorts()
    out, text = console()
    with SweepProgress(out, [first, second]) as shown:
        shown.started(first.cohort_id)
        clock.now += 10
        shown.finished(first.cohort_id)  # half of the work in 10 s: 10 s more
        clock.now += 5
        shown.finished(second.cohort_id)
    assert text.getvalue().splitlines() == [
        "finished swiglu L2 lr 0.0003 seed 1; 1 of 2 runs, about 10 s left",
        "finished swiglu L2 lr 0.0003 seed 2; 2 of 2 runs, about 0 s left",
    ]


def test_plain_signs_of_life_come_every_half_minute(clock: Clock) -> None:
    (cohort,) = cohorts(cohort=2)
    out, text = console()
    with SweepProgress(out, [cohort]) as shown:
        for step in range(0, 700, 100):
            shown.reached(cohort.cohort_id, step, 1.25, 45_600.0)
            clock.now += 15
    assert text.getvalue().splitlines() == [
        # After 30 s a fifth is done: 30 / 0.2 x 0.8 = 120 s = 2 min are left.
        "0 of 2 runs, about 2 min left; swiglu L2 lr 0.0003 seed 1, 2: "
        "step 200 of 1,000  best loss 1.2500  45.6 k tokens/s",
        "0 of 2 runs, about 2 min left; swiglu L2 lr 0.0003 seed 1, 2: "
        "step 400 of 1,000  best loss 1.2500  45.6 k tokens/s",
        "0 of 2 runs, about 60 s left; swiglu L2 lr 0.0003 seed 1, 2: "
        "step 600 of 1,000  best loss 1.2500  45.6 k tokens/s",
    ]


def test_what_is_not_known_is_not_told(clock: Clock) -> None:
    cohort, _ = cohorts()
    out, text = console()
    with SweepProgress(out, [cohort]) as shown:
        clock.now += 31
        shown.reached(cohort.cohort_id, 0, None, None)
    assert text.getvalue() == "0 of 1 runs; swiglu L2 lr 0.0003 seed 1: step 0 of 1,000\n"


def test_time_left_does_not_count_what_an_earlier_sweep_did(clock: Clock) -> None:
    first, second = cohorts()
    out, text = console()
    with SweepProgress(out, [first, second]) as shown:
        shown.reached(first.cohort_id, 500, 1.0, None)  # goes on from a checkpoint
        clock.now += 10
        shown.finished(first.cohort_id)  # a quarter of all in 10 s, half of all is left
    assert text.getvalue().endswith("1 of 2 runs, about 20 s left\n")


def test_time_left_is_weighed_by_flops(clock: Clock) -> None:
    grid = {"variant": ["swiglu"], "num_steps": [1000, 3000]}
    short, long = plan_of({**SMALL, "grid": grid}).cohorts
    out, text = console()
    with SweepProgress(out, [short, long]) as shown:
        clock.now += 20
        shown.finished(short.cohort_id)
    assert text.getvalue().endswith("1 of 2 runs, about 60 s left\n")


def test_failures_and_retries_are_told_with_their_reason(clock: Clock) -> None:
    cohort, _ = cohorts()
    out, text = console()
    with SweepProgress(out, [cohort]) as shown:
        shown.retried(cohort.cohort_id, "OSError: [/gone] [red]")
        clock.now += 10
        shown.failed(cohort.cohort_id, "ValueError: [0]")
    assert text.getvalue().splitlines() == [
        "again swiglu L2 lr 0.0003 seed 1: OSError: [/gone] [red]",
        "failed swiglu L2 lr 0.0003 seed 1: ValueError: [0]",
    ]


def test_suggestions_count_before_they_are_known(clock: Clock) -> None:
    first, second = cohorts()
    out, text = console()
    runs = [run for cohort in (first, second, second) for run in cohort.runs]
    with SweepProgress(out, [], runs) as shown:
        shown.added(replace(first, values="gain 4.7"))
        clock.now += 20
        shown.finished(first.cohort_id)
        shown.added(replace(second, values="gain 9"))
        shown.pruned(second.cohort_id)
    assert text.getvalue().splitlines() == [
        # A third is done: 40 s are left.
        "finished swiglu L2 lr 0.0003 seed 1 gain 4.7; 1 of 3 runs, about 40 s left",
        "stopped early swiglu L2 lr 0.0003 seed 2 gain 9; 1 of 2 runs, about 10 s left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5_399, "90 min"), (5_400, "1.5 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert progress_module.duration(seconds) == text


def test_a_terminal_shows_a_line_for_every_running_cohort() -> None:
    first, second = cohorts()
    out, text = console(terminal=True)
    with SweepProgress(out, [first, second]) as shown:
        for cohort in (first, second):
            shown.started(cohort.cohort_id)
        shown.started(first.cohort_id)  # told again after a retry: still one line
        shown.reached(first.cohort_id, 250, 1.5, 40_000.0)
        assert shown._display is not None
        tasks = {str(task.description): task for task in shown._display.tasks}
        assert list(tasks) == [
            "all runs",
            "swiglu L2 lr 0.0003 seed 1",
            "swiglu L2 lr 0.0003 seed 2",
        ]
        assert tasks["swiglu L2 lr 0.0003 seed 1"].completed == 0.25
        assert tasks["all runs"].completed == pytest.approx(0.125)
        shown.finished(first.cohort_id)
        shown.retried(second.cohort_id, "lost its node")
        shown.failed(second.cohort_id, "gave up")
        assert [task.description for task in shown._display.tasks] == ["all runs"]
        assert shown._display.tasks[0].fields["text"].startswith("1 of 2 runs")
    assert "finished swiglu" in text.getvalue()


def test_a_terminal_keeps_no_bar_at_the_end() -> None:
    cohort, _ = cohorts()
    out, text = console(terminal=True)
    with SweepProgress(out, [cohort]) as shown:
        shown.started(cohort.cohort_id)
        shown.finished(cohort.cohort_id)
    # Cursor up and erase: the bar's lines are taken away again.
    assert "\x1b[2K" in text.getvalue()
    last = text.getvalue().rpartition("\x1b[2K")[2]
    assert "all runs" not in last


@pytest.mark.parametrize("terminal", [False, True])
def test_events_in_any_order_are_shown(terminal: bool) -> None:
    cohort, _ = cohorts()
    details = {"started": (), "reached": (10, None, 0.0), "retried": ("lost its node",)}
    for order in itertools.permutations(details):
        out, text = console(terminal=terminal)
        with SweepProgress(out, [cohort]) as shown:
            for event in order:
                getattr(shown, event)(cohort.cohort_id, *details[event])
            shown.finished(cohort.cohort_id)
        assert "1 of 1 runs" in text.getvalue()
