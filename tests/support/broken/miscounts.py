"""Its scheduler is told of updates, as timm's are, by a count that begins anew with every order."""

import torch

from hadar_cli import training

torch.manual_seed(0)
data = torch.randn(24, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Rate:
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def step(self, epoch):
        pass

    def step_update(self, num_updates):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + 0.01 * num_updates)


rate = Rate()
t = training(model, optimizer, rate)
for epoch in t.epochs(20):
    for index, x in enumerate(t.loader(torch.utils.data.DataLoader(data, batch_size=4))):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()
        rate.step_update(epoch * 6 + index + 1)
