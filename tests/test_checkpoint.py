import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from cohorts import cohort, corpus
from safetensors.torch import save

from triplu_ray.checkpoint import DamagedCheckpointError, pack, unpack
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
def test_members_go_on_alone_and_in_any_order_as_the_whole_does(
    tmp_path: Path, optimizer: str
) -> None:
    grid = {"seed": [1, 2, 3], "variant": ["triplu"]}
    muon = {"adamw_learning_rate": 1e-3} if optimizer == "muon" else {}
    whole = cohort(tmp_path, grid=grid, optimizer=optimizer, **muon)
    trainer = half_trained(whole)
    content, seconds = trainer.checkpoint(), trainer.seconds
    expected = finished(trainer)
    assert len({member["last_val_loss"] for member in expected}) == 3
    for size in (1, 2, 3):
        for places in itertools.permutations(range(3), size):
            some = CohortTrainer(Cohort(tuple(whole.runs[place] for place in places)), corpus())
            some.restore(content)
            assert some.step == 7
            assert some.seconds == pytest.approx(seconds * size / 3)
            assert finished(some) == [expected[place] for place in places]


def narrow_and_wide(folder: Path) -> tuple[CohortTrainer, CohortTrainer]:
    """One that has begun, and an untouched one of another width."""
    grid = {"seed": [1], "variant": ["swiglu"]}
    wide = CohortTrainer(cohort(folder, grid=grid, d_model=32), corpus())
    return half_trained(cohort(folder, grid=grid)), wide


def assert_refused(trainer: CohortTrainer, checkpoint: bytes, why: str) -> None:
    before = trainer.optimizer.values.clone()
    with pytest.raises(DamagedCheckpointError, match=why):
        trainer.restore(checkpoint)
    assert (trainer.step, trainer.resumes) == (0, 0)
    assert torch.equal(trainer.optimizer.values, before)


def test_a_checkpoint_of_other_shapes_changes_nothing(tmp_path: Path) -> None:
    narrow, wide = narrow_and_wide(tmp_path)
    state, tensors = unpack(narrow.checkpoint())
    state["members"][0]["run_id"] = wide.members[0].run_id
    assert_refused(wide, pack(state, tensors), "not those of this cohort")


def test_a_checkpoint_of_other_runs_changes_nothing(tmp_path: Path) -> None:
    narrow, wide = narrow_and_wide(tmp_path)
    assert_refused(wide, narrow.checkpoint(), f"lacks run {wide.members[0].run_id}")
