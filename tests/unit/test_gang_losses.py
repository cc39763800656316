"""What a loss is found to be made of."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hadar_cli.node.training.gangs.errors import CannotShare
from hadar_cli.node.training.gangs.losses import MEAN, PENALTY, SUM, terms_of

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 3, -100])
hot = F.one_hot(y.clamp(min=0), 4).float()
out = model(x)
weight = model[0].weight

MADE = {
    "cross entropy": (lambda: F.cross_entropy(out, y), [(MEAN, 4)]),
    "of one number": (lambda: F.cross_entropy(out, y).mean().sum().view(1).mean(), [(MEAN, 4)]),
    "a row of losses": (
        lambda: torch.stack([F.cross_entropy(out, y), out.mean()]).sum(),
        [(MEAN, 4), (MEAN, 20)],
    ),
    "features added up": (lambda: (out - hot).square().mean(0).sum(), [(MEAN, 5)]),
    "samples added up": (lambda: (out - hot).square().sum(0).mean(), [(SUM, 20)]),
    "features averaged": (lambda: (out - hot).square().sum(1).mean(), [(MEAN, 5)]),
    "time first": (lambda: out.view(5, 2, 2).transpose(0, 1).mean(0).mean(), [(MEAN, 20)]),
    "a sum": (lambda: F.mse_loss(out, hot, reduction="sum"), [(SUM, 20)]),
    "a penalty": (lambda: out.mean() + 0.1 * weight.square().sum(), [(MEAN, 20), (PENALTY, 0)]),
    "groups": (
        lambda: weight.square().sum(1).sqrt().sum() + 0.1 * weight.norm(),
        [(PENALTY, 0)] * 2,
    ),
    "old weights": (lambda: (weight - weight.detach()).square().sum(), [(PENALTY, 0)]),
    "raw weights and samples": (lambda: ((weight[0, 0] * x - 1) ** 2).sum(), [(SUM, 40)]),
    "scaled for halves": (lambda: F.cross_entropy(out, y) * torch.tensor(2.0**16), [(MEAN, 4)]),
    "logits of pairs": (lambda: -F.logsigmoid(out[:, 0] - out[:, 1]).mean(), [(MEAN, 5)]),
}
UNKNOWN = {
    "a root": lambda: F.mse_loss(out, hot).sqrt(),
    "an inverse": lambda: 1 / F.mse_loss(out, hot),
    "the first sample's": lambda: F.cross_entropy(out, y, reduction="none")[0],
    "the worst sample's": lambda: F.cross_entropy(out, y, reduction="none").max(),
    "the worst samples'": lambda: F.cross_entropy(out, y, reduction="none").topk(2).values.mean(),
    "a ratio": lambda: (out * hot).sum() / (out + hot).sum(),
    "not one number": lambda: F.cross_entropy(out, y, reduction="none"),
}


@pytest.mark.parametrize("name", MADE)
def test_it_is_seen_what_a_loss_is_a_mean_over(name):
    make, expected = MADE[name]
    found = [(term.kind, float(term.count)) for term in terms_of([make()])]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_seen_is_not_guessed(name):
    with pytest.raises(CannotShare, match=r"t\.mean_over"):
        terms_of([UNKNOWN[name]()])


def test_a_sum_keeps_what_it_is_divided_by():
    [term] = terms_of([F.mse_loss(out, hot, reduction="sum") / 40 * 3], [torch.tensor(2.0)])
    assert float(term.scale) == pytest.approx(2 * 3 / 40)
    several = terms_of([F.cross_entropy(out, y, label_smoothing=0.1)])
    assert {(term.kind, round(float(term.scale), 4)) for term in several} == {
        (MEAN, 0.9),
        (SUM, round(0.1 / 4 / 4, 4)),
    }
