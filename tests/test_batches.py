import numpy as np
import torch

from triplu_ray.batches import packed, training_offsets, validation_offsets, windows


def test_batches_depend_on_seed_and_step_alone() -> None:
    first = training_offsets(1000, 3, 17, batch_size=8, context_length=10)
    assert (first == training_offsets(1000, 3, 17, batch_size=8, context_length=10)).all()
    assert (first != training_offsets(1000, 3, 18, batch_size=8, context_length=10)).any()
    assert (first != training_offsets(1000, 4, 17, batch_size=8, context_length=10)).any()


def test_windows_are_the_tokens_from_each_offset_on() -> None:
    tokens = packed(np.array([5, 3, 65_535, 0, 9], np.uint16))
    assert tokens.element_size() == 2
    read = windows(tokens, torch.tensor([[0], [2]]), context_length=2)
    assert read.tolist() == [[[5, 3, 65_535]], [[65_535, 0, 9]]]
    assert read.dtype == torch.int64


def test_tokens_are_read_where_they_lie() -> None:
    """In a file, or where the workers of a machine share them: neither may be written to."""
    tokens = np.arange(12, dtype=np.uint16)
    tokens.flags.writeable = False
    assert packed(tokens).data_ptr() == tokens.ctypes.data
    assert windows(packed(tokens), torch.tensor([10]), 1).tolist() == [[10, 11]]


def test_training_windows_reach_both_ends_of_the_text() -> None:
    tokens = packed(np.arange(12, dtype=np.uint16))
    seen = set()
    for step in range(50):
        offsets = training_offsets(12, 1, step, batch_size=4, context_length=10)
        seen |= set(windows(tokens, torch.from_numpy(offsets), 10).flatten().tolist())
    assert seen == set(range(12))


def test_validation_windows_are_spread_evenly_over_the_text() -> None:
    offsets = validation_offsets(1000, 3, 4, context_length=9)
    assert offsets.shape == (3, 4)
    assert offsets[0, 0] == 0
    assert offsets[-1, -1] == 1000 - 10  # a window is one token longer than the context
    gaps = np.diff(offsets.flatten())
    assert gaps.min() >= gaps.max() - 1
