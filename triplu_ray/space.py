"""What to sweep: a YAML file, read into a typed Space.

A space file holds three kinds of keys, all at its top level: those of `Header` (name, baseline,
targets, cohort, ...); configuration keys, which are the fields of `RunConfig` and of the variants
of `ffn.FeedForward` plus `variant` and `hidden: match`; and `grid`, `blocks` and `base`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from triplu_ray.config import FFN_KEYS, VARIANTS, NonNegative, Positive, RunConfig, explain
from triplu_ray.errors import UserError, did_you_mean


class Resources(BaseModel):
    """What one cohort's process is granted; a fraction of a GPU is placement, not isolation."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    cpu: Positive = 1.0
    gpu: NonNegative = 0.0


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
    vocab_size: PositiveInt | None = None
    """What the corpus must have; lets `plan` count parameters before the corpus is there."""
    cohort: PositiveInt = 1
    """Runs trained in one process at the most."""
    resources: Resources = Resources()
    max_failures: NonNegativeInt = 3
    """How often a failed cohort is tried again."""


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


_RUN_TYPES: dict[str, TypeAdapter[Any]] = {
    **{key: TypeAdapter(kind) for key, kind in get_type_hints(RunConfig, None, None, True).items()},
    "hidden": TypeAdapter(Annotated[PositiveInt | Literal["match"], "a width or match"]),
    "variant": TypeAdapter(str),
    **dict.fromkeys(FFN_KEYS, TypeAdapter(Any)),
}
del _RUN_TYPES["ffn"]
_STRUCTURE = {"base", "grid", "blocks"}
KEYS = {*Header.model_fields, *_RUN_TYPES, *_STRUCTURE}


def load_space(path: str | Path, overrides: Sequence[str] = ()) -> Space:
    """Read a space file and apply `key=value` overrides; every mistake is a UserError."""
    data = _read_with_base(Path(path), ())
    origin = str(path)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"override {text!r}: expected key=value")
        _override(data, key.strip(), _parse_yaml(value, f"override {text!r}"), text)
        origin += f" {text}"
    return _build_space(data, origin)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `1e-3` is a number (YAML 1.2) and a repeated key is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"
        keys = [self.construct_object(key, True) for key, _ in node.value if key.tag != merge]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*)(\.[0-9_]*)?[eE][-+]?[0-9]+"),
    list("-+0123456789"),
)


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: not YAML: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not YAML: {error}") from error


def _read_with_base(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The file's mapping laid over that of its `base`, if it names one."""
    if path.resolve() in seen:
        raise UserError(f"{path}: base: expected another file, this one inherits from itself")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not YAML: not UTF-8 text") from error
    data = _parse_yaml(text, str(path))
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise UserError(f"{path}: expected a mapping of keys to values")
    base = data.pop("base", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise UserError(f"{path}: base: expected the path of a space file, got {base!r}")
    inherited = _read_with_base(path.parent / base, (*seen, path.resolve()))
    for key, value in data.items():
        _lay_over(inherited, key, value)
    return inherited


def _lay_over(data: dict[str, Any], key: str, value: Any) -> None:
    """Replace a key; axes, baseline and resources are replaced entry by entry."""
    grid = data.get("grid")
    if key in ("grid", "resources", "baseline") and isinstance(value, dict):
        data[key] = {**(data.get(key) or {}), **value}
        for axis in value if key == "grid" else ():
            data.pop(axis, None)
    else:
        data[key] = value
        if isinstance(grid, dict) and key in grid:
            del grid[key]


def _override(data: dict[str, Any], key: str, value: Any, text: str) -> None:
    """Set a key from the command line, wherever the file sets it; a list becomes an axis."""
    parent, _, child = key.partition(".")
    if child and parent in ("resources", "baseline"):
        _lay_over(data, parent, {child: value})
        return
    if key in Header.model_fields:
        data[key] = value
        return
    if key not in _RUN_TYPES:
        raise UserError(f"override {text!r}: unknown key; {did_you_mean(key, KEYS - _STRUCTURE)}")
    blocks = data.get("blocks") or []
    for part in (data, *(block for block in blocks if isinstance(block, dict))):
        part.pop(key, None)
        if isinstance(part.get("grid"), dict):
            part["grid"].pop(key, None)
    if isinstance(value, list):
        data["grid"] = {**(data.get("grid") or {}), key: value}
    else:
        data[key] = value
    if data.get("grid") == {}:
        del data["grid"]
    for block in blocks:
        if isinstance(block, dict) and block.get("grid") == {}:
            del block["grid"]


def _build_space(data: dict[str, Any], origin: str) -> Space:
    unknown = [key for key in data if key not in KEYS]
    if unknown:
        raise UserError(f"{origin}: {unknown[0]}: unknown key; {did_you_mean(unknown[0], KEYS)}")
    try:
        header = Header.model_validate({k: v for k, v in data.items() if k in Header.model_fields})
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error)}") from error
    if header.baseline is not None:
        _check_baseline(header.baseline, origin)

    blocks = data.get("blocks", [{}])
    if not isinstance(blocks, list) or not blocks:
        raise UserError(f"{origin}: blocks: expected a list of blocks, got {blocks!r}")
    common_grid = _read_grid(data["grid"], origin) if "grid" in data else {}
    common = {key: _checked(key, data[key], origin) for key in data if key in _RUN_TYPES}
    read = []
    for index, block in enumerate(blocks):
        where = f"{origin}: blocks[{index}]" if "blocks" in data else origin
        if not isinstance(block, dict):
            raise UserError(f"{where}: expected a mapping, got {block!r}")
        for key in block:
            if key != "grid" and key not in _RUN_TYPES:
                hint = did_you_mean(str(key), {*_RUN_TYPES, "grid"})
                raise UserError(f"{where}: {key}: unknown key; {hint}")
        grid = _read_grid(block["grid"], where) if "grid" in block else {}
        settings = {k: _checked(k, v, where) for k, v in block.items() if k != "grid"}
        both = sorted(grid.keys() & settings.keys()) or sorted(
            common_grid.keys() & common.keys() - settings.keys() - grid.keys()
        )
        if both:
            raise UserError(f"{where}: {both[0]}: expected a value or an axis of grid, got both")
        read.append(
            Block(
                {k: v for k, v in {**common, **settings}.items() if k not in grid},
                {k: v for k, v in {**common_grid, **grid}.items() if k not in settings},
            )
        )
    return Space(header, tuple(read), origin)


def _check_baseline(baseline: Mapping[str, Any], origin: str) -> None:
    allowed = {"variant", "hidden", *FFN_KEYS}
    for key, value in baseline.items():
        if key not in allowed:
            raise UserError(f"{origin}: baseline.{key}: unknown key; {did_you_mean(key, allowed)}")
        _checked(key, value, f"{origin}: baseline")
    if "variant" not in baseline or not isinstance(baseline.get("hidden"), int):
        raise UserError(f"{origin}: baseline: expected variant and hidden, its width")


def _read_grid(grid: Any, where: str) -> dict[str, Axis]:
    if not isinstance(grid, dict) or not grid:
        raise UserError(f"{where}: grid: expected keys with lists of values, got {grid!r}")
    axes = {}
    for key, given in grid.items():
        if key not in _RUN_TYPES:
            raise UserError(f"{where}: grid.{key}: unknown key; {did_you_mean(key, _RUN_TYPES)}")
        conditions: Any = {}
        if isinstance(given, dict):
            if set(given) != {"values", "when"} or not isinstance(given["when"], dict):
                raise UserError(f"{where}: grid.{key}: expected a list, or values and when")
            given, conditions = given["values"], given["when"]
        values = _checked_list(key, given, f"{where}: grid.{key}")
        when = {}
        for other, allowed in conditions.items():
            if other not in _RUN_TYPES:
                hint = did_you_mean(other, _RUN_TYPES)
                raise UserError(f"{where}: grid.{key}.when.{other}: unknown key; {hint}")
            allowed = allowed if isinstance(allowed, list) else [allowed]
            when[other] = _checked_list(other, allowed, f"{where}: grid.{key}.when.{other}")
        axes[key] = Axis(values, when)
    return axes


def _checked_list(key: str, values: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise UserError(f"{where}: expected a list of at least one value, got {values!r}")
    checked = tuple(_checked(key, value, where, named=True) for value in values)
    for index, value in enumerate(checked):
        if value in checked[:index]:
            raise UserError(f"{where}: expected distinct values, {value!r} appears twice")
    return checked


def _checked(key: str, value: Any, where: str, *, named: bool = False) -> Any:
    """The value as the key's type; `where` names the key already if `named`."""
    where = where if named else f"{where}: {key}"
    try:
        value = _RUN_TYPES[key].validate_python(value, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error)}") from error
    if key == "variant" and value not in VARIANTS:
        raise UserError(f"{where}: unknown variant {value!r}; {did_you_mean(value, VARIANTS)}")
    return value
