import json

from triplu_ray.added_keys import ADDED_KEYS, with_added_keys
from triplu_ray.config import RunConfig


def test_an_older_configuration_is_read_with_the_keys_added_since() -> None:
    now = RunConfig.model_validate({"ffn": {"kind": "swiglu"}, "hidden": 322}).model_dump()
    older = {key: value for key, value in now.items() if key not in ADDED_KEYS}
    assert with_added_keys(older) == with_added_keys(json.dumps(older)) == now
    assert with_added_keys({**older, "momentum": 0.9})["momentum"] == 0.9
