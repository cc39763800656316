"""Data that can only be read one mini-batch after another, by the numbers of a job's steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hadar_cli.node.log_phrases import say_once
from hadar_cli.node.slices import Slices, numbers
from hadar_cli.node.training.gangs.cutting import Cutter
from hadar_cli.node.training.plans import epoch_seed, set_epoch
from hadar_cli.node.training.randomness import Randomness
from hadar_cli.node.training.splitting import parts_by

_END = object()


class StreamSource:
    """Batches that can only be read one after another: step k is the k-th one read.

    Steps of other copies are read and thrown away; after its end the stream is read again, as the
    next epoch. It is read with random numbers of its own, the same ones on every copy.
    """

    def __init__(
        self, stream: Iterable[Any], dataset: Any, batch_size: int | None, seed: int
    ) -> None:
        self._stream, self._dataset, self._batch_size = stream, dataset, batch_size
        try:
            self.per_epoch: int | None = len(stream)  # type: ignore[arg-type]
        except TypeError:
            self.per_epoch = None
        self._seed, self._randomness = seed, Randomness(seed)
        self._next, self._epoch = 0, -1
        self._reading: Iterator[Any] | None = None

    def batches(self, slices: Slices, cutter: Cutter | None = None) -> Iterator[Any]:
        if not cutter:
            return self._batches(slices)
        return parts_by(cutter, self._batches(slices), self._batch_size)

    def _batches(self, slices: Slices) -> Iterator[Any]:
        for number in numbers(slices):
            self.reach(number, lambda: True)
            yield self._read()

    def reach(self, number: int, goes_on: Callable[[], bool]) -> bool:
        """Reads what others train up to a mini-batch, as long as it is wanted."""
        self._approach(number)
        while self._next < number:
            if not goes_on():
                return False
            self._read()
        return True

    def begin_epoch(self) -> None:
        """Nothing is drawn that is not its own."""

    def once(self, epoch: int) -> Iterator[Any]:
        """One pass, for scripts run by hand."""
        self._start(self._epoch + 1, self._next)
        while (batch := self._next_or_end()) is not _END:
            yield batch

    def samples_in(self, slices: Slices) -> int:
        return (self._batch_size or 1) * sum(end - first for first, end in slices)

    def first_samples(self, slices: Slices) -> list[int]:
        return []

    def _approach(self, step: int) -> None:
        """Starts anew where the step lies behind, or in a later epoch whose start is known."""
        phi = self.per_epoch or 0
        epoch, behind = step // phi if phi else 0, step < self._next
        if self._reading is None or behind or (phi and epoch > self._epoch):
            if self._reading is not None and self._next == (self._epoch + 1) * phi:
                self._tell_more(phi)
            self._start(epoch, epoch * phi)

    def _tell_more(self, phi: int) -> None:
        """As of a ``DataLoader`` whose workers end with a short mini-batch each."""
        if self._next_or_end() is not _END:
            say_once(
                f"hadar: the stream goes on after the {phi} mini-batches of an epoch that its len "
                "says, and these are what is trained: give it the len it has, or none"
            )

    def _start(self, epoch: int, first: int) -> None:
        self._epoch, self._next = epoch, first
        self._randomness = Randomness(epoch_seed(self._seed, epoch))
        with self._randomness:
            set_epoch(self._dataset, epoch)
            self._reading = iter(self._stream)

    def _read(self) -> Any:
        batch = self._next_or_end()
        if batch is _END:
            if self.per_epoch:
                say_once(
                    f"hadar: the stream ends {-self._next % self.per_epoch} mini-batches before "
                    f"the {self.per_epoch} of an epoch that its len says, and is begun again"
                )
            self._start(self._epoch + 1, self._next)
            batch = self._next_or_end()
            if batch is _END:
                raise ValueError("the data stream is empty")
        self._next += 1
        return batch

    def _next_or_end(self) -> Any:
        assert self._reading is not None
        with self._randomness:
            return next(self._reading, _END)
