"""Copies start without torch's compiler, and find it as it was once someone wants it."""

from __future__ import annotations

import subprocess
import sys

_SPARED = "import hadar_cli.node.training.context\n"
_TRAIN = """
import sys, torch
torch.manual_seed(1)
model = torch.nn.Linear(2, 1)
def step(optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
for kind in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"):
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    step(optimizer)
print(model.weight.tolist(), torch.is_grad_enabled())
print("torch._dynamo" in sys.modules)
"""
_IMPORT_LATER = """
before = model.weight.clone()
import torch._dynamo
step(optimizer)
told = torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable
print("quick_torch" not in told.__module__, bool((model.weight != before).all()))
"""


def run(script: str) -> list[str]:
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_optimizers_train_the_same_without_the_compiler() -> None:
    weights, has_compiler, told = run(_SPARED + _TRAIN + _IMPORT_LATER)
    assert has_compiler == "False"
    assert told == "True True"
    as_torch_does, always = run(_TRAIN)
    assert weights == as_torch_does
    assert always == "True", "torch spares it by itself now: quick_torch.py can go"
