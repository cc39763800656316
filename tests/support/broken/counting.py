"""A loop with a patience, a best epoch and a history of its own."""

import torch

from hadar_cli import training


class Stopper:
    def __init__(self, patience: int) -> None:
        self.patience, self.bad, self.best = patience, 0, float("inf")

    def __call__(self, loss: float) -> bool:
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad >= self.patience


def train(is_given: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    model = torch.nn.Linear(8, 2)
    stopper, history, best = Stopper(1000), {"losses": []}, {"epoch": 0}
    state = {"stopper": stopper, "history": history, "best": best} if is_given else {}
    t = training(model, torch.optim.AdamW(model.parameters(), 1e-3), state=state)
    for epoch in t.epochs(4):
        for x, y in t.loader(torch.utils.data.DataLoader(data, 16, shuffle=True)):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            t.step(loss)
            history["losses"].append(loss.item())
        if loss.item() < stopper.best:
            best["epoch"] = epoch
        if stopper(loss.item()):
            t.stop()
