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


def part(content: bytes, run_ids: Sequence[str]) -> bytes:
    """The checkpoint of some of a cohort's members, as if they had been trained apart.

    Tensors have a row a member, or are one member's own: `name.member.part`, see AdamWRows.
    """
    state, tensors = unpack(content)
    there = [member["run_id"] for member in state["members"]]
    kept = [there.index(run_id) for run_id in run_ids]
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if "." not in name:
            own[name] = tensor[kept]
            continue
        kind, member, rest = name.split(".", 2)
        if int(member) in kept:
            own[f"{kind}.{kept.index(int(member))}.{rest}"] = tensor
    seconds = state["seconds"] * len(kept) / len(there)
    members = [state["members"][index] for index in kept]
    return pack({**state, "seconds": seconds, "members": members}, own)


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].numpy().tobytes(), checksum)
    return checksum
