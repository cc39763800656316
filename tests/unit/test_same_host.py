"""Members on one machine exchange numbers through its memory; here they are threads."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hadar_cli.node.training.gangs.same_host import HostGroup

SIZES = (3, 0, 1000, 300_000, 7, 1_500_000, 64)  # floats: the largest are added up in parts


def together(size, do):
    """What ``do(rank, group)`` gives for each member of a new group."""
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(size) as pool:
        groups = pool.map(lambda rank: HostGroup(store, rank, size), range(size))
        return list(pool.map(do, range(size), groups))


@pytest.mark.parametrize("size", [2, 5])
def test_sums_are_the_same_for_all_whatever_is_waited_for_first(size):
    given = [[torch.randn(n) for n in SIZES] for _ in range(size)]

    def exchange(rank, group):
        for _ in range(4):
            mine = [tensor.clone() for tensor in given[rank]]
            works = [group.allreduce([tensor]) for tensor in mine]
            rows = [torch.empty(1) for _ in range(size)]
            group.allgather([rows], [torch.tensor([float(rank)])]).wait()
            for work in works:
                work.wait()
        assert torch.cat(rows).tolist() == list(range(size))
        return mine

    found = together(size, exchange)
    for i in range(len(SIZES)):
        expected = torch.stack([tensors[i] for tensors in given]).sum(0)
        torch.testing.assert_close(found[0][i], expected)
        assert all(torch.equal(tensors[i], found[0][i]) for tensors in found)


def test_everybody_gets_what_rank_0_has():
    kinds = [torch.float64, torch.int64, torch.bool]

    def exchange(rank, group):
        mine = [torch.full((), rank == 0, dtype=kind) for kind in kinds]
        for tensor in mine:
            group.broadcast([tensor]).wait()
        return [tensor.item() for tensor in mine]

    assert together(3, exchange) == [[1.0, 1, True]] * 3


def test_whoever_waits_for_one_that_has_left_is_told():
    def exchange(rank, group):
        group.allreduce([torch.ones(4)]).wait()
        if rank:
            group.shutdown()
            return
        with pytest.raises(RuntimeError, match="rank 1 has ended"):
            group.allreduce([torch.ones(4)]).wait()

    together(2, exchange)


def test_numbers_of_different_sizes_are_not_added_up():
    def exchange(rank, group):
        with pytest.raises(RuntimeError, match="different sizes"):
            group.allreduce([torch.ones(4 + rank)]).wait()

    together(2, exchange)


def test_memory_is_given_back_when_the_next_group_begins():
    def exchange(rank, group):
        group.allreduce([torch.ones(3_000_000)]).wait()
        return group

    def held():
        return len(os.listdir("/proc/self/fd"))

    for group in together(2, exchange):
        group.shutdown()
    before = held()
    for _ in range(3):
        for group in together(2, exchange):
            group.shutdown()
    assert held() <= before
