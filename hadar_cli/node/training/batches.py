"""A job's mini-batches by the number of their step (plans.py says which samples a step has).

A step is one update: one mini-batch, or several whose gradients are accumulated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from hadar_cli.node.contract import Update
from hadar_cli.node.slices import Slices, numbers
from hadar_cli.node.training.gangs.cutting import Cutter
from hadar_cli.node.training.gangs.errors import CannotShare
from hadar_cli.node.training.plans import (
    Drawn,
    Endless,
    Plan,
    chain_of,
    flat,
    plan_of,
    seeded,
    set_epoch,
    unseeded,
)
from hadar_cli.node.training.splitting import NO_SAMPLES
from hadar_cli.node.training.streams import StreamSource

# What a script's own DataLoader hands over to the one that takes its place.
_CARRIED = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "in_order",
)
# Loaders that iterate in a way of their own, yet give the batches that their samplers draw.
_FOLLOWED = ("StatefulDataLoader",)
NOT_SAID: Any = object()
_END = object()


def source_of(
    data: Any, batch_size: int | None, seed: int, options: dict[str, Any]
) -> MapSource | StreamSource:
    """The batches of a data set, of an existing ``DataLoader``, or of anything iterable."""
    data = getattr(data, "base_dataloader", data)  # of accelerate's
    if isinstance(data, DataLoader):
        if batch_size is not NOT_SAID or options:
            raise TypeError("a DataLoader brings its own batch size and options; give it alone")
        return _source_of_loader(data, seed)
    if not isinstance(data, IterableDataset) and not hasattr(data, "__getitem__"):
        return StreamSource(data, data, None, seed)
    if batch_size is NOT_SAID:
        if "batch_sampler" not in options:
            raise TypeError("say how large a mini-batch is: t.loader(dataset, batch_size=...)")
        batch_size = 1  # torch's word for "not said"
    own_order = isinstance(data, IterableDataset) or {"sampler", "batch_sampler"} & options.keys()
    options.setdefault("shuffle", not own_order)
    loader = DataLoader(data, batch_size, **options)
    if batch_size is None and isinstance(data, (range, list, tuple)) and not loader.generator:
        loader.generator = torch.Generator()  # by hand one iterates these, and nothing is drawn
    return _source_of_loader(loader, seed)


def _source_of_loader(loader: DataLoader[Any], seed: int) -> MapSource | StreamSource:
    dataset, kind = loader.dataset, type(loader)
    if isinstance(dataset, IterableDataset):
        return StreamSource(loader, dataset, loader.batch_size, seed)
    if kind.__iter__ is not DataLoader.__iter__ and kind.__name__ not in _FOLLOWED:
        print(
            f"hadar: {kind.__name__} iterates in a way of its own, so it is read as a stream: "
            "every copy reads all batches and leaves out those of the others",
            file=sys.stderr,
        )
        return StreamSource(loader, dataset, loader.batch_size, seed)
    return MapSource(loader, seed)


def reads_ahead(data: Any) -> bool:
    """Whether it is a loader of accelerate's that has read a batch more than it has given."""
    own = getattr(data, "base_dataloader", None)
    return own is not None and not own.num_workers


class Group:
    """The mini-batches of one update, read one by one, as a loop by hand asks for them.

    ``begin`` is called when the first is asked for: an order may be over before that. ``reach``
    reads a stream up to them. The update counts for ``steps``.
    """

    def __init__(
        self,
        count: int,
        batches: Iterator[Any],
        begin: Callable[[], None] | None = None,
        reach: Callable[[Callable[[], bool]], bool] | None = None,
        steps: int = 1,
    ) -> None:
        self._count, self._batches, self._begin, self._reach = count, batches, begin, reach
        self.steps = steps

    def reach(self, goes_on: Callable[[], bool]) -> bool:
        """Reads what other copies train, which may take long; False if it was called off."""
        return self._reach is None or self._reach(goes_on)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        if self._begin:
            self._begin()
        return islice(self._batches, self._count)


class Steps:
    """A source's mini-batches in groups: one for each update, none across two epochs."""

    def __init__(
        self, source: MapSource | StreamSource, size: int, reads_ahead: bool = False
    ) -> None:
        """``reads_ahead``: as accelerate does. Random numbers that collating draws then come before
        those of the step's dropout."""
        self.source, self._size = source, size
        self._reads_ahead = reads_ahead and isinstance(source, MapSource)
        self._ahead: tuple[int, Any] = (-1, None)  # a mini-batch that was read, and its number
        phi = source.per_epoch
        self.per_epoch = None if phi is None else -(-phi // size)

    def groups(
        self, slices: Slices, cutter: Cutter | None = None, update: Update | None = None
    ) -> Iterator[Group]:
        """The steps' mini-batches, or what a gang's cutter leaves this process of them."""
        if cutter:
            cutter.begin()
        if update and update.batches > 1:
            yield from self._wide_groups(slices, update, cutter)
            return
        minis, is_ahead = self._minis(slices), self._reads_ahead and slices and not cutter
        batches = self._read_ahead(minis) if is_ahead else self.source.batches(minis, cutter)
        for step in numbers(slices):
            is_new = self.per_epoch and step % self.per_epoch == 0 and step != slices[0][0]
            begin = self.source.begin_epoch if is_new else None
            first, end = self.first_of(step), self.first_of(step + 1)
            yield Group(end - first, batches, begin, partial(self.source.reach, first))

    @property
    def can_widen(self) -> bool:
        """Whether the mini-batches of several steps can be made one."""
        return isinstance(self.source, MapSource) and self.source.can_join

    def _wide_groups(
        self, slices: Slices, update: Update, cutter: Cutter | None
    ) -> Iterator[Group]:
        """With ``update.batches`` mini-batches joined for every ``update.steps``."""
        assert isinstance(self.source, MapSource)
        batches = self.source.batches(self._minis(slices), cutter, self._joined(slices, update))
        for steps, is_new in self._updates(slices, update):
            yield Group(1, batches, self.source.begin_epoch if is_new else None, steps=len(steps))

    def _updates(self, slices: Slices, update: Update) -> Iterator[tuple[range, bool]]:
        """The steps of each update, none of two epochs, and whether it begins another epoch."""
        phi = self.per_epoch or 1
        for first, end in slices:
            while first < end:
                last = min(first + update.steps, end, (first // phi + 1) * phi)
                yield range(first, last), first % phi == 0 and first != slices[0][0]
                first = last

    def _joined(self, slices: Slices, update: Update) -> Iterator[tuple[int, ...]]:
        """The mini-batches of each update: those of its own steps, and as many more as its noise
        asks for. These come from the other half of the epoch, so that no two updates after each
        other see the same samples."""
        phi = self.per_epoch or 1
        for steps, _ in self._updates(slices, update):
            epoch, first = divmod(steps.start, phi)
            count = min(phi, -(-update.batches * len(steps) // update.steps))
            others = range(len(steps) + phi // 2, count + phi // 2)
            taken = (*steps, *(epoch * phi + (first + i) % phi for i in others))
            yield tuple(chain.from_iterable(map(self._minis_of, taken)))

    def _minis_of(self, step: int) -> range:
        return range(self.first_of(step), self.first_of(step + 1))

    def _read_ahead(self, minis: Slices) -> Iterator[Any]:
        """One more than is asked for, unless an epoch ends; the next order may begin with it."""
        phi, (first, _), (_, end) = self.source.per_epoch or 1, minis[0], minis[-1]
        wanted = (*minis, (end, end + (end % phi > 0)))
        is_read = self._ahead[0] == first
        rest = ((first + 1, minis[0][1]), *wanted[1:]) if is_read else wanted
        reading = zip(numbers(rest), self.source.batches(rest), strict=False)
        if not is_read:
            self._ahead = next(reading)
        for number in numbers(minis):
            batch, ends_epoch = self._ahead[1], (number + 1) % phi == 0
            if not ends_epoch:
                self._ahead = next(reading)
            yield batch
            if ends_epoch:
                self._ahead = next(reading, (-1, None))

    def once(self, epoch: int) -> Iterator[Group]:
        """One epoch, or pass over a stream, for scripts run by hand."""
        batches, phi = self.source.once(epoch), self.source.per_epoch
        if self._reads_ahead:
            batches = _one_ahead(batches)
        for first in count(0, self._size):
            if (batch := next(batches, _END)) is _END:
                return
            if phi is None:  # how many are left shows only when they are read
                rest = list(islice(batches, self._size - 1))
                yield Group(1 + len(rest), chain([batch], rest))
            else:
                yield Group(max(1, min(self._size, phi - first)), chain([batch], batches))

    def ask_no_more(self) -> None:
        """By hand nobody asks for more than an epoch's last batch, as Lightning does not."""
        plan = getattr(self.source, "plan", None)
        if isinstance(plan, Drawn):
            plan.exhausts = False

    def first_of(self, step: int) -> int:
        """The number of a step's first mini-batch."""
        if self.source.per_epoch is None or self.per_epoch is None:
            return step * self._size
        epoch, group = divmod(step, self.per_epoch)
        return epoch * self.source.per_epoch + group * self._size

    def refuse_part_of_epoch(self, position: int | None) -> None:
        """A script that leaves the rest of an epoch out would by hand have fewer steps."""
        phi = self.per_epoch
        if position is not None and phi and position % phi:
            raise RuntimeError(
                f"the loop over t.loader was left {position % phi} steps into an epoch of {phi}, "
                "but not the one over t.epochs: under hadar its other steps are other copies'. To "
                "end the job, leave both or call t.stop(); or give t.loader fewer samples"
            )

    def samples_in(self, slices: Slices) -> int:
        return self.source.samples_in(self._minis(slices))

    def first_samples(self, slices: Slices) -> list[int]:
        """The numbers of the samples that these steps begin with, if samples have numbers."""
        return self.source.first_samples(self._minis(slices))

    def _minis(self, slices: Slices) -> Slices:
        return tuple((self.first_of(first), self.first_of(end)) for first, end in slices)


def _one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    batch = next(batches, _END)
    while batch is not _END:
        ahead = next(batches, _END)
        yield batch
        batch = ahead


class MapSource:
    """Batches of a data set whose samples have numbers.

    By hand it is the script's own ``DataLoader`` that is iterated. Under orders another one takes
    its place and serves all of them, so that its worker processes stay in between.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._own, self._seed = loader, seed
        self._chain = list(chain_of(loader.batch_sampler or loader.sampler))
        self._unseeded = unseeded(self._chain)
        self.plan = plan_of(loader, seed)
        batched = loader.batch_sampler is not None
        self._steps = _Steps(self.plan, batched)
        self.per_epoch: int | None = self.plan.per_epoch
        how: dict[str, Any] = {n: getattr(loader, n) for n in _CARRIED if hasattr(loader, n)}
        how |= {"batch_sampler": self._steps} if batched else {"sampler": self._steps}
        if not batched:
            how["batch_size"] = None
        if how.get("num_workers"):
            how["persistent_workers"] = True
        self._draws_globally = loader.generator is None
        if loader.generator is not None:  # a second one: the plan moves the script's own
            how["generator"] = torch.Generator()
            how["generator"].set_state(loader.generator.get_state())
        self._loader: DataLoader[Any] = DataLoader(loader.dataset, **how)

    @property
    def can_join(self) -> bool:
        """Not of data whose entries are mini-batches, nor of a sampler that never ends."""
        return self._steps.can_join and not isinstance(self.plan, Endless)

    def batches(
        self,
        slices: Slices,
        cutter: Cutter | None = None,
        joined: Iterator[tuple[int, ...]] | None = None,
    ) -> Iterator[Any]:
        """A ``DataLoader`` draws its workers' seed when an epoch begins. That of an order within an
        epoch must leave the script's random numbers, and so its dropout, as they are."""
        self._steps.slices, self._steps.cutter, self._steps.joined = slices, cutter, joined
        before = torch.get_rng_state()
        batches = iter(self._loader)
        begins_epoch = bool(slices) and slices[0][0] % self.plan.per_epoch == 0
        if self._draws_globally:
            torch.set_rng_state(before)
            if begins_epoch:
                self.begin_epoch()
        yield from batches

    def reach(self, number: int, goes_on: Callable[[], bool]) -> bool:
        """Every batch is at hand."""
        return True

    def begin_epoch(self) -> None:
        """Draws what the script's own loader would by hand."""
        if self._draws_globally:
            torch.empty((), dtype=torch.int64).random_()

    def once(self, epoch: int) -> Iterator[Any]:
        """An epoch of the script's own loader, as torch iterates it."""
        for sampler in self._unseeded:
            sampler.generator = seeded(self._seed, epoch)  # as under orders
        for sampler in self._chain:
            set_epoch(sampler, epoch)
        return iter(self._own)

    def samples_in(self, slices: Slices) -> int:
        return self.plan.count(slices)

    def first_samples(self, slices: Slices) -> list[int]:
        return flat(self.plan.samples(slices[0][0])) if slices else []


class _Steps:
    """The sampler of a ``MapSource``: the samples of the steps it is set to."""

    def __init__(self, plan: Plan, batched: bool) -> None:
        self._plan, self._batched = plan, batched
        self.can_join = batched  # mini-batches to one: unless a sampler draws whole ones
        self.slices: Slices = ()
        self.cutter: Cutter | None = None
        self.joined: Iterator[tuple[int, ...]] | None = None  # numbers of mini-batches made one

    def __iter__(self) -> Iterator[Any]:
        for minis in self.joined or ((number,) for number in numbers(self.slices)):
            samples = self._plan.samples(minis[0])
            self.can_join &= not isinstance(samples[0], (list, tuple))
            for number in minis[1:]:
                samples = [*samples, *self._plan.samples(number)]
            if not self._batched:
                samples = samples[0]
            if self.cutter:
                samples = self._mine(samples, self.cutter)
            yield samples

    def _mine(self, samples: Any, cutter: Cutter) -> Any:
        """A sampler may draw whole batches for a data set that takes lists of numbers."""
        if self._batched and len(samples) == 1 and isinstance(samples[0], (list, tuple)):
            return [samples[0][cutter.cut(len(samples[0]))]]
        if not isinstance(samples, (list, tuple)):
            raise CannotShare(NO_SAMPLES)
        return samples[cutter.cut(len(samples))]

    def __len__(self) -> int:
        return sum(end - first for first, end in self.slices)
