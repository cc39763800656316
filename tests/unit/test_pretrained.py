"""Finished models of transformers and PEFT are folders that their own libraries load."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    GPT2Config,
    MixtralConfig,
)

from hadar_cli.node.training.checkpoints import checkpoint
from hadar_cli.runs.finished_models import export_model, export_pretrained

SMALL = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "vocab_size": 20}
GPT2 = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8)
EXPERTS = MixtralConfig(**SMALL, **HEADS, num_key_value_heads=2, num_local_experts=2)
TOKENS = torch.arange(6)[None]


def trained(model, path):
    """Two steps, and the checkpoint that a copy hands in."""
    given = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(given, 0.5)
    parts = checkpoint.Parts([model], [optimizer])
    checkpoint.begin(parts)
    for _ in range(2):
        optimizer.zero_grad()
        model(TOKENS).logits.pow(2).mean().backward()
        optimizer.step()
    checkpoint.save(path, parts)
    return model.eval()


def text_model(config):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("config", [GPT2, EXPERTS], ids=["tied", "experts"])
def test_a_transformers_model_is_loaded_by_from_pretrained(config, tmp_path):
    model = trained(text_model(config), tmp_path / "handed-in")
    assert export_pretrained(tmp_path / "handed-in", tmp_path / "folder")
    again, found = AutoModelForCausalLM.from_pretrained(
        tmp_path / "folder", output_loading_info=True
    )
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert type(again) is type(model)
    assert torch.equal(again.eval()(TOKENS).logits, model(TOKENS).logits)
    assert (tmp_path / "folder" / "generation_config.json").exists()


def test_a_classifier_keeps_its_labels(tmp_path):
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    config = BertConfig(**SMALL, **HEADS, max_position_embeddings=8, **labels)
    model = trained(AutoModelForSequenceClassification.from_config(config), tmp_path / "handed-in")
    assert export_pretrained(tmp_path / "handed-in", tmp_path / "folder")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "folder").eval()
    assert again.config.id2label == labels["id2label"]
    torch.testing.assert_close(again(TOKENS).logits, model(TOKENS).logits)


def test_an_adapter_is_loaded_onto_its_base_model(tmp_path):
    lora = LoraConfig(
        r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    model = trained(get_peft_model(text_model(EXPERTS), lora), tmp_path / "handed-in")
    assert export_pretrained(tmp_path / "handed-in", tmp_path / "folder")
    again = PeftModel.from_pretrained(text_model(EXPERTS), tmp_path / "folder").eval()
    assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)
    with safe_open(tmp_path / "folder" / "adapter_model.safetensors", "pt") as file:
        assert all("lora" in name or "lm_head" in name for name in file.keys())  # noqa: SIM118


def test_weights_that_never_travelled_make_no_folder(tmp_path):
    """It would be loaded with random numbers in their place."""
    model = text_model(GPT2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "ln_f" in name
    trained(model, tmp_path / "handed-in")
    assert not export_pretrained(tmp_path / "handed-in", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    export_model(tmp_path / "handed-in", tmp_path / "state")


def test_any_other_model_has_a_state_dict_only(tmp_path):
    model = torch.nn.Linear(2, 2)
    parts = checkpoint.Parts([model], [torch.optim.SGD(model.parameters(), 0.1)])
    checkpoint.begin(parts)
    checkpoint.save(tmp_path / "handed-in", parts)
    assert not export_pretrained(tmp_path / "handed-in", tmp_path / "folder")


@pytest.mark.parametrize(
    "told",
    [
        *("x", {}, {"files": {}, "weights": "../x"}, {"files": [], "weights": "model.safetensors"}),
        {"files": {"../x.json": "{}"}, "weights": "model.safetensors"},
        {"files": {"config.json": 3}, "weights": "model.safetensors"},
        {"files": {}, "weights": "model.safetensors", "names": {"a": ["b"]}},
        {"files": {}, "weights": "model.safetensors", "names": {"a": "not there"}},
    ],
)
def test_a_node_that_describes_nonsense_gets_no_folder(told, tmp_path):
    metadata = {"hadar": json.dumps({"pretrained": told})}
    save_file({"model/0/w": torch.ones(2)}, tmp_path / "handed-in", metadata)
    assert not export_pretrained(tmp_path / "handed-in", tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["handed-in"]
