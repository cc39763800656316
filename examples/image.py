"""Tell ten shapes apart: an ordinary image classifier with a schedule and a validation loop."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import training  # hadar


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(self.dropout(x.flatten(1)))


def draw(count, seed):
    """Ten fixed shapes of 16 × 16, shifted and under noise."""
    shapes = torch.rand(10, 1, 16, 16, generator=torch.Generator().manual_seed(0)).gt(0.6).float()
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=rng)
    shifts = torch.randint(-2, 3, (count, 2), generator=rng).tolist()
    images = [
        shapes[y].roll(tuple(s), (1, 2)) for y, s in zip(labels.tolist(), shifts, strict=True)
    ]
    noise = torch.randn(count, 1, 16, 16, generator=rng)
    return TensorDataset(torch.stack(images) + 0.5 * noise, labels)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"epoch {epoch} [{batch_idx}/{len(train_loader)}] loss {loss.item():.4f}")


def test(model, device, valid):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in valid:
            output = model(data.to(device)).cpu()
            loss += F.cross_entropy(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    count = len(valid.dataset)
    print(f"test loss {loss / count:.4f}, accuracy {correct}/{count}")
    return {"accuracy": correct / count}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(draw(args.samples, 1), args.batch_size, shuffle=True)
    valid = DataLoader(draw(500, 2), 100)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    t = training(model, optimizer, scheduler, evaluate=lambda: test(model, device, valid))  # hadar
    for epoch in t.epochs(range(1, args.epochs + 1)):  # hadar
        train(args, model, device, t.loader(train_loader), optimizer, epoch)  # hadar
        test(model, device, valid)
        scheduler.step()


if __name__ == "__main__":
    main()
