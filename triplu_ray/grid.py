"""The combinations of a block's axes."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from triplu_ray.config import FFN_KEYS, ffn_keys_of
from triplu_ray.errors import UserError
from triplu_ray.space import Axis, Block

MAX_COMBINATIONS = 1_000_000
"""Of one block; more is a slip, and would take minutes to list."""


def expand(block: Block, where: str) -> Iterator[dict[str, Any]]:
    """Every combination of a block's axes that applies, each one once.

    An axis whose condition is not met is left out, and so is a variant's key (gain, degree, ...)
    for the variants that have no such key: both then count once, not once for every value.
    """
    if "variant" not in block.settings and "variant" not in block.grid:
        raise UserError(f"{where}: variant: expected a value or an axis, got none")
    size = math.prod(len(axis.values) for axis in block.grid.values())
    if size > MAX_COMBINATIONS:
        raise UserError(
            f"{where}: grid: expected at most {MAX_COMBINATIONS:,} combinations, got {size:,}"
        )
    seen = set()
    used: set[str] = set()
    for values in itertools.product(*(axis.values for axis in block.grid.values())):
        combination = {**block.settings, **dict(zip(block.grid, values, strict=True))}
        foreign = FFN_KEYS - ffn_keys_of(combination["variant"])
        settings = {key: value for key, value in combination.items() if key not in foreign}
        # What does not apply cannot make another axis apply either.
        while excluded := [
            key for key in settings if key in block.grid and not _applies(block.grid[key], settings)
        ]:
            for key in excluded:
                del settings[key]
        if "variant" not in settings:
            raise UserError(f"{where}: grid.variant.when: expected to be met by every run")
        used |= settings.keys()
        identity = repr(sorted(settings.items()))
        if identity not in seen:
            seen.add(identity)
            yield settings
    unused = sorted((block.settings.keys() | block.grid.keys()) - used)
    if unused:
        raise UserError(f"{where}: {unused[0]}: applies to no run of the space")


def _applies(axis: Axis, settings: Mapping[str, Any]) -> bool:
    return all(settings.get(key) in allowed for key, allowed in axis.when.items())
