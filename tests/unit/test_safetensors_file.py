"""The checkpoint reader and writer against the safetensors package, and against broken files."""

from __future__ import annotations

import hashlib
import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from hadar_cli.weights import safetensors_file
from hadar_cli.weights.safetensors_file import (
    DTYPES,
    Checkpoint,
    CheckpointError,
    Tensor,
    narrow,
    widen,
    write,
)

TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


def torch_bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.linspace(0, 9, 12).reshape(3, 4).to(dtype)


def build(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_what_the_package_writes(tmp_path: Path, dtype: str) -> None:
    tensor = sample(TORCH_DTYPES[dtype])
    safetensors.torch.save_file(
        {"a": tensor, "b/é": tensor[1:].clone()}, tmp_path / "f", {"k": "v"}
    )
    with Checkpoint(tmp_path / "f") as checkpoint:
        assert checkpoint.metadata == {"k": "v"}
        assert checkpoint.tensors["a"] == Tensor("a", dtype, (3, 4))
        assert checkpoint.read("a").tobytes() == torch_bits(tensor)
        block = np.empty(4, DTYPES[dtype])
        checkpoint.read_into("b/é", 3, block)
        assert block.tobytes() == torch_bits(tensor.reshape(-1)[7:11])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_package_reads_what_is_written(tmp_path: Path, dtype: str) -> None:
    values = np.arange(6).astype(DTYPES[dtype]) % 2
    tensors = [Tensor("x", dtype, (2, 3)), Tensor("empty", dtype, (0, 3)), Tensor("one", dtype, ())]
    with (tmp_path / "f").open("wb") as file:
        digest, length = write(file, tensors, {"é": "\n"}, [values[:4], values[4:], values[:1]])
    written = (tmp_path / "f").read_bytes()
    assert (digest, length) == (hashlib.sha256(written).hexdigest(), len(written))

    loaded = safetensors.torch.load_file(tmp_path / "f")
    assert {name: tensor.dtype for name, tensor in loaded.items()} == dict.fromkeys(
        ("x", "empty", "one"), TORCH_DTYPES[dtype]
    )
    assert loaded["x"].shape == (2, 3) and loaded["empty"].shape == (0, 3)
    assert loaded["one"].shape == ()
    assert torch_bits(loaded["x"]) == values.tobytes()
    with safetensors.safe_open(tmp_path / "f", "numpy") as opened:
        assert opened.metadata() == {"é": "\n"}
    with Checkpoint(tmp_path / "f") as checkpoint:
        assert checkpoint.read("empty").size == 0


def test_write_refuses_data_that_do_not_fit_the_header() -> None:
    with pytest.raises(ValueError, match="announced"):
        write(io.BytesIO(), [Tensor("x", "F32", (3,))], {}, [np.zeros(2, np.float32)])


REFUSED = {
    "empty file": (b"", "too early"),
    "no header": (b"\x08\0\0\0\0\0\0\0", "too early"),
    "huge header": ((1 << 62).to_bytes(8, "little") + b"{}", "over the limit"),
    "no object": (build(b"[]"), "not a JSON object"),
    "leading space": (build(b" {}"), "not a JSON object"),
    "not JSON": (build(b"{nothing}"), "not valid JSON"),
    "not UTF-8": (build(b'{"\xff": 1}'), "not valid JSON in UTF-8"),
    "lone surrogate": (build(b'{"\\ud800": 1}'), "not valid JSON in UTF-8"),
    "deep": (build(b'{"a":' + b"[" * 200_000), "not valid JSON"),
    "long number": (build(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "twice": (
        build(b'{"a":%s,"a":%s}' % ((json.dumps(entry("U8", [1], 0, 1)).encode(),) * 2), b"1"),
        "not valid JSON",
    ),
    "metadata list": (build({"__metadata__": []}), "metadata"),
    "metadata number": (build({"__metadata__": {"a": 1}}), "metadata"),
    "metadata surrogate": (build(b'{"__metadata__":{"a":"\\ud800"}}'), "not valid JSON"),
    "no entry": (build({"a": 3}), "badly described"),
    "extra field": (build({"a": {**entry("U8", [1], 0, 1), "x": 1}}, b"1"), "badly described"),
    "float shape": (build({"a": entry("U8", [1.0], 0, 1)}, b"1"), "badly described"),
    "bool shape": (build({"a": entry("U8", [True], 0, 1)}, b"1"), "badly described"),
    "negative shape": (build({"a": entry("U8", [-1, -1], 0, 1)}, b"1"), "badly described"),
    "huge shape": (build({"a": entry("U8", [1 << 63, 0], 0, 0)}), "badly described"),
    "many dimensions": (build({"a": entry("U8", [1] * 33, 0, 1)}, b"1"), "badly described"),
    "one offset": (
        build({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}, b"1"),
        "badly described",
    ),
    "unknown type": (build({"a": entry("F8_E4M3", [1], 0, 1)}, b"1"), "unknown type"),
    "wrong length": (build({"a": entry("F32", [2], 0, 4)}, b"1234"), "does not fit its shape"),
    "backwards": (build({"a": entry("U8", [1], 1, 0)}, b"1"), "does not fit its shape"),
    "overlap": (
        build({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"123"),
        "overlaps",
    ),
    "gap": (build({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"123"), "gap"),
    "gap first": (build({"a": entry("U8", [1], 1, 2)}, b"12"), "gap"),
    "truncated": (build({"a": entry("U8", [3], 0, 3)}, b"12"), "its header says 3"),
    "trailing": (build({"a": entry("U8", [1], 0, 1)}, b"12"), "its header says 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(tmp_path: Path, name: str) -> None:
    content, reason = REFUSED[name]
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as caught:
        Checkpoint(tmp_path / "f")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_refuses_a_path_that_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="cannot be opened"):
            Checkpoint(path)


def test_a_file_opened_again_is_read_anew_and_shared_with_nobody(tmp_path: Path) -> None:
    """Its header is parsed once, unless it changed."""
    path, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    content = build({"__metadata__": {"a": "b"}, "x": entry("U8", [2], 0, 2)}, b"\1\2")
    path.write_bytes(content)
    other.write_bytes(content[:-1] + b"\3")
    with Checkpoint(path) as first:
        first.tensors.clear()
        first.metadata["a"] = "c"
    with Checkpoint(path) as again, Checkpoint(other) as alike:
        assert (list(again.tensors), again.metadata) == (["x"], {"a": "b"})
        assert (again.read("x").tolist(), alike.read("x").tolist()) == ([1, 2], [1, 3])
    path.write_bytes(content + b"\4")
    with pytest.raises(CheckpointError, match="it holds 3 bytes of data"):
        Checkpoint(path)
    path.write_bytes(content.replace(b"[2]", b"[9]"))
    with pytest.raises(CheckpointError, match="a length that does not fit its shape"):
        Checkpoint(path)


def test_names_in_messages_are_escaped_and_bounded(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(build({"\x1b[31m" + "x" * 5000: 3}))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path / "f")
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = safetensors.numpy.save({"a": np.arange(5.0), "b": np.ones(3, np.int8)}, {"k": "v"})
    for length in range(len(whole)):
        (tmp_path / "f").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            Checkpoint(tmp_path / "f")


def test_every_flipped_bit_is_refused_or_read(tmp_path: Path) -> None:
    whole = safetensors.numpy.save({"a": np.arange(5.0), "b": np.ones(3, np.int8)}, {"k": "v"})
    refused = 0
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "f").write_bytes(flipped)
        try:
            with Checkpoint(tmp_path / "f") as checkpoint:
                for name in checkpoint.tensors:
                    checkpoint.read(name)
        except CheckpointError:
            refused += 1
    assert refused > 4 * len(whole)


def test_a_file_cut_while_open_is_refused_and_kills_nobody(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.zeros(100_000)}, tmp_path / "f")
    with Checkpoint(tmp_path / "f") as checkpoint:
        with (tmp_path / "f").open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(CheckpointError, match="ends too early"):
            checkpoint.read("a")


def test_the_header_limit_leaves_room_for_large_models(tmp_path: Path) -> None:
    tensors = [Tensor(f"model/0/layers.{i}.attention.weight", "F32", (0, 4)) for i in range(50_000)]
    with (tmp_path / "f").open("wb") as file:
        _, length = write(file, tensors, {}, [])
    assert length < safetensors_file.HEADER_LIMIT
    with Checkpoint(tmp_path / "f") as checkpoint:
        assert len(checkpoint.tensors) == 50_000


def test_bfloat16_is_rounded_once() -> None:
    """Against exact arithmetic, where rounding by way of float32 to nearest would go wrong."""
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, 2.0**-134, 3 * 2.0**-134, 1e-30 * (1 + 2**-8)])
    values = np.concatenate([ties, ties * (1 + 2**-40), ties * (1 - 2**-40), np.zeros(1)])
    values = np.concatenate([values, -values])
    bits = np.concatenate([np.arange(0xFF7F, 0x7FFF, -1), np.arange(0x7F80)]).astype(np.uint16)
    known = widen(bits, "BF16").astype(np.float64)  # every finite one in order, -0.0 and 0.0 too
    for value, got in zip(values, narrow(values, "BF16"), strict=True):
        at = np.searchsorted(known, value, side="left" if np.signbit(value) else "right")
        candidates = bits[max(0, at - 2) : at + 2]
        distances = [
            abs(Fraction(float(value)) - Fraction(float(known[i]))) for i in range(at - 2, at + 2)
        ]
        nearest = [c for c, d in zip(candidates, distances, strict=True) if d == min(distances)]
        same_sign = [c for c in nearest if bool(c >> 15) == bool(np.signbit(value))]
        assert got == min(same_sign, key=lambda c: c % 2)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_narrow_undoes_widen_for_every_finite_half(dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype])
    wide = widen(bits, dtype)
    finite = np.isfinite(wide)
    assert narrow(wide[finite].astype(np.float64), dtype).tobytes() == bits[finite].tobytes()


def test_bfloat16_agrees_with_torch_on_float32() -> None:
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    expected = torch_bits(torch.from_numpy(values).to(torch.bfloat16))
    assert narrow(values.astype(np.float64), "BF16").tobytes() == expected
    back = torch.from_numpy(widen(np.frombuffer(expected, np.uint16), "BF16"))
    assert torch.equal(back, torch.from_numpy(values).to(torch.bfloat16).float())
