"""Ranks that join later, and a rank that is ended by the others."""

import os
import time

import numpy as np
import pytest

import ubep
from ranks import dense_moe, exact_case, open_comm, run

EXPERTS = 6  # two on each of three ranks


def one_round(comm, rank, present):
    """A layer in which the experts of absent ranks give nothing."""
    x, idx, weights = exact_case(rank, 5 + rank, num_experts=EXPERTS, topk=3, seed=rank)
    handle = comm.dispatch(x, idx, weights, layout="expert_major")
    r = handle.received
    rows = r.rows
    y = np.array(rows)
    for e, first in enumerate(r.expert_offsets[: len(comm.local_experts)]):
        y[first : first + r.expert_counts[e]] *= comm.local_experts[e] + 1
    out = comm.combine(handle, y)
    here = np.isin(idx // 2, present)
    np.testing.assert_array_equal(out, dense_moe(x, np.where(here, idx, -1), weights))
    return rows  # a view, which outlives its communicator


def join_and_go(bootstrap):
    rank = bootstrap.rank
    first, views = None, []
    if rank != 2:
        bootstrap.members = [1, 0]
        first = open_comm(bootstrap, num_experts=EXPERTS)
        assert first.members == [0, 1]
        views += [one_round(first, rank, [0, 1]) for _ in range(3)]
        second = first.update_membership([0, 1, 2])
        with pytest.raises(ubep.Misuse, match="closed"):
            first.dispatch(*exact_case(rank, 1, num_experts=EXPERTS))
    else:
        bootstrap.members = [0, 1, 2]
        second = open_comm(bootstrap, num_experts=EXPERTS)
    assert second.members == [0, 1, 2]
    views += [one_round(second, rank, [0, 1, 2]) for _ in range(3)]
    if rank == 1:
        second.close()
        return
    third = second.update_membership([0, 2])
    views += [one_round(third, rank, [0, 2]) for _ in range(3)]
    del first, second, third
    assert sum(view.astype(np.float32).size for view in views) > 0  # still mapped


def test_ranks_join_and_leave():
    run(3, join_and_go)


def nobody_comes(bootstrap):
    bootstrap.members = [0, 1]
    bootstrap.timeout = 1.0
    comm = open_comm(bootstrap, num_experts=EXPERTS)
    with pytest.raises(ubep.SetupError, match="rank 2 did not arrive"):
        comm.update_membership([0, 1, 2])
    with pytest.raises(ubep.InvalidArgument, match="expected at least this rank"):
        comm.update_membership([])
    one_round(comm, bootstrap.rank, [0, 1])


def test_who_does_not_come_is_named_and_nothing_is_lost():
    def body(bootstrap):
        if bootstrap.rank < 2:
            nobody_comes(bootstrap)

    run(3, body)


def end_who_hangs(bootstrap, read, write):
    comm = open_comm(bootstrap, num_experts=EXPERTS, timeout=10)
    one_round(comm, bootstrap.rank, [0, 1, 2])
    if bootstrap.rank == 2:
        os.write(write, b"hangs")
        time.sleep(60)
    case = exact_case(bootstrap.rank, 4, num_experts=EXPERTS, topk=3)
    if bootstrap.rank == 0:
        os.read(read, 5)
        comm.mask(2)
    with pytest.raises(ubep.PeerLost) as lost:
        comm.dispatch(*case)
    assert list(lost.value.missing) == [2]
    with pytest.raises(ubep.Misuse, match="the rank is this one"):
        comm.mask(bootstrap.rank)


def test_a_masked_rank_is_ended():
    with pytest.raises(AssertionError) as failed:
        run(3, end_who_hangs, *os.pipe())
    assert str(failed.value) == "rank 2:\ndied"


def keyed(bootstrap):
    bootstrap.members = [0, 1]
    if bootstrap.rank == 1:
        bootstrap.key = "another one"
        with pytest.raises(ubep.SetupError, match="rank 0 .* has another job key"):
            open_comm(bootstrap, num_experts=EXPERTS)
    bootstrap.key = "a secret"  # rank 0 still waits for the rank that knows it
    one_round(open_comm(bootstrap, num_experts=EXPERTS), bootstrap.rank, [0, 1])


def test_who_has_another_key_is_refused():
    def body(bootstrap):
        if bootstrap.rank < 2:
            keyed(bootstrap)

    run(3, body)
