"""How long a member's own work on a step takes, and how many samples its memory has room for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

UNMEASURED = -1.0
_ROOM = 0.9  # of a card's memory


class Stopwatch:
    """A step's work: from each exchange with the others to the next. A GPU is given its work ahead
    of time and keeps its own time. So a step's is told with the step after it."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._begun: Any = None
        self._spans: list[tuple[Any, Any]] = []
        self._samples = 0
        self._done: tuple[int, list[tuple[Any, Any]]] = (0, [])

    def reset(self) -> None:
        """An order begins: what was before it is no step."""
        self._begun, self._spans, self._done = None, [], (0, [])

    def start(self) -> None:
        self._begun = self._now()

    def stop(self, samples: int) -> None:
        if self._begun is not None:
            self._spans.append((self._begun, self._now()))
        self._begun, self._samples = None, samples

    def step_ends(self) -> None:
        self._done, self._spans = (self._samples, self._spans), []

    def read(self) -> tuple[int, float]:
        """The samples and seconds of the step before this one, once."""
        samples, spans = self._done
        self._done = (0, [])
        if not spans or (self._is_gpu and not all(ended.query() for _, ended in spans)):
            return 0, UNMEASURED
        if self._is_gpu:
            return samples, sum(begun.elapsed_time(ended) for begun, ended in spans) / 1000.0
        return samples, sum(ended - begun for begun, ended in spans)

    def _now(self) -> Any:
        if not self._is_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class Memory:
    """A card's room for samples, from what the largest share so far took of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._at_rest = torch.cuda.memory_allocated(device) if self._is_gpu else 0
        self._largest = 0

    def most(self, samples: int) -> float:
        """Samples that fit; no limit where memory is the machine's."""
        self._largest = max(self._largest, samples)
        if not self._is_gpu or not self._largest:
            return float("inf")
        peak = torch.cuda.max_memory_allocated(self._device) - self._at_rest
        room = _ROOM * torch.cuda.get_device_properties(self._device).total_memory - self._at_rest
        return self._largest * max(1.0, room / max(1, peak))


@dataclass(slots=True)
class Speed:
    """A member's measured steps of one order."""

    steps: int = 0
    worked_s: float = 0.0
    waited_s: float = 0.0

    def note(self, seconds: float, waited_s: float) -> None:
        if seconds > 0.0:
            self.steps += 1
            self.worked_s += seconds
            self.waited_s += waited_s

    @property
    def step_s(self) -> float:
        return self.worked_s / max(1, self.steps)

    @property
    def wait_s(self) -> float:
        return self.waited_s / max(1, self.steps)
