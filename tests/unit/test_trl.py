"""TRL's SFTTrainer, with a whole model and with PEFT's LoRA: on one device exactly as by hand."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from hadar_cli import huggingface
from tests.support.orders import Orders, keep_sigterm

torch.set_num_threads(1)
_sigterm = pytest.fixture(autouse=True)(keep_sigterm)

WORDS = ["the", "cat", "dog", "bird", "sees", "hears", "loves", "small", "large", "red", "blue"]


def tokenizer() -> PreTrainedTokenizerFast:
    known = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def texts(count: int, seed: int) -> Dataset:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, len(WORDS), (count, 8), generator=rng).tolist()
    return Dataset.from_dict({"text": [" ".join(WORDS[i] for i in row) for row in rows]})


def trainer(tmp_path, lora: bool) -> SFTTrainer:
    torch.manual_seed(1)
    words = tokenizer()
    size = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=len(words), n_positions=32)
    arguments = SFTConfig(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=0.01,
        warmup_steps=2,
        max_length=16,
        bf16=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        gradient_checkpointing=False,
    )
    adapter = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM") if lora else None
    return SFTTrainer(
        GPT2LMHeadModel(size),
        arguments,
        train_dataset=texts(18, 0),  # five mini-batches: updates of two, two and one
        eval_dataset=texts(8, 1),
        processing_class=words,
        peft_config=adapter,
    )


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "LoRA"])
def test_on_one_device_it_trains_as_by_hand(lora, tmp_path, monkeypatch):
    plain = trainer(tmp_path, lora)
    huggingface.train(plain)
    wanted = plain.evaluate()["eval_loss"]

    orders = Orders(tmp_path, monkeypatch, 6)
    orders.process((0, 2), (2, 4))
    huggingface.train(trainer(tmp_path, lora))
    orders.process((4, 6), evaluate=True)
    huggingface.train(trainer(tmp_path, lora))
    assert [r["steps"] for r in orders.results()] == [2, 2, 2, 0]
    found, state = orders.weights(), plain.model.state_dict()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-5, atol=1e-7, msg=name)
    assert all("lora" in name for name in found) == lora  # what is frozen did not travel
    assert orders.results()[-1]["evaluation"]["eval_loss"] == pytest.approx(wanted, rel=1e-5)
