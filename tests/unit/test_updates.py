"""What a scaled learning rate means to an optimizer, for the length of one update."""

from __future__ import annotations

import pytest
import torch

from hadar_cli.node.contract import Order
from hadar_cli.node.training.updates import Updates


def test_adam_forgets_as_much_faster_as_its_rate_is_scaled() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.99))
    updates = Updates([model], [optimizer], None)
    updates.begin(Order(4, ((0, 4),), 1.0, lr_scale=2.0))
    updates.add(3.0 * model.weight.sum(), clip_norm=None, update=True)
    state = optimizer.state[model.weight]
    assert state["exp_avg"].item() == pytest.approx((1 - 0.9**2) * 3.0)
    assert state["exp_avg_sq"].item() == pytest.approx((1 - 0.99**2) * 9.0)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (
        0.1,
        (0.9, 0.99),
    )


def test_momentum_that_is_no_moving_average_is_left_alone() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    updates = Updates([model], [optimizer], None)
    updates.begin(Order(4, ((0, 4),), 1.0, lr_scale=2.0))
    before = model.weight.item()
    for _ in range(2):
        updates.add(model.weight.sum(), clip_norm=None, update=True)
    assert model.weight.item() == pytest.approx(before - 0.2 * (1 + 1.9))
    assert optimizer.param_groups[0]["lr"] == 0.1
