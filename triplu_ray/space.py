"""What to sweep: a YAML file, read into a typed Space.

A space file holds three kinds of keys, all at its top level: those of `Header` (name, baseline,
targets, cohort, ...); configuration keys, which are the fields of `RunConfig` and of the variants
of `ffn.FeedForward` plus `variant` and `hidden: match`; and `grid`, `blocks` and `base`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from triplu_ray.config import (
    FFN_KEYS,
    VARIANTS,
    Positive,
    RunConfig,
    explain,
    ffn_keys_of,
)
from triplu_ray.errors import UserError, brief, did_you_mean, reason
from triplu_ray.search import Search
from triplu_ray.selection import Selection
from triplu_ray.strict_yaml import parse_yaml


def _share_or_whole(amount: float) -> float:
    if 0 < amount < 0.001 or (amount > 1 and amount % 1):
        raise ValueError("expected a whole number, or a share from 0.001 to 1")
    return amount


def _gpus(value: Any) -> Any:
    if value == "auto":
        return value
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("expected a number of at least 0, or auto")
    return _share_or_whole(value)


class Granted(NamedTuple):
    """What a cohort's process gets of a machine."""

    cpu: float = 1.0
    gpu: float = 0.0

    @property
    def device(self) -> str:
        """Where it trains."""
        return "cuda" if self.gpu else "cpu"


class Resources(BaseModel):
    """What one cohort's process is granted; a fraction of a GPU is placement, not isolation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    cpu: Annotated[Positive, AfterValidator(_share_or_whole)] = 1.0
    gpu: Annotated[float | Literal["auto"], BeforeValidator(_gpus)] = "auto"
    """`auto`: one where there are GPUs, else none."""

    def granted(self, *, gpus: bool) -> Granted:
        """On a machine, or a cluster, with GPUs or without."""
        return Granted(self.cpu, float(gpus) if self.gpu == "auto" else self.gpu)


def _auto(value: Any) -> Any:
    return {} if value == "auto" else value


def _members(value: Any) -> Any:
    if value != "auto" and (type(value) is not int or value < 1):
        raise ValueError("expected a number of runs of at least 1, or auto")
    return value


def _switch(value: Any) -> Any:
    if value != "auto" and type(value) is not bool:
        raise ValueError("expected on, off or auto")
    return value


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError("expected letters, digits, '.', '_' and '-'")
    return name


class Header(BaseModel):
    """What a space says of itself, beside the runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, AfterValidator(_plain_name)]
    description: str = ""
    baseline: dict[str, Any] | None = None
    """`{variant: swiglu, hidden: 322}`: whom the others are paired and matched with."""
    targets: list[Positive] = []
    """Validation losses for the tables of tokens-, FLOPs- and seconds-to-target."""
    select: Selection | None = None
    """`{key: learning_rate, values: [1e-4, 1e-3], seeds: [101, 102]}`: see `selection`."""
    search: Search | None = None
    """`{keys: {gain: {low: 0.5, high: 60, log: true}}, num_suggestions: 12}`: see `search`."""
    vocab_size: PositiveInt | None = None
    """What the corpus must have; lets `plan` count parameters before the corpus is there."""
    cohort: Annotated[int | Literal["auto"], BeforeValidator(_members)] = "auto"
    """Runs trained in one process at the most; `auto` see `sizing.cohort_size`."""
    compile: Annotated[bool | Literal["auto"], BeforeValidator(_switch)] = "auto"
    """`on`, `off` (YAML's words for true and false), or if it pays: `sizing.compiling_pays`."""
    resources: Annotated[Resources, BeforeValidator(_auto)] = Resources()
    """Or `auto`: a core, and a GPU where there are any."""
    cpu_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the training FLOPs, what is done on cores alone where cohorts are granted GPUs."""
    max_failures: NonNegativeInt = 3
    """How often a failed cohort is tried again."""
    keep_models: bool = False
    """Whether the store keeps each run's best checkpoint."""
    checkpoint_seconds: Positive = 60.0
    """Wall time between the checkpoints of a cohort."""

    @property
    def chosen_keys(self) -> frozenset[str]:
        """Keys of which `select` or `search` chooses the value."""
        selected = frozenset([self.select.key] if self.select else [])
        return selected.union(self.search.keys if self.search else [])


@dataclass(frozen=True)
class Axis:
    """Values of a key; `when` names the settings under which the axis applies."""

    values: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Block:
    """Settings, and the axes whose product is taken."""

    settings: Mapping[str, Any]
    grid: Mapping[str, Axis]


@dataclass(frozen=True)
class Space:
    """A header and the blocks whose union is swept; `origin` is what an error line names first."""

    header: Header
    blocks: tuple[Block, ...]
    origin: str


def _width(value: Any) -> Any:
    if value != "match" and (type(value) is not int or value < 1):
        raise ValueError("expected a width of at least 1, or match")
    return value


_RUN_TYPES: dict[str, TypeAdapter[Any]] = {
    **{key: TypeAdapter(kind) for key, kind in get_type_hints(RunConfig, None, None, True).items()},
    "hidden": TypeAdapter(Annotated[Any, AfterValidator(_width)]),
    "variant": TypeAdapter(str),
    **dict.fromkeys(FFN_KEYS, TypeAdapter(Any)),
}
del _RUN_TYPES["ffn"]
_STRUCTURE = {"base", "grid", "blocks"}
KEYS = {*Header.model_fields, *_RUN_TYPES, *_STRUCTURE}


def load_space(path: str | Path, overrides: Sequence[str] = ()) -> Space:
    """Read a space file and apply `key=value` overrides; every mistake is a UserError."""
    data = _read_with_base(Path(path))
    space = _build_space(data, str(path))
    for text in overrides:
        data = _overridden(data, text)
    return _build_space(data, " ".join([str(path), *overrides])) if overrides else space


def _read_with_base(path: Path, seen: tuple[Path, ...] = (), named_by: str = "") -> dict[str, Any]:
    """The file's mapping laid over that of its `base`, if it names one."""
    where = f"{named_by}{path}"
    try:
        resolved = path.resolve()
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not YAML: not UTF-8 text") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: cannot be read: {reason(error)}") from error
    if resolved in seen:
        raise UserError(f"{where}: expected another file, this one inherits from itself")
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected a mapping of keys to values, got {brief(data)}")
    _refuse_unknown(data, KEYS, f"{where}: ")
    if "base" not in data:
        return data
    base = data.pop("base")
    if not isinstance(base, str):
        raise UserError(f"{where}: base: expected the path of a space file, got {brief(base)}")
    return _laid_over(
        _read_with_base(path.parent / base, (*seen, resolved), f"{where}: base: "), data
    )


_TAKEN_ENTRY_BY_ENTRY = ("grid", "resources", "baseline", "select", "search")


def _laid_over(inherited: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of `data` replace the inherited ones, wherever those stand at the top level."""
    for key in (*data, *(data["grid"] if isinstance(data.get("grid"), dict) else ())):
        if key not in _TAKEN_ENTRY_BY_ENTRY:
            inherited = _without(inherited, key)
            for chooser in ("select", "search"):
                if key in _chosen(inherited, chooser):
                    inherited = _without(inherited, chooser)
    for key in (*_chosen(data, "select"), *_chosen(data, "search")):
        inherited = _without(inherited, key)
    merged = {**inherited, **data}
    for key in _TAKEN_ENTRY_BY_ENTRY:
        if isinstance(inherited.get(key), dict) and isinstance(data.get(key), dict) and data[key]:
            merged[key] = {**inherited[key], **data[key]}
    return merged


def _chosen(data: Mapping[str, Any], chooser: str) -> list[object]:
    """The keys whose values `select` or `search` chooses, if it names some."""
    given = data.get(chooser)
    named = given.get("key" if chooser == "select" else "keys") if isinstance(given, dict) else None
    return list(named) if isinstance(named, dict) else [named] if isinstance(named, str) else []


def _without(settings: Mapping[str, Any], key: object) -> dict[str, Any]:
    """A mapping without a key and its axis, and without the grid if that was its only axis."""
    kept = {name: value for name, value in settings.items() if name != key}
    grid = kept.get("grid")
    if isinstance(grid, dict) and key in grid:
        kept["grid"] = {axis: values for axis, values in grid.items() if axis != key}
        if not kept["grid"]:
            del kept["grid"]
    return kept


def _overridden(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Set a key as the command line says, wherever the file sets it; a list becomes an axis."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"override {text!r}: expected key=value")
    given = parse_yaml(value, f"override {text!r}")
    parent, _, child = key.partition(".")
    if child and parent in _TAKEN_ENTRY_BY_ENTRY and parent != "grid":
        return _laid_over(data, {parent: {child: given}})
    if key in Header.model_fields:
        return _laid_over(_without(data, key), {key: given})
    _refuse_unknown([key], _RUN_TYPES.keys() | Header.model_fields.keys(), f"override {text!r}: ")
    if "blocks" in data:
        data = {**data, "blocks": [_without(block, key) for block in data["blocks"]]}
    return _laid_over(data, {"grid": {key: given}} if isinstance(given, list) else {key: given})


def _refuse_unknown(keys: Iterable[object], known: Iterable[str], where: str) -> None:
    """Raise for the first key that is not known; `where` ends in `: ` or in the key's parent."""
    known = set(known)
    for key in keys:
        if key not in known:
            raise UserError(f"{where}{key}: unknown key; {did_you_mean(key, known)}")


def _build_space(data: Mapping[str, Any], origin: str) -> Space:
    models = (("resources", Resources), ("select", Selection), ("search", Search))
    for key, model in models:
        if isinstance(data.get(key), dict):
            _refuse_unknown(data[key], model.model_fields, f"{origin}: {key}.")
    try:
        header = Header.model_validate({k: v for k, v in data.items() if k in Header.model_fields})
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error)}") from error
    if header.baseline is not None:
        _check_baseline(header.baseline, origin)
    if header.select is not None:
        _checked_list(header.select.key, header.select.values, f"{origin}: select.values")
        _checked_list("seed", header.select.seeds, f"{origin}: select.seeds")
        for variant, values in header.select.values_for.items():
            where = f"{origin}: select.values_for"
            _checked("variant", variant, where, named=True)
            _checked_list(header.select.key, values, f"{where}.{variant}")
    if header.search is not None:
        _check_search(header, header.search, origin)

    blocks = data.get("blocks", [{}])
    if not isinstance(blocks, list) or not blocks:
        raise UserError(f"{origin}: blocks: expected a list of blocks, got {brief(blocks)}")
    common_grid = _read_grid(data["grid"], origin) if "grid" in data else {}
    common = {key: _checked(key, data[key], origin) for key in data if key in _RUN_TYPES}
    read = []
    for index, block in enumerate(blocks):
        where = f"{origin}: blocks[{index}]" if "blocks" in data else origin
        if not isinstance(block, dict):
            raise UserError(f"{where}: expected a mapping, got {brief(block)}")
        _refuse_unknown(block, {*_RUN_TYPES, "grid"}, f"{where}: ")
        grid = _read_grid(block["grid"], where) if "grid" in block else {}
        settings = {k: _checked(k, v, where) for k, v in block.items() if k != "grid"}
        both = sorted(grid.keys() & settings.keys()) or sorted(
            common_grid.keys() & common.keys() - settings.keys() - grid.keys()
        )
        if both:
            raise UserError(f"{where}: {both[0]}: expected a value or an axis of grid, got both")
        for key in sorted(header.chosen_keys & {*common, *common_grid, *settings, *grid}):
            chooser = "select" if header.select else "search"
            raise UserError(f"{where}: {key}: expected it in {chooser} alone, got both")
        read.append(
            Block(
                {k: v for k, v in {**common, **settings}.items() if k not in grid},
                {k: v for k, v in {**common_grid, **grid}.items() if k not in settings},
            )
        )
    return Space(header, tuple(read), origin)


def _check_search(header: Header, search: Search, origin: str) -> None:
    if header.select is not None:
        raise UserError(f"{origin}: search: expected none beside select, got both")
    for key, ends in search.keys.items():
        for end in ("low", "high"):
            where = f"{origin}: search.keys.{key}.{end}"
            _checked(key, getattr(ends, end), where, named=True)
    for key, value in (search.compare_with or {}).items():
        _checked(key, value, f"{origin}: search.compare_with.{key}", named=True)
    if search.confirm_seeds:
        _checked_list("seed", search.confirm_seeds, f"{origin}: search.confirm_seeds")


def _check_baseline(baseline: Mapping[str, Any], origin: str) -> None:
    _refuse_unknown(baseline, {"variant", "hidden", *FFN_KEYS}, f"{origin}: baseline.")
    for key, value in baseline.items():
        _checked(key, value, f"{origin}: baseline")
    if "variant" not in baseline or not isinstance(baseline.get("hidden"), int):
        raise UserError(f"{origin}: baseline: expected variant and hidden, its width")
    known = {"variant", "hidden", *ffn_keys_of(baseline["variant"])}
    _refuse_unknown(baseline, known, f"{origin}: baseline.")


def _read_grid(grid: Any, where: str) -> dict[str, Axis]:
    if not isinstance(grid, dict) or not grid:
        raise UserError(f"{where}: grid: expected keys with lists of values, got {brief(grid)}")
    _refuse_unknown(grid, _RUN_TYPES, f"{where}: grid.")
    axes = {}
    for key, given in grid.items():
        here = f"{where}: grid.{key}"
        conditions: Any = {}
        if isinstance(given, dict):
            if set(given) != {"values", "when"} or not isinstance(given["when"], dict):
                raise UserError(f"{here}: expected a list, or values and when; got {brief(given)}")
            given, conditions = given["values"], given["when"]
        _refuse_unknown(conditions, _RUN_TYPES, f"{here}.when.")
        when = {
            other: _checked_list(
                other, allowed if isinstance(allowed, list) else [allowed], f"{here}.when.{other}"
            )
            for other, allowed in conditions.items()
        }
        axes[key] = Axis(_checked_list(key, given, here), when)
    return axes


def _checked_list(key: str, values: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise UserError(f"{where}: expected a list of at least one value, got {brief(values)}")
    checked = tuple(_checked(key, value, where, named=True) for value in values)
    for index, value in enumerate(checked):
        if value in checked[:index]:
            raise UserError(f"{where}: expected distinct values, {brief(value)} appears twice")
    return checked


def _checked(key: str, value: Any, where: str, *, named: bool = False) -> Any:
    """The value as the key's type; `where` names the key already if `named`."""
    where = where if named else f"{where}: {key}"
    try:
        value = _RUN_TYPES[key].validate_python(value, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error)}") from error
    if key == "variant" and value not in VARIANTS:
        raise UserError(f"{where}: unknown variant {brief(value)}; {did_you_mean(value, VARIANTS)}")
    return value
