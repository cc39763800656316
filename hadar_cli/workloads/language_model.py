"""LM: an LSTM on WikiText-2 (paper), or a 64-wide LSTM on sentences of a small grammar (tiny).

The paper preset reads ``wiki.train.tokens`` and ``wiki.valid.tokens`` of the word-level archive.
Every sample is a window of words, so that copies can take disjoint windows in any order.
The measure is perplexity; the scheduler's paper reports the loss, its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from hadar_cli import training
from hadar_cli.workloads import CATALOG, options
from hadar_cli.workloads.datasets import Vocabulary, find, read_lines, refuse

SOURCE = "WikiText-2 (word level) from the Salesforce Research WikiText page"
WINDOW = 35


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of words; the target of each word is the next one."""

    def __init__(self, rows: Tensor, vocabulary_size: int) -> None:
        self.rows, self.vocabulary_size = rows, vocabulary_size

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.rows[i, :-1], self.rows[i, 1:]


def read_wikitext(data_dir: Path | None) -> tuple[Windows, Windows]:
    names = ("wiki.train.tokens", "wiki.valid.tokens")
    texts = []
    for path in find(data_dir, "wikitext-2", names, SOURCE):
        texts.append([word for line in read_lines(path) for word in (*line.split(), "<eos>")])
    vocabulary = Vocabulary([texts[0]], specials=("<unk>", "<eos>"))
    sets = []
    for name, text in zip(names, texts, strict=True):
        words = torch.tensor(vocabulary.encode(text))
        if len(words) <= WINDOW:
            refuse(f"{name} has {len(words)} words, fewer than one window of {WINDOW + 1}")
        sets.append(Windows(words.unfold(0, WINDOW + 1, WINDOW), len(vocabulary)))
    return sets[0], sets[1]


def draw_sentences(train: int = 9600, held_out: int = 300) -> tuple[Windows, Windows]:
    """A grammar: each word, with the parity of the one before it, has four likely successors."""
    rng = torch.Generator().manual_seed(11)
    words, count = 400, train + held_out
    successors = torch.randint(words, (words, 2, 4), generator=rng)
    likelihood = torch.tensor([0.6, 0.2, 0.15, 0.05])
    choices = torch.multinomial(likelihood, count * 33, replacement=True, generator=rng)
    rows = torch.randint(words, (count, 33), generator=rng)
    for i in range(2, 33):
        before, last = rows[:, i - 2], rows[:, i - 1]
        rows[:, i] = successors[last, before % 2, choices.view(count, 33)[:, i]]
    return Windows(rows[:train], words), Windows(rows[train:], words)


class LSTMModel(nn.Module):
    """Embedding, LSTM, and an output layer that shares the embedding's weights."""

    def __init__(self, words: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        nn.init.normal_(self.embed.weight, std=0.1)
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, dropout=between, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.dropout(self.embed(x)))
        return F.linear(self.dropout(hidden), self.embed.weight, self.bias)


def load(preset: str, data_dir: Path | None = None) -> tuple[Windows, Windows]:
    """The training set and the held-out set."""
    return draw_sentences() if preset == "tiny" else read_wikitext(data_dir)


def build_model(preset: str, train: Windows) -> LSTMModel:
    if preset == "tiny":
        return LSTMModel(train.vocabulary_size, width=64, layers=1, dropout=0.0)
    return LSTMModel(train.vocabulary_size, width=650, layers=2, dropout=0.5)


def build_optimizer(model: nn.Module, preset: str, steps: int) -> tuple[AdamW, LambdaLR]:
    optimizer = AdamW(model.parameters(), lr=3e-3 if preset == "tiny" else 1e-3)
    return optimizer, options.cosine(optimizer, steps)


def batch_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    x, y = (part.to(options.DEVICE) for part in batch)
    with options.autocast():
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def evaluate(model: nn.Module, held_out: Windows) -> dict[str, float]:
    total = 0.0
    for x, y in DataLoader(held_out, batch_size=50):
        total += batch_loss(model, (x, y)).item() * len(x)
    # A diverged model must not overflow: the cap is far beyond any vocabulary's size.
    return {"perplexity": math.exp(min(total / len(held_out), 50.0))}


def main(argv: Sequence[str] | None = None) -> None:
    args = options.parse(CATALOG["language_model"], argv)
    options.seed()
    train, held_out = load(args.preset, args.data_dir)
    model = build_model(args.preset, train).to(options.DEVICE)
    steps = options.total_steps(args, len(train))
    optimizer, scheduler = build_optimizer(model, args.preset, steps)
    with training(
        model, optimizer, scheduler, evaluate=lambda: evaluate(model, held_out), epochs=args.epochs
    ) as t:
        for batch in t.loader(train, batch_size=args.batch_size):
            t.step(batch_loss(model, batch), clip_norm=1.0)


if __name__ == "__main__":
    main()
