"""Which samples a step trains on, and the mini-batches made of them.

Step k of a job is batch k mod φ of epoch k div φ, on whatever copy. The order of an epoch depends
on the job's seed and the epoch alone, so copies that are given disjoint steps see disjoint data.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from hadar_cli.node.order import Slices, numbers

# What a script's own DataLoader may carry over to the one that takes its place.
_CARRIED = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)


class Source(Protocol):
    """A job's mini-batches by the number of their step."""

    per_epoch: int | None  # φ; None where nobody knows it

    def batches(self, slices: Slices) -> Iterator[Any]: ...

    def samples_in(self, slices: Slices) -> int: ...

    def first_samples(self, slices: Slices) -> list[int]:
        """The numbers of the samples that these steps begin with, if samples have numbers."""
        ...


def source_of(data: Any, batch_size: int | None, seed: int, options: dict[str, Any]) -> Source:
    """The batches of a data set, of an existing ``DataLoader``, or of anything iterable."""
    if isinstance(data, DataLoader):
        if batch_size is not None or options:
            raise TypeError("a DataLoader brings its own batch size and options; give it alone")
        if isinstance(data.dataset, IterableDataset):
            return StreamSource(data, data.dataset, data.batch_size)
        carried = {name: getattr(data, name) for name in _CARRIED}
        batched = data.batch_sampler is not None
        return MapSource(data.dataset, _plan_of(data, seed), carried, batched)
    if isinstance(data, IterableDataset):
        loader: DataLoader[Any] = DataLoader(data, batch_size or 1, **options)
        return StreamSource(loader, data, batch_size)
    if not hasattr(data, "__getitem__"):
        return StreamSource(data, data, batch_size)
    if batch_size is not None or "batch_sampler" in options:
        plan, rest = _plan_from(data, batch_size, seed, dict(options))
        return MapSource(data, plan, rest)
    raise TypeError("say how large a mini-batch is: t.loader(dataset, batch_size=...)")


class Plan(Protocol):
    """The samples of every step."""

    per_epoch: int

    def samples(self, step: int) -> list[int]: ...

    def count(self, slices: Slices) -> int: ...


class Permutation:
    """Every epoch goes once through all samples: shuffled by the job's seed, or as they lie."""

    def __init__(
        self, total: int, batch_size: int, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        self.per_epoch = total // batch_size if drop_last else -(-total // batch_size)
        if self.per_epoch < 1:
            raise ValueError(f"{total} samples do not fill one mini-batch of {batch_size}")
        self._total, self._batch_size, self._seed = total, batch_size, seed
        self._shuffle = shuffle
        self._short_by = max(0, self.per_epoch * batch_size - total)
        self._epoch, self._order = -1, torch.arange(0)

    def samples(self, step: int) -> list[int]:
        epoch, batch = divmod(step, self.per_epoch)
        first = batch * self._batch_size
        if not self._shuffle:
            return list(range(first, min(first + self._batch_size, self._total)))
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(_epoch_seed(self._seed, epoch))
            self._epoch = epoch
            self._order = torch.randperm(self._total, generator=generator)
        return self._order[first : first + self._batch_size].tolist()

    def count(self, slices: Slices) -> int:
        """Only an epoch's last batch may be short."""
        phi = self.per_epoch
        ends = sum(end // phi - first // phi for first, end in slices)
        steps = sum(end - first for first, end in slices)
        return steps * self._batch_size - ends * self._short_by


class Drawn:
    """Batches as a script's own sampler draws them: once an epoch, from the same random numbers
    on every copy, so that all copies mean the same batch by the same step."""

    def __init__(self, sampler: Any, batch_size: int | None, seed: int, drop_last: bool) -> None:
        self._sampler, self._seed = sampler, seed
        # A batch sampler is one that comes without a batch size.
        self._drawn = (
            sampler if batch_size is None else BatchSampler(sampler, batch_size, drop_last)
        )
        self.per_epoch = len(self._drawn)
        self._epoch, self._batches = -1, list[list[int]]()

    def samples(self, step: int) -> list[int]:
        epoch, batch = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._draw(epoch)
        return self._batches[batch]

    def count(self, slices: Slices) -> int:
        return sum(len(self.samples(step)) for step in numbers(slices))

    def _draw(self, epoch: int) -> list[list[int]]:
        with _seeded(_epoch_seed(self._seed, epoch), self._sampler):
            _set_epoch(self._sampler, epoch)
            batches = [list(batch) for batch in self._drawn]
        if len(batches) != self.per_epoch:
            raise ValueError(
                f"the sampler drew {len(batches)} batches where its length says {self.per_epoch}; "
                "copies could not agree on which batch a step is"
            )
        return batches


class MapSource:
    """Batches of a data set whose samples have numbers.

    One ``DataLoader`` serves all orders, so that its worker processes stay between them.
    """

    def __init__(
        self, dataset: Any, plan: Plan, options: dict[str, Any], batched: bool = True
    ) -> None:
        self._plan = plan
        self._steps = _Steps(plan, batched)
        self.per_epoch: int | None = plan.per_epoch
        if options.get("num_workers"):
            options = {**options, "persistent_workers": True}
        how = {"batch_sampler": self._steps} if batched else {"sampler": self._steps}
        self._loader: DataLoader[Any] = DataLoader(
            dataset, **(how if batched else {**how, "batch_size": None}), **options
        )

    def batches(self, slices: Slices) -> Iterator[Any]:
        self._steps.slices = slices
        return iter(self._loader)

    def samples_in(self, slices: Slices) -> int:
        return self._plan.count(slices)

    def first_samples(self, slices: Slices) -> list[int]:
        return self._plan.samples(slices[0][0]) if slices else []


class _Steps:
    """The sampler of a ``MapSource``: the samples of the steps it is set to."""

    def __init__(self, plan: Plan, batched: bool) -> None:
        self._plan, self._batched = plan, batched
        self.slices: Slices = ()

    def __iter__(self) -> Iterator[Any]:
        for step in numbers(self.slices):
            samples = self._plan.samples(step)
            yield samples if self._batched else samples[0]

    def __len__(self) -> int:
        return sum(end - first for first, end in self.slices)


class StreamSource:
    """Batches that can only be read one after another: step k is the k-th one read.

    Steps of other copies are read and thrown away. The stream must give the same batches in the
    same order on every copy; after its end it is read again, as the next epoch.
    """

    def __init__(self, stream: Iterable[Any], dataset: Any, batch_size: int | None) -> None:
        self._stream, self._dataset, self._batch_size = stream, dataset, batch_size or 1
        try:
            self.per_epoch: int | None = len(stream)  # type: ignore[arg-type]
        except TypeError:
            self.per_epoch = None
        self._next, self._epoch = 0, 0
        self._reading: Iterator[Any] | None = None

    def batches(self, slices: Slices) -> Iterator[Any]:
        for step in numbers(slices):
            self._approach(step)
            while self._next < step:
                self._read()
            yield self._read()

    def once(self) -> Iterator[Any]:
        """One pass, for scripts run by hand."""
        _set_epoch(self._dataset, self._epoch)
        self._epoch += 1
        return iter(self._stream)

    def samples_in(self, slices: Slices) -> int:
        return self._batch_size * sum(end - first for first, end in slices)

    def first_samples(self, slices: Slices) -> list[int]:
        return []

    def _approach(self, step: int) -> None:
        """Starts anew where the step lies behind, or in a later epoch whose start is known."""
        epoch = step // self.per_epoch if self.per_epoch else 0
        behind = step < self._next
        if self._reading is None or behind or (self.per_epoch and epoch > self._epoch):
            self._start(epoch, epoch * (self.per_epoch or 0))

    def _start(self, epoch: int, first: int) -> None:
        self._epoch, self._next = epoch, first
        _set_epoch(self._dataset, epoch)
        self._reading = iter(self._stream)

    def _read(self) -> Any:
        assert self._reading is not None
        batch = next(self._reading, _END)
        if batch is _END:
            self._start(self._epoch + 1, self._next)
            batch = next(self._reading, _END)
            if batch is _END:
                raise ValueError("the data stream is empty")
        self._next += 1
        return batch


def _plan_of(loader: DataLoader[Any], seed: int) -> Plan:
    """The plan that an existing loader's samplers amount to."""
    given = loader.batch_sampler
    if given is not None and type(given) is not BatchSampler:
        return Drawn(given, None, seed, False)
    size, drop_last, sampler = loader.batch_size or 1, loader.drop_last, loader.sampler
    total = len(loader.dataset)  # type: ignore[arg-type]
    if type(sampler) is SequentialSampler:
        return Permutation(total, size, seed, False, drop_last)
    if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == total:
        return Permutation(total, size, seed, True, drop_last)
    return Drawn(sampler, size, seed, drop_last)


def _plan_from(
    dataset: Sequence[Any], batch_size: int | None, seed: int, options: dict[str, Any]
) -> tuple[Plan, dict[str, Any]]:
    """The plan that ``DataLoader``'s own words ask for, and the words that are left."""
    shuffle, drop_last = options.pop("shuffle", True), options.pop("drop_last", False)
    sampler, given = options.pop("sampler", None), options.pop("batch_sampler", None)
    if given is not None:
        return Drawn(given, None, seed, False), options
    assert batch_size is not None
    if sampler is not None:
        return Drawn(sampler, batch_size, seed, drop_last), options
    return Permutation(len(dataset), batch_size, seed, shuffle, drop_last), options


def _epoch_seed(seed: int, epoch: int) -> int:
    return seed * 1_000_003 + epoch


def _set_epoch(owner: Any, epoch: int) -> None:
    set_epoch = getattr(owner, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


@contextmanager
def _seeded(seed: int, sampler: Any) -> Iterator[None]:
    """Every generator that a sampler may draw from, seeded for a while and then put back."""
    states = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    own = getattr(sampler, "generator", None)
    if isinstance(own, torch.Generator):
        own.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy:
            numpy.random.set_state(numpy_state)


_END = object()
