"""Random numbers of Python, NumPy and torch: kept apart, carried on, written down.

On one device a job trains as it would by hand, dropout and all: the state of the generators goes
with the checkpoint from order to order. Copies that train at the same time each have a seed.
"""

from __future__ import annotations

import base64
import random
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


class Randomness:
    """Global random numbers of its own: entered again, they go on where they were left, and
    everyone else's are as they were."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: list[Any] = []

    def __enter__(self) -> None:
        self._outer = [state_of(source) for source in _global_sources()]
        if self._own:
            _restore(self._own)
            return
        torch.default_generator.manual_seed(self._seed)
        random.seed(self._seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(self._seed % 2**32)

    def __exit__(self, *_: object) -> None:
        self._own = [state_of(source) for source in _global_sources()]
        _restore(self._outer)


def fingerprint() -> str:
    """Something that is another once a global random number has been drawn."""
    states = (state_of(source) for source in _global_sources())
    return str([s.tolist() if isinstance(s, torch.Tensor) else s for s in states])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever draws random numbers inside, outside they go on as if it had not."""
    states, devices = [state_of(source) for source in _global_sources()], _device_states()
    yield
    _restore(states)
    _restore_devices(devices)


def notes() -> dict[str, Any]:
    """Where the global generators are, as plain values."""
    version, numbers, gauss = random.getstate()
    found: dict[str, Any] = {
        "torch": _text(bytes(torch.get_rng_state().tolist())),
        "python": [version, _text(_bytes_of(numbers)), gauss],
        "devices": [_text(bytes(state.tolist())) for state in _device_states()],
    }
    if numpy := sys.modules.get("numpy"):
        kind, keys, place, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = [kind, _text(_bytes_of(keys.tolist())), place, has_gauss, cached]
    return found


def begin(own_seed: int | None, notes: Mapping[str, Any] | None) -> None:
    """An order begins: copies at the same time have seeds of their own, and one that is alone on
    its job goes on as one process would."""
    if own_seed is not None:
        torch.manual_seed(own_seed)
    elif notes:
        take(notes)


def take(notes: Mapping[str, Any]) -> None:
    """Goes on from where the notes say."""
    torch.set_rng_state(_tensor(notes["torch"]))
    version, numbers, gauss = notes["python"]
    random.setstate((version, tuple(_numbers(numbers)), gauss))
    numpy = sys.modules.get("numpy")
    if numpy and "numpy" in notes:
        kind, keys, *rest = notes["numpy"]
        numpy.random.set_state((kind, _numbers(keys), *rest))
    _restore_devices([_tensor(state) for state in notes.get("devices", ())])


# -- generators of all kinds --------------------------------------------------------------------


def generators_of(owner: Any) -> list[Any]:
    """The generators that an object keeps for itself."""
    kinds: tuple[Any, ...] = (torch.Generator, random.Random)
    if numpy := sys.modules.get("numpy"):
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return [value for value in getattr(owner, "__dict__", {}).values() if isinstance(value, kinds)]


def state_of(generator: Any) -> Any:
    if _has_bits(generator):
        return generator.bit_generator.state
    get = getattr(generator, "getstate", None) or generator.get_state
    return get()


def set_state(generator: Any, state: Any) -> None:
    if _has_bits(generator):
        generator.bit_generator.state = state
        return
    put = getattr(generator, "setstate", None) or generator.set_state
    put(state)


def _has_bits(generator: Any) -> bool:
    """Whether it is one of NumPy's newer generators."""
    return hasattr(getattr(generator, "bit_generator", None), "state")


def _global_sources() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [torch.default_generator, random, *([numpy.random] if numpy else [])]


def _restore(states: list[Any]) -> None:
    for source, state in zip(_global_sources(), states, strict=False):
        set_state(source, state)


def _device_states() -> list[torch.Tensor]:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.get_rng_state_all()
    return [torch.mps.get_rng_state()] if torch.backends.mps.is_available() else []


def _restore_devices(states: list[torch.Tensor]) -> None:
    if len(states) == len(_device_states()):  # else it was another machine's
        for device, state in enumerate(states):
            if torch.cuda.is_available():
                torch.cuda.set_rng_state(state, device)
            else:
                torch.mps.set_rng_state(state)


# -- states as text -----------------------------------------------------------------------------


def _text(octets: bytes) -> str:
    return base64.b64encode(zlib.compress(octets)).decode()


def _octets(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(_octets(text)), dtype=torch.uint8)


def _bytes_of(numbers: Any) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def _numbers(text: str) -> list[int]:
    octets = _octets(text)
    return [int.from_bytes(octets[i : i + 4], "little") for i in range(0, len(octets), 4)]
