"""What stored configurations lack that were written before a key was there."""

import json
from collections.abc import Mapping
from typing import Any

ADDED_KEYS: dict[str, Any] = {
    "adamw_learning_rate": None,
    "heldout_bytes": None,
    "heldout_file": None,
    "momentum": 0.95,
    "patience": None,
    "tokenizer_vocab_size": 512,
    "train_budget_bytes": None,
}
"""Keys added after the first release, each with the value that says what was the case before.

At that value a key is no part of a run's id, so the ids of existing runs stay. The values are
fixed: a default may change, these may not.
"""


def with_added_keys(config: str | Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration, or its JSON, with the keys that came after it was stored."""
    return ADDED_KEYS | (json.loads(config) if isinstance(config, str) else dict(config))
