"""Messages and records as typed objects, from whatever thread.

msgspec learns a type when it first meets it. Another thread that meets it half learnt reads what is
not there yet, and that ends the process. So one thread at a time learns.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}
_learning = threading.Lock()


def read_json(content: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """JSON as what it should be; raises msgspec.DecodeError."""
    found: T = _decoder(kind).decode(content)
    return found


def convert(message: object, kind: type[T]) -> T:
    """The same for what was read from JSON already."""
    _decoder(kind)
    return msgspec.convert(message, kind)


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    found = _DECODERS.get(kind)
    if found is None:
        with _learning:
            found = _DECODERS.setdefault(kind, msgspec.json.Decoder(kind))
    return found
