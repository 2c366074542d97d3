import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cohorts import cohort, corpus
from safetensors.torch import save

from triplu_ray.checkpoint import DamagedCheckpointError, pack, part, unpack
from triplu_ray.plan import Cohort
from triplu_ray.train import CohortTrainer, train_cohort

TENSORS = {"values": torch.arange(6.0).reshape(2, 3), "step.0.0": torch.tensor(3.0)}
STATE = {"step": 3, "seconds": 1.5, "members": []}


def test_what_is_packed_is_unpacked() -> None:
    state, tensors = unpack(pack(STATE, TENSORS))
    assert state == STATE
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)


def test_whatever_is_cut_off_is_noticed() -> None:
    content = pack(STATE, TENSORS)
    for length in range(len(content)):
        with pytest.raises(DamagedCheckpointError):
            unpack(content[:length])


def test_a_wrong_bit_is_noticed() -> None:
    content = pack(STATE, TENSORS)
    header = 8 + int.from_bytes(content[:8], "little")
    for position in range(header, len(content)):
        flipped = bytes([content[position] ^ 4])
        with pytest.raises(DamagedCheckpointError, match="its checksum is another"):
            unpack(content[:position] + flipped + content[position + 1 :])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "deserializing"),
        (b"\0" * 64, "deserializing"),
        (b"not a checkpoint at all", "deserializing"),
        (save(TENSORS), "lacks '__metadata__'"),
        (save(TENSORS, {"of": "another"}), "lacks 'crc32'"),
    ],
)
def test_what_is_no_checkpoint_is_told(content: bytes, why: str) -> None:
    with pytest.raises(DamagedCheckpointError, match=why):
        unpack(content)


def half_trained(whole: Cohort) -> CohortTrainer:
    trainer = CohortTrainer(whole, corpus())
    trainer.evaluate()
    for _ in range(7):
        trainer.train_step()
    return trainer


def finished(trainer: CohortTrainer) -> list[dict[str, Any]]:
    """The members at the end, without what clocks decide."""
    for _ in train_cohort(trainer):
        pass
    members = copy.deepcopy(trainer.members)
    for member in members:
        for evaluation in member.evaluations:
            evaluation.seconds = 0.0
    return [vars(member) for member in members]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_parts_of_a_cohort_go_on_as_the_whole_does(tmp_path: Path, optimizer: str) -> None:
    grid = {"seed": [1, 2, 3], "variant": ["triplu"]}
    muon = {"adamw_learning_rate": 1e-3} if optimizer == "muon" else {}
    whole = cohort(tmp_path, grid=grid, optimizer=optimizer, **muon)
    trainer = half_trained(whole)
    content, seconds = trainer.checkpoint(), trainer.seconds
    expected = finished(trainer)
    for runs, members in ((whole.runs[:1], expected[:1]), (whole.runs[1:], expected[1:])):
        half = CohortTrainer(Cohort(runs), corpus())
        half.restore(part(content, [run.run_id for run in runs]))
        assert half.step == 7
        assert half.seconds == pytest.approx(seconds * len(runs) / 3)
        assert finished(half) == members


def test_a_checkpoint_of_other_shapes_changes_nothing(tmp_path: Path) -> None:
    narrow = half_trained(cohort(tmp_path, grid={"seed": [1], "variant": ["swiglu"]}))
    wide = CohortTrainer(
        cohort(tmp_path, grid={"seed": [1], "variant": ["swiglu"]}, d_model=32), corpus()
    )
    before = wide.optimizer.values.clone()
    with pytest.raises(DamagedCheckpointError, match="not those of this cohort"):
        wide.restore(narrow.checkpoint())
    assert wide.step == 0
    assert np.array_equal(wide.optimizer.values.numpy(), before.numpy())
