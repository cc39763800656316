"""Data slices: whatever happens to its copies, every sample of every epoch is trained on once."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from hadar_cli.core.steps import StepSet, all_steps
from hadar_cli.node.contract import Order
from hadar_cli.node.slices import before, numbers, skip, take
from hadar_cli.node.training.batches import NOT_SAID, MapSource, source_of
from hadar_cli.node.training.streams import StreamSource

torch.set_num_threads(1)


class Stream(IterableDataset):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self):
        return iter(range(self.samples))


class Buckets(BatchSampler):
    """A script's own batch sampler: neighbours together, the batches in random order."""

    def __iter__(self):
        batches = list(super().__iter__())
        for i in torch.randperm(len(batches)).tolist():
            yield batches[i]


def as_given(kind: str, samples: int, batch: int, seed: int) -> MapSource | StreamSource:
    """The same data, in each of the ways a script may hand it to ``t.loader``."""
    data = range(samples)
    match kind:
        case "data set":
            return source_of(data, batch, seed, {})
        case "in order":
            return source_of(data, batch, seed, {"shuffle": False})
        case "loader":
            return source_of(DataLoader(data, batch, shuffle=True), NOT_SAID, seed, {})
        case "sampler":
            mine = RandomSampler(data, generator=torch.Generator())
            return source_of(data, batch, seed, {"sampler": mine})
        case "batch sampler":
            mine = Buckets(range(samples), batch, drop_last=False)
            return source_of(DataLoader(data, batch_sampler=mine), NOT_SAID, seed, {})
        case _:
            return source_of(Stream(samples), batch, seed, {})


KINDS = ("data set", "in order", "loader", "sampler", "batch sampler", "stream")


@st.composite
def runs(draw):
    """Orders to several copies over several rounds; some copies stop early, some are lost."""
    samples, batch = draw(st.integers(1, 30)), draw(st.integers(1, 7))
    epochs, copies = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    outcome = st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans(), st.booleans())
    return samples, batch, epochs, copies, draw(st.lists(outcome, min_size=1, max_size=20))


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), run=runs(), seed=st.integers(0, 2**32 - 1))
def test_no_sample_is_lost_or_doubled_over_rounds_losses_and_resumes(kind, run, seed):
    samples, batch, epochs, copies, outcomes = run
    per_epoch = -(-samples // batch)
    free = all_steps(per_epoch * epochs)
    sources = [as_given(kind, samples, batch, seed) for _ in range(copies)]
    counted: dict[int, list[int]] = {}
    turn = 0
    while len(free):
        quota, done, is_lost, restarts = outcomes[turn % len(outcomes)]
        is_lost, done = is_lost and turn < len(outcomes), max(1, done)
        copy = turn % copies
        turn += 1
        if restarts:  # a new process knows nothing of where the last one was
            sources[copy] = as_given(kind, samples, batch, seed)
        order = free.first(quota)
        slices = take(order.ranges, done)
        batches = [b.tolist() for b in sources[copy].batches(slices)]
        assert sources[copy].per_epoch in (per_epoch, None)
        if kind != "stream":
            assert sources[copy].samples_in(slices) == sum(map(len, batches))
        if not is_lost:
            free -= StepSet.of(slices)
            for step, trained_on in zip(numbers(slices), batches, strict=True):
                counted.setdefault(step // per_epoch, []).extend(trained_on)
    assert counted.keys() == set(range(epochs))
    for trained_on in counted.values():
        assert sorted(trained_on) == list(range(samples))


@given(
    gaps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=6),
    done=st.integers(0, 60),
    bound=st.integers(0, 80),
)
def test_what_is_done_and_what_is_left_make_up_the_order(gaps, done, bound):
    slices, at = [], 0
    for gap, length in gaps:
        slices.append((at + gap, at + gap + length))
        at += gap + length
    all_of_it = list(numbers(tuple(slices)))
    assert list(numbers(take(tuple(slices), done))) == all_of_it[:done]
    assert list(numbers(skip(tuple(slices), done))) == all_of_it[done:]
    assert list(numbers(before(tuple(slices), bound))) == [k for k in all_of_it if k < bound]
    order = Order(len(all_of_it), tuple(slices), 0.0, 0.0)
    assert list(numbers(order.left(done))) == all_of_it[done:]
