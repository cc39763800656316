"""Reads the user's own settings: whom to notify. They name commands that the head runs, which is
why they stand in no mix and in no inventory: those may come from others."""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadar_cli.config.fields import Spot, choice, flag, list_of, read_text, record, text
from hadar_cli.config.strict_toml import parse_toml
from hadar_cli.errors import InputError, RefusedError

ENDS, TROUBLE, PROMOTION = OCCASIONS = ("end", "trouble", "promotion")
_WAYS = ("command", "webhook", "desktop")


@dataclass(frozen=True, slots=True, repr=False)  # a webhook's address is a secret
class Channel:
    """One way to notify somebody; exactly one of the three is set."""

    occasions: tuple[str, ...] = OCCASIONS
    command: tuple[str, ...] = ()
    webhook: str = ""
    desktop: bool = False
    source: str = ""  # the file that holds the webhook's address

    @property
    def name(self) -> str:
        """For messages, which must not tell the address."""
        if self.command:
            return f"command {self.command[0]}"
        return f"the webhook of {self.source}" if self.webhook else "desktop"


def settings_path() -> Path:
    beside = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(beside) / "hadar" / "settings.toml"


def read_channels(path: Path) -> list[Channel]:
    """The ``[[notify]]`` tables of the file; none where there is no file."""
    if not path.exists():
        return []
    _require_own(path)
    document = parse_toml(read_text(path), str(path))
    rows = _SETTINGS(document.root, document.top).get("notify", ())
    spot = document.top.inside("notify")
    return [_channel(row, spot.inside(i)) for i, row in enumerate(rows)]


def parse_channel(word: str) -> Channel:
    """``desktop``, ``command:WORDS`` or ``webhook:FILE``, a file that holds the address."""
    way, _, rest = word.partition(":")
    if way == "desktop" and not rest:
        return Channel(desktop=True)
    if way == "command" and (words := _divided(rest)):
        return Channel(command=words)
    if way == "webhook" and rest:
        path = Path(rest)
        if not path.is_file():
            fix = "name a file that holds the address, which is a secret"
            raise InputError(f"there is no file {rest!r}", field="--notify", fix=fix)
        _require_own(path)
        address = read_text(path).strip()
        if not _is_address(address):
            raise InputError("holds no http address", file=str(path), field="--notify")
        return Channel(webhook=address, source=rest)
    fix = "use desktop, command:WORDS or webhook:FILE"
    raise InputError(f"{word!r} is no way to notify", field="--notify", fix=fix)


def _channel(row: dict[str, Any], spot: Spot) -> Channel:
    given = [way for way in _WAYS if row.get(way)]
    if len(given) != 1:
        raise spot.error("names no way to notify, or several", f"Give one of {', '.join(_WAYS)}.")
    if row.get("webhook") and not _is_address(row["webhook"]):
        raise spot.inside("webhook").error("is no http address", "Give https://…")
    words = _divided(row.get("command", ""))
    if row.get("command") and not words:
        raise spot.inside("command").error("cannot be divided into words", "Close the quotes.")
    on = tuple(row.get("on", OCCASIONS))
    source = f"{spot.document.file}:{spot.line}"
    return Channel(on, words, row.get("webhook", ""), row.get("desktop", False), source)


def _divided(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()


def _is_address(word: str) -> bool:
    return word.startswith(("https://", "http://")) and len(word.split()) == 1


def _require_own(path: Path) -> None:
    """What others may write to could have the head run anything."""
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RefusedError(
            f"{path}: others may write to it, and it says what hadar does on this computer",
            fix=f"make it your own: chmod 600 {path}",
        )


_SETTINGS = record(
    {
        "notify": list_of(
            record(
                {
                    "on": list_of(choice(*OCCASIONS)),
                    "command": text(),
                    "webhook": text(),
                    "desktop": flag,
                }
            )
        )
    }
)
