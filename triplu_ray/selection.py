"""Two stages: a key's value is chosen for each variant on seeds apart, then evaluated. Pure.

Runs of a space that are equal but for the seed are a group. Its candidates are the same runs at
every value of the key on every selection seed; when all of them have a result, the group takes the
value of the lowest mean loss, and its own runs are known.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict

from triplu_ray.choice import choose
from triplu_ray.config import RunConfig
from triplu_ray.errors import UserError, brief, did_you_mean

SELECTABLE = {k for k, kind in get_type_hints(RunConfig).items() if kind in (int, float)}
SELECTABLE -= {"seed", "hidden"}
"""The keys that may be selected: the numbers that every run has."""


def _selectable(key: str) -> str:
    if key not in SELECTABLE:
        raise ValueError(
            f"expected a number that every run has, got {brief(key)}; "
            f"{did_you_mean(key, SELECTABLE)}"
        )
    return key


class Selection(BaseModel):
    """Which key is chosen for each variant, out of which values, on which seeds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    key: Annotated[str, AfterValidator(_selectable)]
    values: list[Any]
    values_for: dict[str, list[Any]] = {}
    """In place of `values`, for variants whose best may lie elsewhere."""
    seeds: list[Any]

    def values_of(self, variant: str) -> list[Any]:
        """What is tried for a variant."""
        return self.values_for.get(variant, self.values)


class Identified(Protocol):
    """Anything with the id of a run."""

    @property
    def run_id(self) -> str:
        """The run's id."""


Run = TypeVar("Run", bound=Identified)


def two_stages(
    select: Selection,
    wanted: Iterable[tuple[dict[str, Any], str]],
    resolve: Callable[[dict[str, Any], str], Run],
    results: Mapping[str, float | None],
    origin: str,
) -> tuple[list[Run], list[Run]]:
    """All candidates and the runs whose value is chosen; and those that wait for theirs.

    These stand at their first value, whatever will be chosen.

    `wanted` are the settings of the space's runs, without the key, and where they stand; `resolve`
    makes a run of both. `results` has the best loss of finished runs by id, None if diverged.
    Raises UserError, which names the space by its `origin`, for a seed that is of both kinds and
    for values of a variant that the space has not.
    """
    candidates: list[Run] = []
    evaluations: list[Run] = []
    waiting: dict[str, Run] = {}
    chosen: dict[str, Any] = {}
    foreign = dict(select.values_for)
    for settings, where in wanted:
        seed = settings.get("seed", RunConfig.model_fields["seed"].default)
        if seed in select.seeds:
            raise UserError(
                f"{where}: select.seeds: expected seeds apart from those of the space, got {seed} "
                "in both"
            )
        values = select.values_of(settings["variant"])
        foreign.pop(settings["variant"], None)
        group = repr(sorted({**settings, "seed": None}.items()))
        if group not in chosen:
            grid = [
                [
                    resolve({**settings, select.key: value, "seed": apart}, where)
                    for apart in select.seeds
                ]
                for value in values
            ]
            candidates += (run for row in grid for run in row)
            chosen[group] = _chosen(values, grid, results)
        value = chosen[group]
        at = values[0] if value is None else value
        run = resolve({**settings, select.key: at}, where)
        if value is None:
            waiting[run.run_id] = run
        else:
            evaluations.append(run)
    for variant in foreign:
        raise UserError(f"{origin}: select.values_for.{variant}: applies to no run of the space")
    return [*candidates, *evaluations], list(waiting.values())


def _chosen(
    values: Sequence[Any],
    grid: Sequence[Sequence[Identified]],
    results: Mapping[str, float | None],
) -> Any:
    """The best of the values, or None while a candidate `[values, seeds]` has no result."""
    if any(run.run_id not in results for row in grid for run in row):
        return None
    return values[choose([[results[run.run_id] for run in row] for row in grid])]


def chosen_lines(
    select: Selection | None, rows: Iterable[Mapping[str, Any]], axes: Iterable[str]
) -> list[str]:
    """What was chosen for whom: `triplu num_layers=2: learning_rate 0.001`, from a plan's rows."""
    if select is None:
        return []
    named = [axis for axis in axes if axis not in ("variant", "hidden", "seed", select.key)]
    lines = []
    for row in rows:
        if row["seed"] not in select.seeds:
            details = [f"{axis}={row[axis]}" for axis in named if row[axis] is not None]
            name = " ".join([row["variant"], *details])
            lines.append(f"{name}: {select.key} {row[select.key]:g}")
    return list(dict.fromkeys(lines))
