"""A job on one device: orders one after another, in one process and then in the next."""

import json
import signal
import time
from pathlib import Path

from safetensors.torch import load_file

TRAINED = "HADAR_CKPT_OUT"


class Orders:
    """Sets the contract's variables for processes of a job, as the agent would."""

    def __init__(self, directory: Path, monkeypatch, total: int) -> None:
        self.directory, self._monkeypatch, self._total = directory, monkeypatch, total
        self._number = 0
        self._weights = ""
        self.placed: list[dict[str, str]] = []

    def process(self, *slices: tuple[int, int], evaluate: bool = False) -> list[dict[str, str]]:
        """The next process of the job: it gets an order for each of the slices, all there at once,
        and with ``evaluate`` at last one that evaluates."""
        given = [*slices, (0, 0)] if evaluate else list(slices)
        orders = [
            self._place(first, end, i == len(given) - 1) for i, (first, end) in enumerate(given)
        ]
        for name, value in orders[0].items():
            self._monkeypatch.setenv(name, value)
        self.placed += orders
        return orders

    def _place(self, first: int, end: int, is_last: bool) -> dict[str, str]:
        self._number += 1
        files = self.directory / f"order-{self._number}"
        files.mkdir(parents=True)
        trains = end > first
        order = {
            "HADAR_STEPS": str(end - first),
            "HADAR_SLICES": f"{first}:{end}" if trains else "",
            "HADAR_SECONDS_LEFT": "600",
            "HADAR_ISSUED_AT": repr(time.monotonic()),
            "HADAR_CKPT_IN": self._weights,
            "HADAR_CKPT_OUT": str(files / "weights") if trains else "",
            "HADAR_RESULT": str(files / "result"),
            "HADAR_PROGRESS": str(files / "progress"),
            "HADAR_GLOBAL_STEP": str(first if trains else self._total),
            "HADAR_TOTAL_STEPS": str(self._total),
            "HADAR_EVALUATE": "" if trains else "1",
            "HADAR_NEXT": "" if is_last else str(self.directory / f"next-{self._number + 1}"),
            "HADAR_JOB_SEED": "0",
            "HADAR_SEED": "99",
            "HADAR_NUM_COPIES": "1",
        }
        if self._number > 1:
            (self.directory / f"next-{self._number}").write_text(json.dumps(order))
        if trains:
            self._weights = order["HADAR_CKPT_OUT"]
        return order

    def results(self) -> list[dict]:
        return [json.loads(Path(order["HADAR_RESULT"]).read_text()) for order in self.placed]

    def weights(self) -> dict:
        """The last order's, by their names in the model."""
        held = load_file(self._weights)
        return {n.removeprefix("model/0/"): t for n, t in held.items() if n.startswith("model/")}

    def by_hand(self) -> None:
        """As if nobody had set anything."""
        for name in ("HADAR_STEPS", *(self.placed[0] if self.placed else ())):
            self._monkeypatch.delenv(name, raising=False)


def keep_sigterm():
    """A process under orders handles SIGTERM: for a fixture to put back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
