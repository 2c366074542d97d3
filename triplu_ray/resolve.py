"""From the settings of a run, as a space has them, to its configuration."""

import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Protocol

from pydantic import ValidationError

from triplu_ray.config import FFN_KEYS, RunConfig, explain, resolve_ffn
from triplu_ray.corpus import CorpusSource
from triplu_ray.errors import UserError
from triplu_ray.ffn import FeedForwardConfig
from triplu_ray.space import Space

Baseline = tuple[FeedForwardConfig, int]
"""A layer and its width."""


class BytesPerToken(Protocol):
    """What a budget of bytes asks of a corpus."""

    @property
    def bytes_per_token(self) -> Fraction | float | None:
        """UTF-8 bytes of the training text over its tokens; None if unknown."""


def resolve_baseline(space: Space) -> Baseline | None:
    """Whom the runs of a space are paired with; None if it names no baseline."""
    baseline = space.header.baseline
    if baseline is None:
        return None
    ffn = resolve_ffn(baseline["variant"], baseline, f"{space.origin}: baseline")
    return ffn, baseline["hidden"]


def resolve_config(
    settings: Mapping[str, Any],
    where: str,
    baseline: Baseline | None,
    corpus_facts: Callable[[CorpusSource], BytesPerToken],
) -> RunConfig:
    """The configuration of a run's settings; UserError, which begins with `where`, if it has none.

    A budget of bytes becomes `num_steps`, `hidden: match` a width.
    """
    settings = dict(settings)
    ffn = resolve_ffn(settings.pop("variant"), settings, where)
    fields = {key: value for key, value in settings.items() if key not in FFN_KEYS}
    if fields.get("hidden", "match") == "match":
        if baseline is None:
            raise UserError(f"{where}: hidden: match needs a baseline with variant and hidden")
        d_model = fields.get("d_model", RunConfig.model_fields["d_model"].default)
        fields["hidden"] = matched_width(ffn, *baseline, d_model, where)
    fields["ffn"] = ffn
    if fields.get("train_budget_bytes") is not None:
        fields["num_steps"] = _steps_of_budget(fields, corpus_facts, where)
    return _validated(fields, where)


def _validated(fields: Mapping[str, Any], where: str) -> RunConfig:
    try:
        return RunConfig.model_validate(fields)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error)}") from error


def _steps_of_budget(
    fields: Mapping[str, Any], corpus_facts: Callable[[CorpusSource], BytesPerToken], where: str
) -> int:
    """Whole updates whose token positions stand for at most so many bytes of text; at least 1."""
    if "num_steps" in fields:
        raise UserError(
            f"{where}: num_steps: expected none beside train_budget_bytes, from which it follows, "
            f"got {fields['num_steps']}"
        )
    endless = _validated({**fields, "num_steps": sys.maxsize}, where)
    bytes_per_token = corpus_facts(endless.corpus_source).bytes_per_token
    if bytes_per_token is None:
        raise UserError(
            f"{where}: train_budget_bytes: expected tokenizer: bbpe beside it, whose tokens' bytes "
            f"are known, got {endless.tokenizer}"
        )
    tokens = Fraction(fields["train_budget_bytes"]) / Fraction(bytes_per_token)
    return max(1, tokens // endless.tokens_per_step)


def matched_width(
    ffn: FeedForwardConfig,
    baseline: FeedForwardConfig,
    baseline_hidden: int,
    d_model: int,
    where: str = "",
) -> int:
    """The width whose parameters come nearest the baseline's; of two equally near, the larger.

    All else being equal between the two models, a layer's parameters decide.
    """
    wanted = baseline.num_params(d_model, baseline_hidden)
    width = 1
    while ffn.num_params(d_model, 2 * width) <= wanted:
        width *= 2
    step = width
    while step:
        if ffn.num_params(d_model, width + step) <= wanted:
            width += step
        step //= 2
    below, above = (abs(ffn.num_params(d_model, w) - wanted) for w in (width, width + 1))
    if ffn.num_params(d_model, 1) > 2 * wanted:
        raise UserError(f"{where}: hidden: no width of {ffn.label} is near the baseline's size")
    return width if below < above else width + 1
