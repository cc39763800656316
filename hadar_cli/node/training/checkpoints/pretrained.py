"""What makes a file of weights a folder that ``from_pretrained`` loads: a model of transformers, or
an adapter of PEFT, described by its own library.

The description is a few small files and the names that the weights have in such a folder. It goes
with every checkpoint, so that the head, which has neither library, can write the folder of the
merged weights (runs/housekeeping.py).
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_LONGEST = 1 << 18  # characters of a description
MODEL, ADAPTER = "model.safetensors", "adapter_model.safetensors"


def describe(models: Sequence[torch.nn.Module]) -> dict[str, Any]:
    """The files beside the weights, where those go, and their names there if they differ; empty for
    any other model, or several."""
    if len(models) != 1:
        return {}
    model: Any = getattr(models[0], "_orig_mod", models[0])  # inside of torch.compile
    transformers, peft = sys.modules.get("transformers"), sys.modules.get("peft")
    if peft and isinstance(model, peft.PeftModel):
        found = _adapter(model, peft)
    elif transformers and isinstance(model, transformers.PreTrainedModel):
        found = _model(model)
    else:
        return {}
    return found if sum(map(len, found.get("files", {}).values())) < _LONGEST else {}


def _model(model: Any) -> dict[str, Any]:
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        if getattr(model, "generation_config", None) is not None and model.can_generate():
            copy.deepcopy(model.generation_config).save_pretrained(folder)
        return {"files": _texts(Path(folder)), "weights": MODEL}


def _adapter(model: Any, peft: Any) -> dict[str, Any]:
    """Of its one adapter; PEFT says itself what belongs to it, and how it is named."""
    if len(model.peft_config) != 1:
        return {}
    (name,) = model.peft_config
    saved = peft.get_peft_model_state_dict(model, adapter_name=name)
    held = {_place(value): entry for entry, value in model.state_dict().items()}
    if any(_place(value) not in held for value in saved.values()):
        return {}
    config = copy.deepcopy(model.peft_config[name])
    config.inference_mode = True
    if config.base_model_name_or_path is None:
        base = model.get_base_model()
        config.base_model_name_or_path = getattr(base, "name_or_path", None) or None
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        names = {entry: held[_place(value)] for entry, value in saved.items()}
        return {"files": _texts(Path(folder)), "weights": ADAPTER, "names": names}


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("*.json"))}
