"""Two copies of a Hugging Face Trainer with a merge between them train as two plain loops do."""

import copy
import json
import multiprocessing
import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)

from hadar_cli import huggingface
from hadar_cli.core.model import MergeRules
from hadar_cli.weights.merging import Contribution, merge

TOTAL, WARM_UP, CLIP, DECAY = 12, 3, 0.5, 0.1
EPSILON = 1e-4  # gradients that are nothing (of keys' biases) would be noise with less
SCALE = 1.6  # of the learning rate of copies that will be merged
SHARES = ([(0, 3), (3, 5)], [(5, 8), (8, 10)])  # by round, then by copy
SIZE = GPT2Config(
    n_layer=1,
    n_embd=8,
    n_head=2,
    vocab_size=20,
    n_positions=8,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
)


def made(folder: Path) -> Trainer:
    torch.manual_seed(1)
    rng = torch.Generator().manual_seed(0)
    rows = [{"input_ids": r, "labels": r} for r in torch.randint(0, 20, (44, 8), generator=rng)]
    words = TrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=0.01,
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        adam_epsilon=EPSILON,
        lr_scheduler_type="cosine",
        warmup_steps=WARM_UP,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
    )
    return Trainer(GPT2LMHeadModel(SIZE), words, train_dataset=rows)


def copies(folder: Path) -> dict[str, torch.Tensor]:
    """Both copies' orders, with what a head does in between; the weights after the last merge."""
    fork = multiprocessing.get_context("fork")
    weights, done, workers = "", 0, []
    for number, shares in enumerate(SHARES):
        orders = [
            _order(folder, number, one, share, weights, done) for one, share in enumerate(shares)
        ]
        for one, order in enumerate(orders):
            if number:
                (folder / "part").write_text(json.dumps(order))
                (folder / "part").rename(folder / f"next-{one}")
            else:
                worker = fork.Process(target=_work, args=(folder, order), daemon=True)
                worker.start()
                workers.append(worker)
        results = [_await(Path(order["HADAR_RESULT"]), workers) for order in orders]
        assert [result["steps"] for result in results] == [end - first for first, end in shares]
        handed_in = [
            Contribution(one, Path(order["HADAR_CKPT_OUT"]), result["steps"], 8)
            for one, (order, result) in enumerate(zip(orders, results, strict=True))
        ]
        out = folder / f"merged-{number}"
        merged = merge(handed_in, Path(weights) if weights else None, out, MergeRules(), 0.5)
        assert merged.accepted == (0, 1)
        weights, done = str(out), done + sum(result["steps"] for result in results)
    for worker in workers:
        worker.terminate()
        worker.join(60)
    held = load_file(weights)
    return {n.removeprefix("model/0/"): t for n, t in held.items() if n.startswith("model/")}


def _order(folder: Path, number: int, one: int, share, weights: str, done: int) -> dict[str, str]:
    files = folder / f"order-{number}-{one}"
    files.mkdir(parents=True)
    return {
        "HADAR_ATTEMPT": f"{number}-{one}",
        "HADAR_STEPS": str(share[1] - share[0]),
        "HADAR_SLICES": f"{share[0]}:{share[1]}",
        "HADAR_SECONDS_LEFT": "600",
        "HADAR_ISSUED_AT": repr(time.monotonic()),
        "HADAR_CKPT_IN": weights,
        "HADAR_CKPT_OUT": str(files / "weights"),
        "HADAR_RESULT": str(files / "result"),
        "HADAR_PROGRESS": str(files / "progress"),
        "HADAR_GLOBAL_STEP": str(done),
        "HADAR_TOTAL_STEPS": str(TOTAL),
        "HADAR_NEXT": str(folder / (f"next-{one}" if not number else f"never-{one}")),
        "HADAR_JOB_SEED": "0",
        "HADAR_SEED": str(10 * number + one),
        "HADAR_NUM_COPIES": "2",
        "HADAR_LR_SCALE": str(SCALE),
    }


def _work(folder: Path, order: dict[str, str]) -> None:
    os.environ.update(order)
    torch.set_num_threads(1)
    huggingface.train(made(folder))


def _await(path: Path, workers: list) -> dict:
    until = time.monotonic() + 120
    while not path.exists():
        assert all(worker.is_alive() for worker in workers), "a copy has died"
        assert time.monotonic() < until, f"no {path}"
        time.sleep(0.02)
    return json.loads(path.read_text())


# -- the same without hadar and without a Trainer -------------------------------------------------


class PlainLoop:
    """One copy: a model, AdamW, a cosine with warm-up, accumulation, clipping."""

    def __init__(self, trainer: Trainer) -> None:
        self.model = copy.deepcopy(trainer.model).train()
        decays = set(trainer.get_decay_parameter_names(self.model))
        named = list(self.model.named_parameters())
        groups = [
            {"params": [p for n, p in named if n in decays], "weight_decay": DECAY},
            {"params": [p for n, p in named if n not in decays], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.999), eps=EPSILON)

    def train(self, updates: list, at: int) -> None:
        """``at``: how many steps all copies together had when the order was given."""
        rate = get_cosine_schedule_with_warmup(self.optimizer, WARM_UP, TOTAL).lr_lambdas[0]
        for number, batches in enumerate(updates):
            tokens = sum(batch["labels"].numel() for batch in batches)  # as the Trainer counts
            for batch in batches:
                logits = self.model(batch["input_ids"]).logits[:, :-1].reshape(-1, 20)
                wanted = batch["labels"][:, 1:].reshape(-1)
                loss = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
                (loss / tokens).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            for group in self.optimizer.param_groups:
                group["lr"] = 0.01 * rate(at + number) * SCALE
                group["betas"] = (0.9**SCALE, 0.999**SCALE)
            self.optimizer.step()
            self.optimizer.zero_grad()


def merge_plainly(loops: list[PlainLoop], steps: list[int], base: list | None) -> list:
    """The mean by steps; from the second merge on half way to the stride of the longest."""
    shares = [n / sum(steps) for n in steps]
    full = max(steps) * sum(steps) / sum(n * n for n in steps)
    stride = 1 + (full - 1) * 0.5 if base else 1.0
    new = []
    with torch.no_grad():
        for place, same in enumerate(
            zip(*(loop.model.parameters() for loop in loops), strict=True)
        ):
            value = sum(s * p.double() for s, p in zip(shares, same, strict=True))
            if base:
                value = base[place] + stride * (value - base[place])
            for p in same:
                p.copy_(value)
            new.append(same[0].double().clone())
            states = [loop.optimizer.state[p] for loop, p in zip(loops, same, strict=True)]
            for key in ("exp_avg", "exp_avg_sq"):
                mean = sum(s * st[key].double() for s, st in zip(shares, states, strict=True))
                for st in states:
                    st[key].copy_(mean)
            most = max(float(st["step"]) for st in states)
            for st in states:
                st["step"].fill_(most)
    return new


def plainly(trainer: Trainer) -> dict[str, torch.Tensor]:
    huggingface.give_generators(loader := trainer.get_train_dataloader(), 0)
    updates = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        batches = list(loader)
        updates += [batches[i : i + 2] for i in range(0, len(batches), 2)]
    assert len(updates) == TOTAL
    loops, base, done = [PlainLoop(trainer), PlainLoop(trainer)], None, 0
    for shares in SHARES:
        for loop, (first, end) in zip(loops, shares, strict=True):
            loop.train(updates[first:end], done)
        steps = [end - first for first, end in shares]
        base, done = merge_plainly(loops, steps, base), done + sum(steps)
    return loops[0].model.state_dict()


def test_a_forked_trainer_goes_on_after_a_merge_as_plain_loops_do(tmp_path):
    torch.set_num_threads(1)
    wanted = plainly(made(tmp_path))
    found = copies(tmp_path)
    assert found.keys() <= wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-4, atol=1e-6, msg=name)
