"""Any DataLoader's batches: by hand, under orders, and on copies that begin in the middle."""

import random
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hadar_cli.node.training.batches import NOT_SAID, Steps, source_of

DATA = list(range(50))


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Buckets(Sampler):
    """Batches of neighbours, in an order from a generator that nobody can see from outside."""

    def __init__(self, rng) -> None:
        self._rng = rng

    def __iter__(self):
        firsts = list(range(0, 50, 8))
        self._rng.shuffle(firsts)
        return iter([list(range(first, min(first + 8, 50))) for first in firsts])

    def __len__(self) -> int:
        return 7


class ByEpoch(Sampler):
    """As a DistributedSampler: told its epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(50, generator=seeded(self.epoch)).tolist())

    def __len__(self) -> int:
        return 50


def plain(**words) -> DataLoader:
    return DataLoader(DATA, **words)


# Loaders whose order by hand is their own: followed to the letter.
FOLLOWED = {
    "in order": lambda: plain(batch_size=8),
    "drop_last": lambda: plain(batch_size=8, drop_last=True),
    "batch_sampler in order": lambda: plain(
        batch_sampler=BatchSampler(SequentialSampler(DATA), 8, False)
    ),
    "shuffle with a generator": lambda: plain(batch_size=8, shuffle=True, generator=seeded()),
    "batch_sampler with a generator": lambda: plain(
        batch_sampler=BatchSampler(RandomSampler(DATA, generator=seeded()), 8, True)
    ),
    "with replacement": lambda: plain(
        batch_size=8, sampler=RandomSampler(DATA, True, 20, generator=seeded())
    ),
    "weighted": lambda: plain(
        batch_size=8, sampler=WeightedRandomSampler(range(1, 51), 30, generator=seeded())
    ),
    "subset": lambda: plain(batch_size=8, sampler=SubsetRandomSampler(range(9), seeded())),
    "random's buckets": lambda: plain(batch_sampler=Buckets(random.Random(3))),
    "NumPy's buckets": lambda: plain(batch_sampler=Buckets(np.random.default_rng(3))),
    "old NumPy's buckets": lambda: plain(batch_sampler=Buckets(np.random.RandomState(3))),
    "no batches": lambda: plain(batch_size=None),
    "a sampler of batches": lambda: DataLoader(
        torch.arange(50),
        batch_size=None,
        sampler=BatchSampler(RandomSampler(DATA, generator=seeded()), 8, False),
    ),
    "collate_fn": lambda: plain(batch_size=8, collate_fn=lambda batch: [sum(batch)]),
    "workers": lambda: plain(batch_size=8, shuffle=True, generator=seeded(), num_workers=1),
}


def listed(batch) -> list:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


@pytest.mark.parametrize("kind", FOLLOWED)
def test_a_loader_is_followed_as_it_would_go_by_hand(kind):
    by_hand = FOLLOWED[kind]()
    wanted = [listed(batch) for _ in range(3) for batch in by_hand]
    source = source_of(FOLLOWED[kind](), NOT_SAID, 7, {})
    assert source.per_epoch == len(by_hand)
    assert [listed(b) for b in source.batches(((0, len(wanted)),))] == wanted


@pytest.mark.parametrize("kind", sorted(FOLLOWED.keys() - {"workers"}))
def test_a_copy_that_begins_late_or_goes_back_means_the_same_batches(kind):
    phi = len(FOLLOWED[kind]())
    wanted = [
        listed(b) for b in source_of(FOLLOWED[kind](), NOT_SAID, 7, {}).batches(((0, 3 * phi),))
    ]
    late = source_of(FOLLOWED[kind](), NOT_SAID, 7, {})
    late_steps = ((2 * phi, 3 * phi), (0, phi), (phi, 2 * phi))
    got = [listed(b) for b in late.batches(late_steps)]
    assert got == wanted[2 * phi :] + wanted[: 2 * phi]


# Loaders that draw from torch's global random numbers: the job's seed stands for them.
def test_accelerates_way_of_building_a_loader_shuffles_and_keeps_its_batch_size():
    torch.manual_seed(0)
    loader = plain(batch_sampler=BatchSampler(RandomSampler(DATA), 8, False))
    source = source_of(loader, NOT_SAID, 7, {})
    assert source.per_epoch == len(loader) == 7
    batches = [b.tolist() for b in source.batches(((0, 7),))]
    assert sorted(chain(*batches)) == DATA
    assert list(chain(*batches)) != DATA
    same = source_of(plain(batch_size=8, shuffle=True), NOT_SAID, 7, {})
    assert [b.tolist() for b in same.batches(((0, 7),))] == batches


def test_reading_one_ahead_gives_every_step_its_own_batch_wherever_an_order_is_left():
    """Orders with a gap, left within it, left at an epoch's end, and gone on with or not."""
    steps = Steps(source_of(plain(batch_size=8), NOT_SAID, 0, {}), 1, reads_ahead=True)
    for slices, taken in (
        (((0, 2), (5, 6)), 2),
        (((2, 4),), 2),
        (((4, 9),), 3),
        (((7, 10),), 3),
        (((10, 12), (3, 5)), 4),
        (((5, 7),), 2),
    ):
        numbers = list(chain.from_iterable(range(*one) for one in slices))[:taken]
        groups = zip(steps.groups(slices), range(taken), strict=False)
        batches = [listed(batch) for group, _ in groups for batch in group]
        wanted = [DATA[8 * (n % 7) : 8 * (n % 7) + 8] for n in numbers]
        assert batches == wanted, slices


def test_a_sampler_that_is_told_its_epoch_draws_that_one_alone():
    drawn = []

    class Counted(ByEpoch):
        def __iter__(self):
            drawn.append(self.epoch)
            return super().__iter__()

    source = source_of(plain(batch_size=10, sampler=Counted()), NOT_SAID, 7, {})
    (batch,) = source.batches(((40, 41),))
    assert drawn == [8]
    assert batch.tolist() == torch.randperm(50, generator=seeded(8)).tolist()[:10]


def test_global_random_numbers_are_neither_read_nor_moved():
    """But for the one that a DataLoader draws when an epoch begins, by hand as well."""
    drawn = []
    for seed_before in (1, 2):
        torch.manual_seed(seed_before)
        torch.empty((), dtype=torch.int64).random_()
        after_one = torch.get_rng_state()
        torch.manual_seed(seed_before)
        random.seed(seed_before)
        before = random.getstate()
        loader = plain(batch_size=10, sampler=WeightedRandomSampler(range(1, 51), 30))
        source = source_of(loader, NOT_SAID, 7, {})
        orders = [((0, 1),), ((1, 2),), ((2, 3),)]
        drawn.append([b.tolist() for order in orders for b in source.batches(order)])
        assert torch.equal(torch.get_rng_state(), after_one)
        assert random.getstate() == before
    assert drawn[0] == drawn[1]


class Shuffled(IterableDataset):
    """A stream with a shuffle buffer, as web datasets have."""

    def __iter__(self):
        order = list(range(24))
        random.shuffle(order)
        yield from (order[i] + int(torch.rand(())) for i in range(24))


def test_a_stream_is_the_same_on_every_copy_whatever_else_draws_random_numbers():
    def read(slices, seed_before):
        torch.manual_seed(seed_before)
        random.seed(seed_before)
        got = []
        for batch in source_of(Shuffled(), 4, 7, {}).batches(slices):
            random.random()  # the script's own augmentation
            got.append(batch.tolist())
        return got

    whole = read(((0, 12),), 1)
    assert sorted(chain(*whole[:6])) == list(range(24))
    assert whole[:6] != whole[6:]
    assert read(((2, 4), (7, 9)), 2) == whole[2:4] + whole[7:9]


def test_a_loader_with_a_way_of_its_own_is_read_as_a_stream_and_says_so(capsys):
    class Twice(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch * 2

    source = source_of(Twice(DATA, batch_size=10), NOT_SAID, 7, {})
    assert [b.tolist()[0] for b in source.batches(((1, 3),))] == [20, 40]
    assert "Twice iterates in a way of its own" in capsys.readouterr().err


def test_a_sampler_without_a_length_is_refused_with_the_fix():
    class Endless(Sampler):
        def __iter__(self):
            while True:
                yield [0]

    with pytest.raises(TypeError, match="Endless has no len"):
        source_of(plain(batch_sampler=Endless()), NOT_SAID, 7, {})


def test_a_sampler_that_draws_another_number_than_its_length_is_refused():
    class Lying(Buckets):
        def __len__(self) -> int:
            return 5

    source = source_of(plain(batch_sampler=Lying(random.Random(0))), NOT_SAID, 7, {})
    with pytest.raises(
        ValueError, match="Lying drew 7 batches for epoch 0, where its length says 5"
    ):
        list(source.batches(((0, 1),)))


def test_a_data_set_of_ready_batches():
    ready = [torch.arange(3) + i for i in range(4)]
    source = source_of(ready, None, 7, {"shuffle": False})
    assert source.per_epoch == 4
    assert [b.tolist() for b in source.batches(((1, 3),))] == [[1, 2, 3], [2, 3, 4]]
