"""A cohort's checkpoint as bytes: safetensors, which execute nothing when read, and a checksum."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from triplu_ray.errors import reason

_STATE = "state_json"


class DamagedCheckpointError(Exception):
    """A checkpoint that cannot be gone on from."""


def pack(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A checkpoint of what JSON can say and of tensors."""
    encoded = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    on_cpu[_STATE] = torch.from_numpy(encoded)
    return safetensors.torch.save(on_cpu, {"crc32": str(_checksum(on_cpu))})


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `pack` was given; DamagedCheckpointError if it is not that any more."""
    try:
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        if int(header["__metadata__"]["crc32"]) != _checksum(tensors):
            raise DamagedCheckpointError("its checksum is another")
        state = json.loads(tensors.pop(_STATE).numpy().tobytes())
    except KeyError as error:
        raise DamagedCheckpointError(f"lacks {error}") from error
    except (SafetensorError, ValueError) as error:
        raise DamagedCheckpointError(reason(error)) from error
    return state, tensors


def part(
    state: Mapping[str, Any], tensors: Mapping[str, Tensor], run_ids: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """State and tensors as if these members of a cohort had been trained apart, in this order.

    Tensors have a row a member, or are one member's own: `name.member.part`, see AdamWRows.
    Raises DamagedCheckpointError if it lacks one of them.
    """
    place = {member["run_id"]: index for index, member in enumerate(state["members"])}
    if lacking := [run_id for run_id in run_ids if run_id not in place]:
        raise DamagedCheckpointError(f"lacks run {lacking[0]}")
    kept = [place[run_id] for run_id in run_ids]
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if "." not in name:
            own[name] = tensor[kept]
            continue
        kind, member, rest = name.split(".", 2)
        if int(member) in kept:
            own[f"{kind}.{kept.index(int(member))}.{rest}"] = tensor
    seconds = state["seconds"] * len(kept) / len(place)
    members = [state["members"][index] for index in kept]
    return {**state, "seconds": seconds, "members": members}, own


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].numpy().tobytes(), checksum)
    return checksum
