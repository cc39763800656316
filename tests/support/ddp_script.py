"""Data-parallel training as the tutorials have it; the lines marked are the plain contract's."""

import json
import os

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(256, 8, generator=rng)
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = nn.Linear(8, 1)
    if given := os.environ["HADAR_CKPT_IN"]:  # contract
        model.load_state_dict(load_file(given))  # contract
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps, done, epoch = int(os.environ["HADAR_STEPS"]), 0, 0  # contract
    while done < steps:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
        epoch += 1
    print("rank", rank, "of", dist.get_world_size(), "through", os.environ["GLOO_SOCKET_IFNAME"])
    if rank == 0 and os.environ["HADAR_CKPT_OUT"]:  # contract
        save_file(model.module.state_dict(), os.environ["HADAR_CKPT_OUT"])
    if rank == 0:  # contract
        result = {"steps": steps, "metrics": {"loss": loss.item()}}
        with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
            json.dump(result, file)
        os.rename(file.name, os.environ["HADAR_RESULT"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
