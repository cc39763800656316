"""Finished models as files that others load: a state_dict, and where a job's model was one of
transformers or an adapter of PEFT, a folder for ``from_pretrained``."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hadar_cli.node.contract import BESIDE_MODEL
from hadar_cli.weights.safetensors_file import DTYPES, Array, Checkpoint, Tensor, write

_BLOCK = 1 << 20  # elements
_FILE = re.compile(r"[a-z_]{1,60}\.json")  # beside the weights: a node names them
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class _Model:
    """A checkpoint's models: which entries of ``state_dict`` are stored where."""

    source: Checkpoint
    notes: Mapping[str, Any]
    held: Mapping[str, str]  # entry -> the tensor in the checkpoint that is it
    frozen: Mapping[str, str]  # entry -> the hash of what never travelled

    def write(self, file: BinaryIO, named: Mapping[str, str], metadata: dict[str, str]) -> None:
        """``named``: what each entry is to be called."""
        held = {name: self.held[entry] for name, entry in named.items()}
        pairs = set(self.notes.get("complex", ()))
        tensors = [
            replace(_whole(self.source.tensors[stored], stored in pairs), name=name)
            for name, stored in held.items()
        ]
        write(file, tensors, {"format": "pt", **metadata}, _blocks(self.source, tensors, held))


@contextmanager
def _opened(checkpoint: Path) -> Iterator[_Model]:
    with Checkpoint(checkpoint) as source:
        notes = json.loads(source.metadata.get("hadar", "{}"))
        held = {name: name for name in source.tensors if name.startswith("model/")}
        tied = notes.get("tied", {})
        held |= {alias: name for alias, name in tied.items() if name in source.tensors}
        frozen = {n: h for n, h in notes.get("frozen", {}).items() if n not in source.tensors}
        several = any(name.startswith("model/1/") for name in (*held, *frozen))
        prefix = "model/" if several else "model/0/"
        yield _Model(
            source,
            notes,
            {name.removeprefix(prefix): stored for name, stored in held.items()},
            {name.removeprefix(prefix): digest for name, digest in frozen.items()},
        )


def export_model(checkpoint: Path, out: Path) -> None:
    """The model's weights alone, under their own names, as ``load_state_dict`` wants them.

    A script with several models has them in one file, each name led by its model's number. What
    never trained and never travelled is named under ``hadar.frozen``, with its hash: the script
    builds it, or a base model brings it.
    """
    with _opened(checkpoint) as model, out.open("wb") as file:
        metadata = {"hadar.frozen": json.dumps(model.frozen)} if model.frozen else {}
        model.write(file, {entry: entry for entry in model.held}, metadata)


def export_pretrained(checkpoint: Path, folder: Path) -> bool:
    """The model as a folder that ``from_pretrained`` loads; False where it is none, or where some
    of its weights never travelled, which would then be loaded as random ones."""
    with _opened(checkpoint) as model:
        told = model.notes.get("pretrained")
        if not isinstance(told, dict) or not _is_sound(told):
            return False
        named = told.get("names") or {entry: entry for entry in {*model.held, *model.frozen}}
        if not named.keys() or any(entry not in model.held for entry in named.values()):
            return False
        part = folder.with_name(f"{folder.name}.folder.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        for name, text in told["files"].items():
            (part / name).write_text(text)
        with (part / told["weights"]).open("wb") as file:
            model.write(file, named, {})
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return True


def add_beside(out: Path, folder: Path) -> None:
    """Puts what a script left for its model, a tokenizer's files, into the model's folder; nothing
    that is there already is replaced."""
    left = out / BESIDE_MODEL
    if not left.is_dir() or not folder.is_dir():
        return
    for path in sorted(left.iterdir()):
        if path.is_file() and not path.is_symlink() and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)


def _is_sound(told: dict[str, Any]) -> bool:
    """Whether a node's description has nothing but what it may have."""
    files, names = told.get("files"), told.get("names") or {}
    return (
        told.get("weights") in _WEIGHTS
        and isinstance(files, dict)
        and all(_FILE.fullmatch(name) and isinstance(text, str) for name, text in files.items())
        and isinstance(names, dict)
        and all(isinstance(name, str) for name in names.values())
    )


def _whole(tensor: Tensor, is_complex: bool) -> Tensor:
    """Pairs of float32 as the complex numbers that they are; of others there is no such type."""
    if is_complex and tensor.dtype == "F32":
        return replace(tensor, dtype="C64", shape=tensor.shape[:-1])
    return tensor


def _blocks(source: Checkpoint, tensors: list[Tensor], held: dict[str, str]) -> Iterator[Array]:
    for tensor in tensors:
        stored = source.tensors[held[tensor.name]]
        for start in range(0, stored.size, _BLOCK):
            size = min(_BLOCK, stored.size - start)
            block = np.empty(size, DTYPES[stored.dtype])
            source.read_into(stored.name, start, block)
            yield block
