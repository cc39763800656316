"""Lightning: a module, a data module, validation, a schedule by steps."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import lightning as under_hadar  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
lightning.seed_everything(args.seed, verbose=False)


def samples(count, seed):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=rng)
    return TensorDataset(x, x[:, :1].sin() * x[:, 1:2])


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        order = torch.Generator().manual_seed(args.seed)
        return DataLoader(samples(2048, 1), batch_size=32, shuffle=True, generator=order)

    def val_dataloader(self):
        return DataLoader(samples(512, 2), batch_size=512)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.05), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        return (self.net(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("error", (self.net(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
)
module, data = Module(), Data()
under_hadar.fit(trainer, module, datamodule=data)  # hadar: trainer.fit(module, datamodule=data)
print("quality", {"error": float(trainer.callback_metrics["error"])})
