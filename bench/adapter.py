"""What a LoRA hands in, beside the least that it could: the adapter and its optimizer's state.

    python -m bench --only adapter

The model is built from a configuration, GPT-2's shape with a small vocabulary, and nothing is
downloaded: 106 million frozen parameters, with ``--quick`` fewer. Two copies hand in twice, for the
first merge and for the next one.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.frame import Row, beside
from hadar_cli.core.model import MergeRules
from hadar_cli.node.training.checkpoints import checkpoint
from hadar_cli.weights.merging import Contribution, merge

WIDTH, LAYERS = 768, 15
QUICK_WIDTH, QUICK_LAYERS = 256, 4
VOCABULARY, LENGTH = 1000, 64


def adapted(width: int, layers: int) -> checkpoint.Parts:
    """A LoRA of rank 8 on a frozen model, and its optimizer."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    from peft import LoraConfig, get_peft_model  # type: ignore[import-untyped,unused-ignore]
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=width,
        n_layer=layers,
        n_head=width // 64,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=8, target_modules=["c_attn"]))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return checkpoint.Parts([model], [torch.optim.AdamW(trained, 1e-3)])


def step(parts: checkpoint.Parts, seed: int) -> None:
    words = torch.randint(VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(seed))
    (model,), (optimizer,) = parts.models, parts.optimizers
    optimizer.zero_grad()
    model(words, labels=words).loss.backward()
    optimizer.step()


def least(parts: checkpoint.Parts) -> int:
    """Bytes of the adapter and of its optimizer's state."""
    (model,), (optimizer,) = parts.models, parts.optimizers
    state = (value for one in optimizer.state.values() for value in one.values())
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return sum(tensor.nbytes for tensor in (*trained, *state))


def frozen(parts: checkpoint.Parts) -> int:
    return sum(p.numel() for p in parts.models[0].parameters() if not p.requires_grad)


def hand_ins(parts: checkpoint.Parts, folder: Path) -> Iterator[tuple[str, int, int]]:
    """What two copies hand in for two merges, and the merged files: what, its bytes, the least."""
    base: Path | None = None
    checkpoint.begin(parts)
    for number in (1, 2):
        contributions = []
        for copy in (1, 2):
            if base:
                checkpoint.load(base, parts)
            step(parts, 10 * number + copy)
            path = folder / f"copy{copy}"
            checkpoint.save(path, parts)
            contributions.append(Contribution(copy, path, 1, 2))
        yield f"hand-in {number}", contributions[-1].path.stat().st_size, least(parts)
        out = folder / f"merged{number}"
        merged = merge(contributions, base, out, MergeRules())
        assert not merged.refused, merged.refused
        yield f"merge {number}", merged.bytes, least(parts)
        base = out


def rows(quick: bool) -> Iterator[Row]:
    parts = adapted(*((QUICK_WIDTH, QUICK_LAYERS) if quick else (WIDTH, LAYERS)))
    millions = f"{frozen(parts) / 1e6:.0f} M frozen"
    with tempfile.TemporaryDirectory() as folder:
        for what, size, lower in hand_ins(parts, Path(folder)):
            case = f"LoRA, {millions}: {what}"
            yield beside(case, "MB", [size / 1e6], "adapter and its state", [lower / 1e6])
