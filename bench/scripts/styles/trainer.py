"""The Hugging Face Trainer: accumulation, warm-up and cosine, weight decay, clipping, metrics."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from hadar_cli import huggingface  # hadar

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
set_seed(args.seed)


def rows(count, seed):
    rng = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (count, 16), generator=rng)
    return [{"input_ids": r, "labels": r} for r in steps.cumsum(1) % 20]


size = GPT2Config(
    n_layer=2, n_embd=32, n_head=2, vocab_size=20, n_positions=16, bos_token_id=0, eos_token_id=0
)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_train_epochs=3,
    learning_rate=3e-3,
    lr_scheduler_type="cosine",
    warmup_steps=10,
    weight_decay=0.1,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    seed=args.seed,
)
trainer = Trainer(
    GPT2LMHeadModel(size), arguments, train_dataset=rows(800, 1), eval_dataset=rows(128, 2)
)
huggingface.train(trainer)  # hadar: trainer.train()
print("quality", {"eval_loss": trainer.evaluate()["eval_loss"]})
