"""Lightning: on one device exactly as by hand, with loaders or a data module."""

import signal

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch.utils.data import DataLoader, TensorDataset

from hadar_cli import lightning as under_hadar
from hadar_cli.node.training.misuse.refused import Refused
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)


def data(count: int, seed: int = 0) -> TensorDataset:
    rng = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 3, generator=rng), torch.randn(count, 1, generator=rng))


def training_loader() -> DataLoader:
    """Ten mini-batches: updates of three, three, three and one."""
    return DataLoader(data(38), batch_size=4, shuffle=True)


def validation_loader() -> DataLoader:
    return DataLoader(data(10, 1), batch_size=4)


class Module(lightning.LightningModule):
    def __init__(self, interval: str = "step", plateau: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        self.interval, self.plateau = interval, plateau
        self.losses: dict[tuple[int, int], float] = {}
        self.epochs_ended: list[int] = []

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.losses[self.current_epoch, batch_idx] = loss.item()
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.net(batch[0]) - batch[1]).square().mean())

    def on_train_epoch_end(self):
        self.epochs_ended.append(self.current_epoch)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        total = self.trainer.estimated_stepping_batches
        if self.plateau:
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, patience=0, factor=0.1
            )
            return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - s / (total + 1))
        return [optimizer], [{"scheduler": scheduler, "interval": self.interval}]


class Data(lightning.LightningDataModule):
    is_set_up = False

    def setup(self, stage: str) -> None:
        self.is_set_up = True

    def train_dataloader(self):
        assert self.is_set_up
        return training_loader()

    def val_dataloader(self):
        return validation_loader()


def trainer(tmp_path, **words) -> lightning.Trainer:
    given = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
        "accumulate_grad_batches": 3,
        "gradient_clip_val": 0.5,
        **words,
    }
    return lightning.Trainer(**given)


@pytest.mark.parametrize(
    ("module", "words", "given"),
    [
        ({}, {}, "loaders"),
        ({"interval": "epoch"}, {}, "module"),
        ({}, {"precision": "bf16-mixed"}, "loaders"),
        ({"plateau": True}, {}, "keyword module"),
    ],
    ids=["steps", "epochs, data module", "bfloat16", "plateau"],
)
def test_on_one_device_it_trains_as_by_hand(module, words, given, tmp_path, monkeypatch):
    def fit() -> Module:
        made = Module(**module)
        if given == "loaders":
            under_hadar.fit(
                trainer(tmp_path, **words), made, training_loader(), validation_loader()
            )
        elif given == "module":
            under_hadar.fit(trainer(tmp_path, **words), made, Data())
        else:
            under_hadar.fit(trainer(tmp_path, **words), made, datamodule=Data())
        return made

    by_hand = fit()
    with torch.no_grad():
        by_hand.eval()
        whole = data(10, 1).tensors
        wanted = (by_hand.net(whole[0]) - whole[1]).square().mean().item()
    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((0, 3), (3, 5))
    first = fit()
    orders.process((5, 8), evaluate=True)
    second = fit()

    assert [r["steps"] for r in orders.results()] == [3, 2, 3, 0]
    losses = {**first.losses, **second.losses}
    assert losses.keys() == by_hand.losses.keys()
    for place, loss in by_hand.losses.items():
        assert losses[place] == pytest.approx(loss, rel=1e-5), place
    state = by_hand.state_dict()
    for name, tensor in orders.weights().items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-5, atol=1e-7, msg=name)
    assert orders.results()[-1]["evaluation"]["val_loss"] == pytest.approx(wanted, rel=1e-2)
    assert by_hand.epochs_ended == [0, 1]
    assert (first.epochs_ended[0], second.epochs_ended[0]) == (0, 1)


def test_what_lightning_has_trained_when_it_stops_early_is_the_jobs_result(tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 80)
    orders.process((0, 80))
    monkeypatch.setenv("HADAR_EVALUATE", "1")  # which is not the callback's business
    stop = EarlyStopping("val_loss", patience=2, min_delta=100.0)
    patient = trainer(tmp_path, callbacks=[stop], max_epochs=20)
    loaders = training_loader(), validation_loader()
    under_hadar.fit(patient, Module(), *loaders, higher_is_better=True)
    (result,) = orders.results()
    assert (result["steps"], result["stopped"], result["waiting"]) == (12, "script", False)
    assert result["higher_is_better"] is True
    assert result["evaluation"]["val_loss"] > 0


def test_a_patience_is_that_of_the_job_and_not_of_a_process(tmp_path, monkeypatch):
    """The first validation is the best; the sixth that is no better comes in the second process."""
    orders = Orders(tmp_path, monkeypatch, 80)
    stop = {"monitor": "val_loss", "patience": 6, "min_delta": 100.0}
    loaders = training_loader(), validation_loader()
    best = []
    for slices in [(0, 10)], [(10, 13), (13, 80)]:  # of four steps an epoch
        orders.process(*slices)
        callback = EarlyStopping(**stop)
        patient = trainer(tmp_path, callbacks=[callback], max_epochs=20)
        under_hadar.fit(patient, Module(), *loaders)
        best.append(callback.best_score.item())
    last = orders.results()[-1]
    assert (last["steps"], last["stopped"]) == (28 - 13, "script")
    assert best[0] == best[1]


@pytest.mark.parametrize("kind", [StochasticWeightAveraging, WeightAveraging])
def test_a_mean_of_the_weights_that_is_made_when_all_is_over_is_refused(
    kind, tmp_path, monkeypatch
):
    Orders(tmp_path, monkeypatch, 8).process((0, 8))
    averaging = trainer(tmp_path, callbacks=[kind(*([0.1] if kind is not WeightAveraging else []))])
    with pytest.raises(Refused, match=f"{kind.__name__} makes the mean of the weights when"):
        under_hadar.fit(averaging, Module(), training_loader())


class Interrupted(Module):
    def on_validation_start(self):
        if self.current_epoch == 2:
            signal.raise_signal(signal.SIGTERM)


def test_a_copy_told_to_leave_between_epochs_is_not_a_job_that_is_done(tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 80)
    orders.process((0, 80))
    loaders = DataLoader(data(36), batch_size=4), validation_loader()
    under_hadar.fit(trainer(tmp_path, max_epochs=20), Interrupted(), *loaders)
    (result,) = orders.results()
    assert result["stopped"] == "signal"
    assert result["steps"] == 9


def test_a_copy_that_has_the_jobs_last_steps_first_goes_on(tmp_path, monkeypatch):
    """Other copies may still be at the steps before: more can come."""
    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((6, 8), (2, 4))
    under_hadar.fit(trainer(tmp_path), Module(), training_loader())
    assert [r["slices"] for r in orders.results()] == [[[6, 8]], [[2, 4]]]


def test_several_training_loaders_are_refused(tmp_path, monkeypatch):
    Orders(tmp_path, monkeypatch, 8).process((0, 8))
    with pytest.raises(TypeError, match="one training loader"):
        under_hadar.fit(trainer(tmp_path), Module(), [training_loader(), training_loader()])


def test_schedules_of_unlike_intervals_are_refused(tmp_path, monkeypatch):
    class Odd(Module):
        def configure_optimizers(self):
            optimizers, (config,) = super().configure_optimizers()
            return optimizers, [{**config, "frequency": 2}]

    Orders(tmp_path, monkeypatch, 8).process((0, 8))
    with pytest.raises(ValueError, match="frequency 1"):
        under_hadar.fit(trainer(tmp_path), Odd(), training_loader())


def test_a_loader_with_a_generator_and_no_short_batch_goes_as_by_hand(tmp_path, monkeypatch):
    """Lightning does not ask it for its end, where RandomSampler would draw once more."""

    def fit() -> Module:
        made, rng = Module(), torch.Generator().manual_seed(3)
        loader = DataLoader(data(36), batch_size=4, shuffle=True, generator=rng)
        under_hadar.fit(trainer(tmp_path), made, loader)
        return made

    by_hand = fit()
    Orders(tmp_path, monkeypatch, 6).process((0, 6))
    assert fit().losses == pytest.approx(by_hand.losses, rel=1e-5)
