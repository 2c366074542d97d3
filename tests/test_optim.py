import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from triplu_ray.ffn import Product
from triplu_ray.model import Decoder, ModelShape
from triplu_ray.optim import MemberAdamW, Schedule, schedule_factor
from triplu_ray.stacked import Stacked, initialize

ALL = torch.ones(3, dtype=torch.bool)


def small_model(members: int) -> Decoder:
    ffn = Product(degree=3, gain=5.0, learned_gain=True)
    shape = ModelShape(
        vocab_size=7, context_length=4, d_model=8, num_layers=1, num_heads=2, hidden=6
    )
    model = Decoder([ffn] * members, shape)
    initialize(model, range(members))
    return model


def adamw(model: nn.Module, members: int, **changes: Any) -> MemberAdamW:
    options: dict[str, Any] = {
        "weight_decays": [0.1] * members,
        "betas": (0.9, 0.999),
        "decay": "all",
        "gradient_clip": 1.0,
    }
    rates = changes.pop("learning_rates", [1e-2] * members)
    optimizer = MemberAdamW(model, **{**options, **changes})
    optimizer.rates.copy_(torch.tensor(rates, dtype=torch.float64))
    return optimizer


def member_losses(model: nn.Module, target: float) -> torch.Tensor:
    """Half the squared distance of every parameter from a target: its gradient is the distance."""
    parts = [((p - target) ** 2).reshape(len(p), -1).sum(1) / 2 for p in model.parameters()]
    return torch.stack(parts).sum(0)


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_updates_equal_those_of_torchs_adamw(decay: str) -> None:
    rates, decays = [1e-2, 3e-2, 1e-3], [0.1, 0.0, 0.5]
    together = small_model(3)
    optimizer = adamw(
        together, 3, learning_rates=rates, weight_decays=decays, decay=decay, gradient_clip=0.5
    )
    singles = []
    for member, (rate, weight_decay) in enumerate(zip(rates, decays, strict=True)):
        single = small_model(3)
        alone = {name: nn.Parameter(p[member].detach()) for name, p in single.named_parameters()}
        matrices = ("qkv.weight", "output.weight", "head.weight", "streams")
        decayed = [p for n, p in alone.items() if decay == "all" or any(m in n for m in matrices)]
        decayed = [p for p in decayed if decay == "all" or p.dim() == 2]
        spared = [p for p in alone.values() if not any(p is q for q in decayed)]
        groups = [{"params": decayed, "weight_decay": weight_decay}]
        groups += [{"params": spared, "weight_decay": 0.0}] if spared else []
        singles.append((alone, torch.optim.AdamW(groups, lr=rate)))
    for _ in range(5):
        optimizer.backward(member_losses(together, 1.0))
        optimizer.clip()
        optimizer.step(ALL[: len(optimizer.values)])
        for alone, torchs in singles:
            torchs.zero_grad()
            torch.autograd.backward([((p - 1.0) ** 2).sum() / 2 for p in alone.values()])
            nn.utils.clip_grad_norm_(alone.values(), 0.5)
            torchs.step()
    for member, (alone, _) in enumerate(singles):
        for name, parameter in together.named_parameters():
            torch.testing.assert_close(parameter[member], alone[name], rtol=1e-5, atol=1e-6)


def test_clip_reports_and_bounds_each_members_own_norm() -> None:
    model = small_model(2)
    optimizer = adamw(model, 2, gradient_clip=2.0)
    size = optimizer.gradients.shape[1]
    optimizer.gradients[0] = 3.0
    optimizer.gradients[1] = 0.001
    norms = optimizer.clip()
    assert norms.tolist() == pytest.approx([3 * math.sqrt(size), 0.001 * math.sqrt(size)], rel=1e-4)
    assert optimizer.gradients[0].norm().item() == pytest.approx(2.0, rel=1e-4)
    assert optimizer.gradients[1].norm().item() == pytest.approx(0.001 * math.sqrt(size), rel=1e-4)


def test_a_stopped_member_stays_and_the_others_go_on() -> None:
    model = small_model(2)
    optimizer = adamw(model, 2)
    before = optimizer.values.clone()
    optimizer.gradients[0] = math.nan
    optimizer.gradients[1] = 1.0
    optimizer.step(torch.tensor([False, True]))
    assert torch.equal(optimizer.values[0], before[0])
    assert optimizer.values[1].isfinite().all()
    assert (optimizer.values[1] != before[1]).all()


def test_state_continues_exactly() -> None:
    first = small_model(2)
    optimizer = adamw(first, 2)
    for _ in range(3):
        optimizer.backward(member_losses(first, 1.0))
        optimizer.step(ALL[: len(optimizer.values)])
    second = small_model(2)
    resumed = adamw(second, 2)
    resumed.load_state({name: tensor.clone() for name, tensor in optimizer.state().items()})
    for model, either in ((first, optimizer), (second, resumed)):
        either.backward(member_losses(model, 1.0))
        either.step(ALL[:2])
    assert torch.equal(optimizer.values, resumed.values)


@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_what_a_module_declares_undecayed_never_decays(decay: str) -> None:
    model = small_model(2)
    ffn = model.get_submodule("blocks.0.ffn")
    assert isinstance(ffn, Stacked)
    ffn.undecayed.add("gain")
    model.undecayed.add("positions")
    model.head.undecayed.add("weight")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = adamw(model, 2, decay=decay, weight_decays=[0.5, 0.0], learning_rates=[0.1, 0.1])
    optimizer.step(ALL[:2])
    kept = {"positions", "head.weight", "blocks.0.ffn.gain"}
    if decay == "matrices":
        kept |= {n for n, p in model.named_parameters() if p.dim() < 3 or n.startswith("embedding")}
    for name, parameter in model.named_parameters():
        assert (parameter[0] == (1.0 if name in kept else 0.95)).all(), name
        assert (parameter[1] == 1.0).all()


def test_parameters_are_views_of_the_members_rows() -> None:
    model = small_model(2)
    optimizer = adamw(model, 2)
    assert optimizer.values.shape[1] == sum(p[0].numel() for p in model.parameters())
    optimizer.values[1] = 0.25
    assert all((p[1] == 0.25).all() for p in model.parameters())


def test_schedules_by_hand() -> None:
    assert schedule_factor("constant", 99, num_steps=100) == 1.0
    warm = [schedule_factor("constant", step, num_steps=100, warmup_steps=4) for step in range(5)]
    assert warm == [0.25, 0.5, 0.75, 1.0, 1.0]
    linear = [schedule_factor("linear", step, num_steps=4) for step in range(4)]
    assert linear == [1.0, 0.75, 0.5, 0.25]
    cosine = [schedule_factor("cosine", step, num_steps=4) for step in range(4)]
    assert cosine == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    floored = schedule_factor("cosine", 2, num_steps=4, final_ratio=0.1)
    assert floored == pytest.approx(0.1 + 0.9 / 2)
    # The last 40 of 100 steps fall, from 1 at step 60.
    late = [schedule_factor("linear", s, num_steps=100, decay_fraction=0.4) for s in (59, 60, 80)]
    assert late == pytest.approx([1.0, 1.0, 0.5])


@given(
    schedule=st.sampled_from(["constant", "cosine", "linear"]),
    num_steps=st.integers(1, 200),
    data=st.data(),
)
def test_schedules_stay_in_bounds_and_fall_after_the_warm_up(
    schedule: Schedule, num_steps: int, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(0, num_steps))
    fraction = data.draw(st.floats(0, 1))
    ratio = data.draw(st.floats(0, 1))
    factors = [
        schedule_factor(
            schedule,
            step,
            num_steps=num_steps,
            warmup_steps=warmup,
            decay_fraction=fraction,
            final_ratio=ratio,
        )
        for step in range(num_steps)
    ]
    assert all(factor > 0 for factor in factors[:warmup])
    assert all(factor >= ratio - 1e-12 for factor in factors[warmup:])
    assert max(factors) <= 1 + 1e-12
    assert factors[:warmup] == sorted(factors[:warmup])
    after = factors[warmup:]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(after))
