"""LT: a Transformer on Multi30k German to English (paper), or a 64-wide one on a toy pair (tiny).

The paper preset reads ``train.de``, ``train.en``, ``val.de`` and ``val.en``: one sentence a line,
line by line in step. The measure is token accuracy: the share of words the model ranks first
when it is given all words before them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from hadar_cli import training
from hadar_cli.workloads import CATALOG, options
from hadar_cli.workloads.datasets import Vocabulary, find, read_lines, refuse
from hadar_cli.workloads.transformer import EncoderDecoder

SOURCE = "Multi30k (task 1, raw) from the multi30k/dataset repository"
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
PAD, _, START, END = range(4)
LONGEST = 60  # words of a sentence; Multi30k captions are shorter


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Sentences and their translations, framed by start and end marks."""

    def __init__(self, pairs: list[tuple[list[int], list[int]]], sizes: tuple[int, int]) -> None:
        self.pairs, self.vocabulary_sizes = pairs, sizes

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        source, target = self.pairs[i]
        return torch.tensor([*source, END]), torch.tensor([START, *target, END])


def pad(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Sentences of unequal length as two rectangles."""
    sources, targets = ([pair[side] for pair in batch] for side in (0, 1))
    return pad_sequence(sources, batch_first=True), pad_sequence(targets, batch_first=True)


def read_multi30k(data_dir: Path | None) -> tuple[Pairs, Pairs]:
    names = ("train.de", "train.en", "val.de", "val.en")
    texts = []
    for path in find(data_dir, "multi30k", names, SOURCE):
        lines = read_lines(path)
        texts.append([re.findall(r"\w+|[^\w\s]", line.lower())[:LONGEST] for line in lines])
    for i in (0, 2):
        if len(texts[i]) != len(texts[i + 1]):
            refuse(f"{names[i]} and {names[i + 1]} differ in their number of lines")
    german, english = (Vocabulary(text, SPECIALS, min_count=2) for text in texts[:2])
    sizes = len(german), len(english)
    train, held_out = (
        [(german.encode(de), english.encode(en)) for de, en in zip(*two, strict=True)]
        for two in (texts[:2], texts[2:])
    )
    return Pairs(train, sizes), Pairs(held_out, sizes)


def draw_pairs(train: int = 6400, held_out: int = 300) -> tuple[Pairs, Pairs]:
    """A toy language pair: the verb moves from the end to the second place, and decides between
    two forms of every noun, but for one in eight. Some nouns are far more frequent than others."""
    rng = torch.Generator().manual_seed(12)
    nouns, verbs, count = 300, 40, train + held_out
    lengths = torch.randint(4, 10, (count,), generator=rng).tolist()
    clauses = (nouns * torch.rand(count, 9, generator=rng) ** 2).long().tolist()
    last = torch.randint(verbs, (count,), generator=rng).tolist()
    free = (torch.rand(count, 9, generator=rng) < 1 / 8).long().tolist()
    words = torch.randperm(2 * nouns + verbs, generator=rng) + len(SPECIALS)
    dictionary = words[: 2 * nouns].view(2, nouns).tolist()  # by form and noun
    verb_words = words[2 * nouns :].tolist()
    pairs = []
    for length, row, verb, odd in zip(lengths, clauses, last, free, strict=True):
        source = [word + len(SPECIALS) for word in (*row[:length], nouns + verb)]
        forms = [dictionary[(verb + swap) % 2][noun] for noun, swap in zip(row, odd, strict=True)]
        pairs.append((source, [forms[0], verb_words[verb], *forms[1:length]]))
    sizes = (nouns + verbs + len(SPECIALS), 2 * nouns + verbs + len(SPECIALS))
    return Pairs(pairs[:train], sizes), Pairs(pairs[train:], sizes)


class Translator(nn.Module):
    """Two embeddings with learned positions, the Transformer, and a score for every word."""

    def __init__(self, sizes: tuple[int, int], width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(size, width) for size in sizes)
        self.position = nn.Embedding(LONGEST + 2, width)
        for table in (self.source, self.target, self.position):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.core = EncoderDecoder(width, max(4, width // 64), layers, dropout)
        self.head = nn.Linear(width, sizes[1])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.source(source) + self.position.weight[: source.shape[1]]
        y = self.target(target) + self.position.weight[: target.shape[1]]
        logits: Tensor = self.head(self.core(x, y, padding=source == PAD, causal=True))
        return logits


def load(preset: str, data_dir: Path | None = None) -> tuple[Pairs, Pairs]:
    """The training set and the held-out set."""
    return draw_pairs() if preset == "tiny" else read_multi30k(data_dir)


def build_model(preset: str, train: Pairs) -> Translator:
    if preset == "tiny":
        return Translator(train.vocabulary_sizes, width=64, layers=2, dropout=0.0)
    return Translator(train.vocabulary_sizes, width=512, layers=3, dropout=0.1)


def build_optimizer(model: nn.Module, preset: str, steps: int) -> tuple[AdamW, LambdaLR]:
    optimizer = AdamW(model.parameters(), lr=7e-4 if preset == "tiny" else 3e-4)
    return optimizer, options.cosine(optimizer, steps, warmup=0.05)


def batch_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    source, target = (part.to(options.DEVICE) for part in batch)
    with options.autocast():
        logits = model(source, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


def evaluate(model: nn.Module, held_out: Pairs) -> dict[str, float]:
    right = words = 0
    for batch in DataLoader(held_out, batch_size=100, collate_fn=pad):
        source, target = (part.to(options.DEVICE) for part in batch)
        guess, truth = model(source, target[:, :-1]).argmax(2), target[:, 1:]
        right += int(((guess == truth) & (truth != PAD)).sum())
        words += int((truth != PAD).sum())
    return {"accuracy": right / words}


def main(argv: Sequence[str] | None = None) -> None:
    args = options.parse(CATALOG["translation"], argv)
    options.seed()
    train, held_out = load(args.preset, args.data_dir)
    model = build_model(args.preset, train).to(options.DEVICE)
    steps = options.total_steps(args, len(train))
    optimizer, scheduler = build_optimizer(model, args.preset, steps)
    with training(
        model, optimizer, scheduler, evaluate=lambda: evaluate(model, held_out), epochs=args.epochs
    ) as t:
        for batch in t.loader(train, batch_size=args.batch_size, collate_fn=pad):
            t.step(batch_loss(model, batch), clip_norm=1.0)


if __name__ == "__main__":
    main()
