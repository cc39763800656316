"""Which samples a step trains on: the same ones on whichever copy it is trained.

Step k of a job is batch k mod φ of epoch k div φ. A sampler is followed exactly: what it draws by
hand, epoch after epoch, is what its steps are under hadar. Only where its random numbers would be
torch's global ones, which every dropout moves on, do the job's seed and the epoch stand for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hadar_cli.node.slices import Slices, numbers
from hadar_cli.node.trace import note_replaced
from hadar_cli.node.training.randomness import (
    Randomness,
    fingerprint,
    generators_of,
    set_state,
    state_of,
)

# Samplers of torch that draw every epoch alike, but for their generator.
_WITHOUT_STATE = (
    *(BatchSampler, RandomSampler, SequentialSampler),
    *(SubsetRandomSampler, WeightedRandomSampler),
)


_TOO_MANY = 5_000_000  # batches to be drawn at once
_REMEMBERED = 10_000  # of those drawn one by one


class Plan(Protocol):
    """The samples of every step."""

    per_epoch: int

    def samples(self, step: int) -> list[Any]: ...

    def count(self, slices: Slices) -> int: ...


def plan_of(loader: DataLoader[Any], seed: int) -> Plan:
    """The plan that a loader's samplers amount to."""
    given = loader.batch_sampler
    if given is None:  # the data set's entries are mini-batches already
        return _plan_by(loader.sampler, 1, False, loader, seed)
    if type(given) is BatchSampler:  # torch's own, or the script's: both say their size
        return _plan_by(given.sampler, given.batch_size, given.drop_last, loader, seed)
    return _drawn(given, seed, loader)


def _drawn(batch_sampler: Any, seed: int, loader: DataLoader[Any]) -> Drawn:
    kind = Drawn if _length(batch_sampler) < _TOO_MANY else Endless
    return kind(batch_sampler, seed, loader.generator)


def _plan_by(
    sampler: Any, batch_size: int, drop_last: bool, loader: DataLoader[Any], seed: int
) -> Plan:
    total = len(loader.dataset)  # type: ignore[arg-type]
    in_order = type(sampler) is SequentialSampler
    is_random = type(sampler) is RandomSampler and not sampler.replacement
    if (in_order or (is_random and sampler.generator is None)) and len(sampler) == total:
        return Permutation(total, batch_size, seed, is_random, drop_last)
    return _drawn(BatchSampler(sampler, batch_size, drop_last), seed, loader)


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
            self._epoch = epoch
            self._order = torch.randperm(self._total, generator=seeded(self._seed, epoch))
        return self._order[first : first + self._batch_size].tolist()

    def count(self, slices: Slices) -> int:
        """Only an epoch's last batch may be short."""
        phi = self.per_epoch
        ends = sum(end // phi - first // phi for first, end in slices)
        steps = sum(end - first for first, end in slices)
        return steps * self._batch_size - ends * self._short_by


class Drawn:
    """Batches as a script's own sampler draws them, one epoch after the other.

    A sampler that can be told its epoch is told; any other draws all epochs up to the wanted one,
    as it would by hand. Generators of its own go on from epoch to epoch.
    """

    exhausts = True  # whether the loop by hand asks for more than an epoch's last batch

    def __init__(self, batch_sampler: Any, seed: int, loader_generator: Any = None) -> None:
        self._sampler, self._seed, self._loader_generator = batch_sampler, seed, loader_generator
        self.per_epoch = _length(batch_sampler)
        self._chain = list(chain_of(batch_sampler))
        self._unseeded = unseeded(self._chain)
        self._own = [g for sampler in self._chain for g in generators_of(sampler)]
        depends_on_seed = not self._own and all(type(s) in _WITHOUT_STATE for s in self._chain)
        can_be_told = any(hasattr(sampler, "set_epoch") for sampler in self._chain)
        self._jumps = can_be_told or depends_on_seed
        self._own_states = [state_of(generator) for generator in self._own]
        self._epoch, self._batches = -1, list[list[Any]]()
        self._is_watched = True  # for random numbers that are not its own, once

    def samples(self, step: int) -> list[Any]:
        epoch, batch = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._go_to(epoch)
        return self._batches[batch]

    def count(self, slices: Slices) -> int:
        return sum(len(flat(self.samples(step))) for step in numbers(slices))

    def _go_to(self, epoch: int) -> None:
        if epoch < self._epoch:
            self._epoch = -1
            for generator, state in zip(self._own, self._own_states, strict=True):
                set_state(generator, state)
        for each in range(epoch if self._jumps else self._epoch + 1, epoch + 1):
            self._batches = self._draw(each)
        self._epoch = epoch

    def _begin(self, epoch: int) -> Iterator[Any]:
        for sampler in self._chain:
            set_epoch(sampler, epoch)
        for sampler in self._unseeded:
            sampler.generator = seeded(self._seed, epoch)
        if self._loader_generator is not None:  # as DataLoader does, for its workers' seed
            torch.empty((), dtype=torch.int64).random_(generator=self._loader_generator)
        return iter(self._sampler)

    def _draw(self, epoch: int) -> list[list[Any]]:
        with Randomness(epoch_seed(self._seed, epoch)):
            before = fingerprint() if self._is_watched else ""
            drawn = self._begin(epoch)
            batches = [list(batch) for batch in islice(drawn, self.per_epoch)]
            if self.exhausts:  # a sampler may draw once more at its end
                batches += [list(batch) for batch in drawn]
            if before and before != fingerprint():
                note_replaced(type(self._chain[-1]).__name__)
            self._is_watched = False
        if len(batches) != self.per_epoch:
            raise ValueError(
                f"{type(self._chain[-1]).__name__} drew {len(batches)} batches for epoch {epoch}, "
                f"where its length says {self.per_epoch}: copies could not agree on which batch a "
                "step is. Make every epoch as long as its len()"
            )
        return batches


class Endless(Drawn):
    """The same of a sampler whose one epoch is never to end, as of a RandomSampler with ten billion
    samples: its batches are drawn one by one."""

    def __init__(self, batch_sampler: Any, seed: int, loader_generator: Any = None) -> None:
        super().__init__(batch_sampler, seed, loader_generator)
        self._randomness = Randomness(epoch_seed(seed, 0))
        self._reading: Iterator[Any] = iter(())
        self._next = sys.maxsize
        self._recent: dict[int, list[Any]] = {}  # by step

    def samples(self, step: int) -> list[Any]:
        if step in self._recent:
            return self._recent[step]
        if step < self._next:
            self._restart()
        with self._randomness:
            for number in range(self._next, step + 1):
                self._recent[number] = list(next(self._reading))
                if len(self._recent) > _REMEMBERED:
                    del self._recent[next(iter(self._recent))]
        self._next = step + 1
        return self._recent[step]

    def count(self, slices: Slices) -> int:
        size = getattr(self._sampler, "batch_size", None) or 1
        return int(size) * sum(end - first for first, end in slices)

    def _restart(self) -> None:
        for generator, state in zip(self._own, self._own_states, strict=True):
            set_state(generator, state)
        self._randomness, self._next = Randomness(epoch_seed(self._seed, 0)), 0
        with self._randomness:
            self._reading = self._begin(0)
        self._recent.clear()


def flat(samples: Sequence[Any]) -> list[int]:
    """A sampler may draw whole batches for a data set that takes lists of numbers."""
    return [n for s in samples for n in (flat(s) if isinstance(s, (list, tuple)) else [s])]


def epoch_seed(seed: int, epoch: int) -> int:
    return seed * 1_000_003 + epoch


def seeded(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(epoch_seed(seed, epoch))


def unseeded(chain: Sequence[Any]) -> list[Any]:
    """Samplers that have a place for a generator and none in it: torch's global random numbers,
    which every dropout moves on, would be theirs."""
    return [s for s in chain if getattr(s, "generator", chain) is None]


def set_epoch(owner: Any, epoch: int) -> None:
    tell = getattr(owner, "set_epoch", None)
    if callable(tell):
        tell(epoch)


def _length(batch_sampler: Any) -> int:
    try:
        length = len(batch_sampler)
    except TypeError as error:
        kind = type(batch_sampler).__name__
        raise TypeError(
            f"{kind} has no len(): hadar must know how many batches an epoch has, to give every "
            "copy its own. Add __len__ to it"
        ) from error
    if length < 1:
        raise ValueError(f"{type(batch_sampler).__name__} says that an epoch has {length} batches")
    return length


def give_generators(loader: Any, seed: int) -> None:
    """Seeds the loader's samplers that would draw from torch's global random numbers: by hand and
    under hadar alike, so that both go through the same batches."""
    for sampler in chain_of(getattr(loader, "batch_sampler", None) or loader.sampler):
        unseeded = getattr(sampler, "generator", seed) is None
        if unseeded and not hasattr(sampler, "set_epoch"):
            sampler.generator = torch.Generator().manual_seed(seed)


def chain_of(sampler: Any) -> Iterator[Any]:
    """A batch sampler, the sampler that it draws from, and so on."""
    seen: set[int] = set()
    while sampler is not None and id(sampler) not in seen:
        seen.add(id(sampler))
        yield sampler
        sampler = getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None)
