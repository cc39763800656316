"""Looks who uses this node's GPUs while a run is there, and tells the head when that changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hadar_cli.node.gpus.cards import CardLock
from hadar_cli.node.gpus.reading import read_gpus

EVERY_S = 3.0
SETTLES_S = 1.0  # until the memory of a process that ended is free, by the word of the driver
_CHANGED_MB = 64.0  # what drivers and desktops add and drop is no news


class GpuWatch:
    """On a thread of its own: a tool that hangs holds up nothing else."""

    def __init__(
        self,
        run: Path,
        ours: Callable[[], Collection[int]],
        every_s: float = EVERY_S,
        settles_s: float = SETTLES_S,
    ) -> None:
        self._run, self._ours, self._every_s, self._settles_s = run, ours, every_s, settles_s
        self._lock = threading.Lock()
        self._news: dict[str, Any] | None = None
        self._told: object = None
        self._before: dict[str, float | None] = {}  # by card: what others held without us
        threading.Thread(target=self._look, daemon=True, name="gpus").start()

    def news(self) -> dict[str, Any] | None:
        """What the head should know; None if it is what it was last time."""
        with self._lock:
            news, self._news = self._news, None
        return news

    def _look(self) -> None:
        while True:
            seen = self.look()
            if (gist := _gist(seen)) != self._told:
                with self._lock:
                    self._told, self._news = gist, seen
            time.sleep(self._every_s)

    def look(self) -> dict[str, Any]:
        """Who is on the cards now. Memory that nobody is named for may be that of a process that
        has just ended: that is looked at once more before anyone is blamed for it."""
        seen = read_gpus(self._ours())
        if any(self._is_unexplained(gpu) for gpu in seen["gpus"]):
            time.sleep(self._settles_s)
            seen = read_gpus(self._ours())
        for gpu in seen["gpus"]:
            card = gpu["uuid"] or f"gpu-{gpu['index']}"
            self._leave_out_ours(card, gpu)
        now = time.localtime()
        seen["minute_of_day"] = 60 * now.tm_hour + now.tm_min
        return seen

    def _is_unexplained(self, gpu: dict[str, Any]) -> bool:
        before = self._before.get(gpu["uuid"] or f"gpu-{gpu['index']}") or 0.0
        is_more = (gpu["others_mb"] or 0.0) > before + _CHANGED_MB
        return is_more and not gpu["others"]

    def _leave_out_ours(self, card: str, gpu: dict[str, Any]) -> None:
        """In a container the driver tells of no process, or of such as nobody knows there, and some
        drivers tell of nobody how much he holds: then what others hold while we are alone on the
        card, as far as is known, is what they held before we came."""
        lock = CardLock(card)
        is_ours = lock.is_held() and lock.note().get("at") == str(self._run)
        if not is_ours:
            self._before[card] = gpu["others_mb"]
        elif not gpu["sees_processes"] and gpu["others_mb"] is not None:
            before = self._before.setdefault(card, 0.0)
            gpu["others_mb"] = None if before is None else min(before, gpu["others_mb"])
            gpu["others"] = []
        elif gpu["others_mb"] is None and not gpu["others"]:
            gpu["others_mb"] = self._before.get(card)


def _gist(seen: dict[str, Any]) -> object:
    """All of it that matters, rounded so far that noise does not."""
    cards = [
        (
            *(gpu[name] for name in ("index", "uuid", "others")),
            _rounded(gpu["others_mb"]),
        )
        for gpu in seen["gpus"]
    ]
    return cards, seen["gpu_problem"], seen["minute_of_day"]


def _rounded(others_mb: float | None) -> float | None:
    return None if others_mb is None else others_mb // _CHANGED_MB
