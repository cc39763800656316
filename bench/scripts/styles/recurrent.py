"""An LSTM over a long text in parallel columns, its hidden state carried from batch to batch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

from hadar_cli import training  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
COLUMNS, BLOCK, VOCABULARY = 16, 20, 12


def columns(length, seed):
    rng = torch.Generator().manual_seed(seed)
    text = torch.randint(1, 3, (length,), generator=rng).cumsum(0) % VOCABULARY
    return text[: length // COLUMNS * COLUMNS].view(COLUMNS, -1).T.contiguous()


def batches(text):
    return [
        (text[i : i + BLOCK], text[i + 1 : i + BLOCK + 1])
        for i in range(0, len(text) - BLOCK - 1, BLOCK)
    ]


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.rnn = nn.LSTM(width, width)
        self.head = nn.Linear(width, VOCABULARY)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, hidden):
        h, hidden = self.rnn(self.dropout(self.words(x)), hidden)
        return self.head(self.dropout(h)), hidden


def score(x, y, hidden):
    output, hidden = model(x, hidden)
    return nn.functional.cross_entropy(output.flatten(0, 1), y.flatten()), hidden


def test():
    model.eval()
    hidden, losses = None, []
    with torch.no_grad():
        for x, y in held_out:
            loss, hidden = score(x, y, hidden)
            losses.append(loss.item())
    model.train()
    return {"loss": sum(losses) / len(losses)}


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
train, held_out = batches(columns(16000, 1)), batches(columns(3000, 2))
loader = DataLoader(train, batch_size=None)
t = training(model, optimizer, evaluate=test)  # hadar
for epoch in t.epochs(3):  # hadar: for epoch in range(3):
    hidden = None
    for x, y in t.loader(loader):  # hadar: for x, y in loader:
        if hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        loss, hidden = score(x, y, hidden)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
print("quality", test())
