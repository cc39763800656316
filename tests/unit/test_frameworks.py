"""Lightning and the Hugging Face Trainer under orders; skipped where they are not installed."""

import json
import signal
import time

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def data() -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(40, 3, generator=rng), torch.randn(40, 1, generator=rng))


@pytest.fixture
def orders(tmp_path, monkeypatch):
    """Two orders of five steps, the second one waiting; returns where they leave their files."""
    placed = []
    for number in (1, 2):
        files = tmp_path / str(number)
        files.mkdir()
        placed.append(
            {
                "HADAR_STEPS": "5",
                "HADAR_SLICES": f"{5 * number - 5}:{5 * number}",
                "HADAR_SECONDS_LEFT": "600",
                "HADAR_ISSUED_AT": repr(time.monotonic()),
                "HADAR_CKPT_IN": str(tmp_path / "1" / "weights") if number == 2 else "",
                "HADAR_CKPT_OUT": str(files / "weights"),
                "HADAR_RESULT": str(files / "result"),
                "HADAR_GLOBAL_STEP": str(5 * number - 5),
                "HADAR_TOTAL_STEPS": "100",
                "HADAR_NEXT": str(tmp_path / "next") if number == 1 else "",
                "HADAR_LR_SCALE": "2.0",
            }
        )
    (tmp_path / "next").write_text(json.dumps(placed[1]))
    for name, value in placed[0].items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    yield placed
    signal.signal(signal.SIGTERM, before)


def results(orders) -> list[dict]:
    return [json.loads(open(order["HADAR_RESULT"]).read()) for order in orders]


def check(orders) -> None:
    first, second = results(orders)
    assert (first["steps"], first["slices"], first["waiting"]) == (5, [[0, 5]], True)
    assert (second["steps"], second["slices"]) == (5, [[5, 10]])
    assert set(first["data"]).isdisjoint(second["data"])
    assert first["lr"][0] == pytest.approx(0.1)
    assert first["lr"][0] > first["lr"][1] > second["lr"][0] > second["lr"][1]
    one, two = (load_file(order["HADAR_CKPT_OUT"]) for order in orders)
    assert one.keys() == two.keys()
    assert any(name.startswith("optimizer/0/0/") for name in one)
    assert not torch.equal(one["model/0/net.weight"], two["model/0/net.weight"])


def test_lightning_trains_under_orders(orders, tmp_path):
    lightning = pytest.importorskip("lightning")
    from hadar_cli.node.lightning import fit

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(3, 1)

        def training_step(self, batch, batch_idx):
            return (self.net(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s))
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    fit(trainer, Module(), DataLoader(data(), batch_size=4, shuffle=True))
    check(orders)
    assert results(orders)[0]["metrics"]["loss"] > 0


def test_the_hugging_face_trainer_trains_under_orders(orders, tmp_path):
    transformers = pytest.importorskip("transformers")
    from hadar_cli.node.huggingface import train

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(3, 1)

        def forward(self, x, labels):
            return {"loss": (self.net(x) - labels).square().mean()}

    samples = [{"x": x, "labels": y} for x, y in data()]
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path / "out",
        per_device_train_batch_size=4,
        learning_rate=0.1,
        num_train_epochs=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    train(transformers.Trainer(Model(), arguments, train_dataset=samples))
    check(orders)
    assert results(orders)[0]["metrics"]["loss"] > 0
