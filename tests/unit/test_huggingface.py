"""Hugging Face's Trainer, TRL's and PEFT's models: on one device exactly as by hand."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoTokenizer,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hadar_cli import huggingface
from hadar_cli.node.training.attempt import unfinished
from hadar_cli.node.training.misuse.refused import Refused
from hadar_cli.runs.finished_models import add_beside, export_pretrained
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)


def samples(count: int, seed: int = 0) -> list[dict]:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 30, (count, 9), generator=rng)
    lengths = torch.randint(4, 9, (count,), generator=rng).tolist()
    return [{"input_ids": row[:n], "labels": row[:n]} for row, n in zip(rows, lengths, strict=True)]


def collate(rows: list[dict]) -> dict:
    def padded(name: str, fill: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([r[name] for r in rows], True, fill)

    return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100)}


def model() -> GPT2LMHeadModel:
    """With GPT-2's own dropout of 0.1."""
    torch.manual_seed(1)
    size = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=30, n_positions=16)
    return GPT2LMHeadModel(size)


def arguments(tmp_path, **more) -> TrainingArguments:
    words = {
        "output_dir": str(tmp_path / "out"),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "max_grad_norm": 0.5,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        **more,
    }
    return TrainingArguments(**words)


class Losses(TrainerCallback):
    """What the Trainer logs, by its own count of steps."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[float, float]] = {}
        self.epochs: list[float] = []

    def on_log(self, args, state, control, logs=None, **made) -> None:
        if "loss" in logs:
            self.seen[state.global_step] = (logs["loss"], logs["learning_rate"])
            self.epochs.append(round(logs["epoch"], 3))


def trainer(tmp_path, callbacks=(), metrics=None, **more) -> Trainer:
    return Trainer(
        model(),
        arguments(tmp_path, **more),
        data_collator=collate,
        train_dataset=samples(38),  # ten mini-batches, the last of two: updates of 3, 3, 3 and 1
        eval_dataset=samples(12, 1),
        callbacks=list(callbacks),
        compute_metrics=metrics,
    )


def close(mine: dict, theirs: dict) -> None:
    assert mine.keys() == {name for name in theirs if name in mine}
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"gradient_accumulation_steps": 1, "lr_scheduler_type": "linear", "max_steps": 8},
        {"train_sampling_strategy": "group_by_length", "lr_scheduler_type": "constant"},
        {"eval_strategy": "epoch", "dataloader_num_workers": 1},
    ],
    ids=["accumulation, cosine", "linear", "by length", "evaluating"],
)
def test_on_one_device_it_trains_as_by_hand(words, tmp_path, monkeypatch):
    by_hand = Losses()
    plain = trainer(tmp_path, [by_hand], **words)
    huggingface.train(plain)
    wanted = plain.evaluate()["eval_loss"]

    orders, under = Orders(tmp_path, monkeypatch, 8), Losses()
    orders.process((0, 3), (3, 5))
    huggingface.train(trainer(tmp_path, [under], **words))
    orders.process((5, 8), evaluate=True)
    huggingface.train(trainer(tmp_path, [under], **words))

    assert [r["steps"] for r in orders.results()] == [3, 2, 3, 0]
    assert [r["stopped"] for r in orders.results()] == ["steps"] * 4
    assert under.seen.keys() == by_hand.seen.keys() == set(range(1, 9))
    for step, (loss, rate) in by_hand.seen.items():
        assert under.seen[step] == pytest.approx((loss, rate), rel=1e-5), step
    assert under.epochs == by_hand.epochs
    close(orders.weights(), plain.model.state_dict())
    assert orders.results()[-1]["evaluation"]["eval_loss"] == pytest.approx(wanted, rel=1e-5)


def test_what_collating_draws_comes_before_the_step_before_as_by_hand(tmp_path, monkeypatch):
    """As masks of a masked language model: accelerate has read the next mini-batch by then."""

    def masked(rows: list[dict]) -> dict:
        batch = collate(rows)
        batch["input_ids"][torch.rand(batch["input_ids"].shape) < 0.3] = 0
        return batch

    def train(seen: Losses) -> None:
        made = trainer(tmp_path, [seen])
        made.data_collator = masked
        huggingface.train(made)

    by_hand, under = Losses(), Losses()
    train(by_hand)
    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((0, 3), (3, 5), (5, 8))
    train(under)
    assert under.seen.keys() == by_hand.seen.keys()
    for step, told in by_hand.seen.items():
        assert under.seen[step] == pytest.approx(told, rel=1e-5), step


def test_the_tokenizer_comes_home_with_the_model(tmp_path, monkeypatch):
    words = Tokenizer(WordLevel({"[UNK]": 0, "green": 1, "tea": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    out, folder = tmp_path / "home", tmp_path / "models" / "job"
    monkeypatch.setenv("HADAR_OUT", str(out))
    orders = Orders(tmp_path, monkeypatch, 1)
    (order,) = orders.process((0, 1))
    made = trainer(tmp_path)
    made.processing_class = tokenizer
    huggingface.train(made)

    folder.parent.mkdir()
    assert export_pretrained(Path(order["HADAR_CKPT_OUT"]), folder)
    config = (folder / "config.json").read_text()
    (out / "pretrained" / "config.json").write_text("not this one")
    add_beside(out, folder)
    assert AutoTokenizer.from_pretrained(folder)("tea green?")["input_ids"] == [2, 0]
    assert (folder / "config.json").read_text() == config
    add_beside(tmp_path / "nothing left", folder)


def test_what_a_trainer_has_trained_when_it_stops_early_is_the_jobs_result(tmp_path, monkeypatch):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **made) -> None:
            control.should_training_stop = state.global_step == 2

    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((0, 8))
    huggingface.train(trainer(tmp_path, [Stop()]))
    (result,) = orders.results()
    assert (result["steps"], result["stopped"], result["waiting"]) == (2, "script", False)


def test_early_stopping_hears_of_the_trainers_own_evaluations_only(tmp_path, monkeypatch):
    patient = EarlyStoppingCallback(early_stopping_patience=2, early_stopping_threshold=100.0)
    words = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_loss"}
    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((0, 8))
    monkeypatch.setenv("HADAR_EVALUATE", "1")
    huggingface.train(trainer(tmp_path, [patient], load_best_model_at_end=False, **words))
    (result,) = orders.results()
    assert (result["steps"], result["stopped"]) == (3, "script")
    assert result["evaluation"]["eval_loss"] > 0


def test_a_patience_is_that_of_the_job_and_not_of_a_process(tmp_path, monkeypatch):
    """The first figure stays the best; the fifth that is no better comes in the second process."""
    words = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_loss"}
    orders = Orders(tmp_path, monkeypatch, 8)
    best = []
    for slices in [(0, 3)], [(3, 5), (5, 8)]:
        orders.process(*slices)
        patient = EarlyStoppingCallback(early_stopping_patience=5, early_stopping_threshold=100.0)
        made = trainer(tmp_path, [patient], load_best_model_at_end=False, **words)
        huggingface.train(made)
        best.append(made.state.best_metric)
    last = orders.results()[-1]
    assert (last["steps"], last["stopped"]) == (1, "script")
    assert patient.early_stopping_patience_counter == 5
    assert best[1] <= best[0]


class Mean(TrainerCallback):
    """A running mean of the weights, as people write it for the Trainer."""

    def on_train_begin(self, args, state, control, model=None, **made) -> None:
        self.means = [p.detach().clone() for p in model.parameters()]

    def on_step_end(self, args, state, control, model=None, **made) -> None:
        for mean, p in zip(self.means, model.parameters(), strict=True):
            mean.lerp_(p.detach(), 0.1)


def test_a_mean_of_the_weights_in_a_callback_is_refused(tmp_path, monkeypatch):
    Orders(tmp_path, monkeypatch, 8).process((0, 3))
    made = trainer(tmp_path, [Mean()])
    with pytest.raises(Refused, match=r"means holds weights of the shapes of the model's"):
        huggingface.train(made)
    unfinished.clear()  # as its process would be


def test_compute_metrics_are_the_jobs_quality(tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((0, 1), evaluate=True)
    made = trainer(tmp_path, metrics=lambda found: {"right": 0.25})
    huggingface.train(made)
    assert orders.results()[-1]["evaluation"].keys() == {"eval_loss", "eval_right"}


def test_the_metric_for_the_best_model_comes_first_with_its_direction(tmp_path, monkeypatch):
    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((0, 1), evaluate=True)
    words = {"metric_for_best_model": "distance", "greater_is_better": False}
    huggingface.train(trainer(tmp_path, metrics=lambda found: {"distance": 0.25}, **words))
    result = orders.results()[-1]
    assert list(result["evaluation"]) == ["eval_distance", "eval_loss"]
    assert result["higher_is_better"] is False


def test_a_copy_that_has_the_jobs_last_steps_first_goes_on(tmp_path, monkeypatch):
    """Other copies may still be at the steps before: more can come."""
    orders = Orders(tmp_path, monkeypatch, 8)
    orders.process((6, 8), (2, 4))
    huggingface.train(trainer(tmp_path))
    assert [r["slices"] for r in orders.results()] == [[[6, 8]], [[2, 4]]]


def test_resuming_from_the_trainers_own_checkpoints_is_refused(tmp_path, monkeypatch):
    Orders(tmp_path, monkeypatch, 8).process((0, 1))
    with pytest.raises(ValueError, match="hadar's checkpoints"):
        huggingface.train(trainer(tmp_path), resume_from_checkpoint="out")


def test_micro_batches_of_a_card_that_is_too_small_make_the_same_update(tmp_path, monkeypatch):
    def weights(number: int) -> dict:
        orders = Orders(tmp_path / str(number), monkeypatch, 8)
        orders.process((0, 2))
        monkeypatch.setenv("HADAR_MICRO_BATCHES", str(number))
        made = trainer(tmp_path, optim="sgd")  # Adam makes noise of gradients that are nothing
        made.model.eval()  # no dropout: it would draw another number of times
        made.model.train = lambda mode=True: made.model
        huggingface.train(made)
        return orders.weights()

    close(weights(1), weights(3))
