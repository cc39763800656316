"""TRL's SFTTrainer on a LoRA of PEFT."""

import argparse

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from hadar_cli import huggingface  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
set_seed(args.seed)
WORDS = ["<pad>", "<eos>", "the", "a", "cat", "dog", "sees", "hears", "small", "large", "red"]

made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<pad>"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
words = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def texts(count, seed):
    rng = torch.Generator().manual_seed(seed)
    draws = torch.randint(1, 3, (count, 10), generator=rng).cumsum(1) % 9 + 2
    return Dataset.from_dict({"text": [" ".join(WORDS[i] for i in row) for row in draws.tolist()]})


size = GPT2Config(
    n_layer=2, n_embd=32, n_head=2, vocab_size=len(WORDS), bos_token_id=1, eos_token_id=1
)
arguments = SFTConfig(
    "out",
    per_device_train_batch_size=8,
    num_train_epochs=3,
    learning_rate=0.02,
    bf16=False,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    gradient_checkpointing=False,
    seed=args.seed,
)
trainer = SFTTrainer(
    GPT2LMHeadModel(size),
    arguments,
    train_dataset=texts(400, 1),
    eval_dataset=texts(64, 2),
    processing_class=words,
    peft_config=LoraConfig(r=4, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM"),
)
huggingface.train(trainer)  # hadar: trainer.train()
print("quality", {"eval_loss": trainer.evaluate()["eval_loss"]})
