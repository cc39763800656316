"""What a gang of unequal members trains is what one process trains, up to the order of sums.

All cases run as real processes, one case after the other, in one go for the whole file.
"""

import re

import pytest
import torch

from hadar_cli.node.contract import Update
from hadar_cli.workloads import CATALOG
from tests.support.gangs import PATIENCE_S, ROOT, gang, start_all

LAB = (0.8, 0.42, 0.12, 1.0, 0.45)  # the paper's five testbed GPUs
STEPS = 4
JOINED = Update(3, 2)  # three mini-batches to an update that counts for two steps
# Dropout draws per member; BatchNorm sees a member's own samples, as under DDP.
WORKLOAD = """
import runpy, sys, torch
torch.nn.Dropout.forward = lambda self, x: x
torch.nn.BatchNorm2d = lambda channels: torch.nn.GroupNorm(1, channels)
sys.argv = ["", "--preset", "tiny", "--batch-size", "{batch_size}"]
runpy.run_module("hadar_cli.workloads.{name}", run_name="__main__")
"""
BEGIN = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from hadar_cli import training
given = torch.Generator().manual_seed(5)
xs, ys = torch.randn(90, 8, generator=given), torch.randint(4, (90,), generator=given)
data = TensorDataset(xs, ys)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
"""
SCRIPTS = {
    "tokens": """
ys[::3] = -100  # of some samples nothing counts
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        t.step(F.cross_entropy(model(x), y, label_smoothing=0.1))
""",
    "tokens, accumulated": """
ys[::3] = -100
with training(model, optimizer, accumulate=3) as t:
    for x, y in t.loader(data, batch_size=10):
        t.step(F.cross_entropy(model(x), y), clip_norm=0.1)
""",
    "a sum": """
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        t.step(F.cross_entropy(model(x), y, reduction="sum"), clip_norm=0.5)
""",
    "a sum by a constant": """
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20, drop_last=True):
        t.step(F.cross_entropy(model(x), y, reduction="none").sum() / 20)
""",
    "a masked mean": """
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        mask = (y > 0).float()
        t.step((F.cross_entropy(model(x), y, reduction="none") * mask).sum() / mask.sum())
""",
    "sums and a penalty": """
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        out = model(x)
        loss = F.mse_loss(out, F.one_hot(y, 4).float(), reduction="sum") / 50
        t.step(loss + 0.1 * sum(p.norm() + p.square().sum() for p in model.parameters()))
""",
    "means over unlike numbers": """
ys[::3] = -100
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        out = model(x)
        per_feature = (out - x[:, :4]).square().mean(0).sum()
        t.step(F.cross_entropy(out, y).mean() + 0.5 * per_feature + 0.1 * out.square().mean())
""",
    "a sum by a product": """
ys[::3] = -100
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        t.step(F.cross_entropy(model(x), y, reduction="sum") * (2 / (y >= 0).sum()))
""",
    "a mean that only the script knows": """
ys[::3] = -100
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=20):
        counts = y >= 0
        t.mean_over(counts.sum())
        logs = F.log_softmax(model(x), 1)[counts, y[counts]]
        t.step(-(logs @ torch.ones_like(logs)) / counts.sum())
""",
    "its own updates, clipped": """
t = training(model, optimizer)
for epoch in t.epochs(20):
    for x, y in t.loader(DataLoader(data, 20, shuffle=True, num_workers=2)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        t.log(loss)
""",
    "two losses, one update": """
t = training(model, optimizer)
for epoch in t.epochs(20):
    for x, y in t.loader(DataLoader(data, 20, shuffle=True)):
        optimizer.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), y).backward()
        (0.1 * model(x).square().mean()).backward()
        optimizer.step()
""",
    "against each other": """
judge = nn.Linear(4, 1)
other = torch.optim.Adam(judge.parameters(), 0.01)
t = training([model, judge], [optimizer, other])
for epoch in t.epochs(20):
    for x, y in t.loader(DataLoader(data, 20, shuffle=True)):
        other.zero_grad()
        real = F.one_hot(y, 4).float()
        told = torch.cat([judge(real), judge(model(x).detach())])
        F.binary_cross_entropy_with_logits(told, torch.ones_like(told)).backward()
        other.step()
        optimizer.zero_grad()
        for p in judge.parameters():
            p.requires_grad_(False)
        F.softplus(-judge(model(x))).mean().backward()
        optimizer.step()
        for p in judge.parameters():
            p.requires_grad_(True)
""",
    "scaled": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
t = training(model, optimizer, scaler=scaler)
for epoch in t.epochs(20):
    for x, y in t.loader(DataLoader(data, 20, shuffle=True)):
        optimizer.zero_grad()
        loss = F.cross_entropy(100 * model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        t.log(loss)
    print("scale", scaler.get_scale())
""",
    "joined": """
with training(model, optimizer) as t:
    for x, y in t.loader(data, batch_size=10):
        t.step(F.cross_entropy(model(x), y))
""",
    "layers without gradients": """
model.append(nn.Linear(4, 4))
spare = nn.Linear(4, 4)
optimizer = torch.optim.AdamW([*model.parameters(), *spare.parameters()], 0.01, weight_decay=0.5)
with training([model, spare], optimizer) as t:
    for step, (x, y) in enumerate(t.loader(data, batch_size=20)):
        out = model(x)
        # Only every third step, and only a member with such a sample, uses the spare layer.
        if step % 3 == 1 and (y == 3).any():
            out = out + spare(out) * (y == 3)[:, None]
        t.step(F.cross_entropy(out, y))
""",
}


SEVERAL = ("sums and a penalty", "means over unlike numbers")  # whose losses are told nearly

# People's scripts in the manner of libraries, without their dropout; each with its number of steps.
STYLES = {"accelerated": 256, "trainer": 150, "lit": 256}
LIBRARIES = ("accelerate", "transformers:Trainer", "transformers:GPT2LMHeadModel", "lightning")


def style(name: str) -> str:
    text = (ROOT / "bench" / "scripts" / "styles" / f"{name}.py").read_text()
    text = re.sub(r"Dropout\([^)]*\)", "Identity()", text).partition("print(")[0]
    return text.replace("n_layer=2", "n_layer=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By case: the process that trained alone, and the gang's members."""
    root = tmp_path_factory.mktemp("gangs")
    cases, found = [], {}
    for i, (name, info) in enumerate(CATALOG.items()):
        script = WORKLOAD.format(name=name, batch_size=info.batch_size["tiny"])
        cases.append((script, alone_and(root / f"workload{i}", LAB, found, name)))
    for i, (name, script) in enumerate(SCRIPTS.items()):
        more = {"steps": 9, "slices": ((0, 9),), "update": JOINED} if name == "joined" else {}
        members = alone_and(root / f"script{i}", (0.5, 0.3, 0.2), found, name, **more)
        cases.append((BEGIN + script, members))
    for i, (name, total) in enumerate(STYLES.items()):
        directory, three = root / f"style{i}", (0.5, 0.3, 0.2)
        cases.append((style(name), alone_and(directory, three, found, name, total_steps=total)))
    assert start_all(root, cases, LIBRARIES).wait(PATIENCE_S) == 0
    return found


def alone_and(directory, shares, found, name, **more):
    alone = gang(directory / "alone", (1.0,), (0, STEPS), **more)
    members = gang(directory / "gang", shares, (0, STEPS), **more)
    found[name] = (alone[0], members)
    return [*alone, *members]


@pytest.mark.parametrize("name", [*CATALOG, *SCRIPTS, *STYLES])
def test_it_trains_as_one_process_does(trained, name):
    alone, members = trained[name]
    for process in (alone, *members):
        assert process.code == 0, process.log
    expected, result = alone.result(), members[0].result()
    for figure in ("steps", "slices", "samples", "data", "lr"):
        assert result[figure] == expected[figure]
    if "loss" in expected["metrics"] and name not in SEVERAL:
        assert result["metrics"]["loss"] == pytest.approx(expected["metrics"]["loss"], rel=1e-4)
    ours, theirs = members[0].weights(), alone.weights()
    assert ours.keys() == theirs.keys()
    for tensor in ours:
        torch.testing.assert_close(ours[tensor], theirs[tensor], rtol=1e-3, atol=1e-4, msg=tensor)


def test_infinite_gradients_of_one_member_are_everybodys(trained):
    """The scale came down, by the same steps that were left out, wherever the overflow was."""
    alone, members = trained["scaled"]
    told = alone.log.split()[-1]
    assert float(told) < 2.0**126
    assert all(member.log.split()[-1] == told for member in members)


def test_a_gang_tells_the_noise_of_its_gradients_where_it_is_asked(trained):
    _, members = trained["joined"]
    result = members[0].result()
    assert result["update"] == [3, 2]
    assert result["noise"] > 0.0
    assert trained["tokens"][1][0].result()["noise"] is None
