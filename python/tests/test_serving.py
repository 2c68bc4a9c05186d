"""Experts one by one, rows in a tensor of the caller's, tokens that take no part."""

import gc
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import ubep
from ranks import dense_moe, exact_case, job, open_comm, run

EXPERT = dict(layout="expert_major")
ONE_BY_ONE = dict(layout="expert_major", by_expert=True)


def one_rank(**options):
    return open_comm(ubep.local(0, 1, job()), **options)


def start(comm, *case, **options):
    """start_dispatch as soon as peers have given their slot back."""
    while True:
        try:
            return comm.start_dispatch(*case, **options)
        except ubep.NotReady:
            comm.step()


def rows_of(received, expert):
    offsets = received.expert_offsets
    return slice(offsets[expert], offsets[expert] + received.expert_counts[expert])


def weighted_rows(received, comm):
    """What the experts give: row times (global expert + 1)."""
    y = np.zeros(received.rows.shape, received.rows.dtype)
    for local, expert in enumerate(comm.local_experts):
        at = rows_of(received, local)
        y[at] = received.rows[at] * (expert + 1)
    return y


def one_by_one(bootstrap, order, torch_rows):
    comm = open_comm(bootstrap)
    for turn in range(4):
        case = exact_case(comm.rank, (5 + 9 * comm.rank + turn) % 17, seed=turn)
        x = case[0]
        if torch_rows:
            import torch

            x = torch.from_numpy(x)
        handle = start(comm, x, *case[1:], **ONE_BY_ONE)
        for e in range(comm.num_local_experts):
            comm.wait_expert(handle, e)
            assert comm.poll_expert(handle, e)
            handle.received.rows[rows_of(handle.received, e)].sum()
        comm.wait(handle)
        out = comm.start_combine(handle, by_expert=True)
        for e in sorted(range(comm.num_local_experts), reverse=order == "backward"):
            at = rows_of(handle.received, e)
            handle.expert_output[at] = handle.received.rows[at] * (comm.local_experts[e] + 1)
            comm.publish(handle, e)
        comm.wait(handle)
        np.testing.assert_array_equal(np.asarray(out), dense_moe(*case))
        assert np.asarray(handle.valid_tokens()).all()


@pytest.mark.parametrize("size,order,torch_rows", [(1, "forward", False), (2, "backward", False), (4, "forward", True)])
def test_experts_one_by_one(size, order, torch_rows):
    if torch_rows:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    run(size, one_by_one, order, torch_rows)


def published_by_a_thread(bootstrap):
    comm = open_comm(bootstrap)
    case = exact_case(comm.rank, 20)
    handle = start(comm, *case, **ONE_BY_ONE)
    comm.wait(handle)
    y = weighted_rows(handle.received, comm)
    out = comm.start_combine(handle, y, by_expert=True)

    def publish():
        for e in range(comm.num_local_experts):
            time.sleep(0.02)
            comm.publish(handle, e)

    thread = threading.Thread(target=publish)
    thread.start()
    comm.wait(handle)
    thread.join()
    np.testing.assert_array_equal(out, dense_moe(*case))


def test_a_thread_publishes_while_another_waits():
    run(2, published_by_a_thread)


def one_by_one_in_wrong_order(bootstrap):
    comm = open_comm(bootstrap)
    case = exact_case(comm.rank, 6)
    if comm.rank == 1:
        time.sleep(0.4)
    handle = start(comm, *case, **ONE_BY_ONE)
    if comm.rank == 0:
        assert comm.poll_expert(handle, 0) is False
        begin = time.monotonic()
        with pytest.raises(ubep.Timeout) as caught:
            comm.wait_expert(handle, 0, timeout=0.12)
        assert 0.1 < time.monotonic() - begin < 0.38
        assert caught.value.handle is handle and caught.value.missing == [1]
        with pytest.raises(ubep.Misuse, match="publish"):
            comm.publish(handle, 0)
    with pytest.raises(ubep.InvalidArgument, match=r"expert \(local\) is 4, expected 0..3"):
        comm.wait_expert(handle, 4)
    comm.wait(handle)
    with pytest.raises(ubep.InvalidArgument, match="by_expert.*start_combine"):
        comm.combine(handle, by_expert=True)
    handle.expert_output[:] = weighted_rows(handle.received, comm)
    out = comm.start_combine(handle, by_expert=True)
    with pytest.raises(ubep.Misuse, match="poll_expert"):
        comm.poll_expert(handle, 0)
    for e in range(comm.num_local_experts):
        comm.publish(handle, e)
    with pytest.raises(ubep.Misuse, match="published before|complete"):
        comm.publish(handle, 0)
    comm.wait(handle)
    np.testing.assert_array_equal(out, dense_moe(*case))
    with pytest.raises(ubep.Misuse):
        _ = handle.received


def test_calls_of_single_experts_out_of_place():
    run(2, one_by_one_in_wrong_order)


def test_by_expert_is_for_expert_layouts():
    comm = one_rank()
    with pytest.raises(ubep.InvalidArgument, match="by_expert"):
        comm.dispatch(*exact_case(0, 3), by_expert=True)
    handle = comm.dispatch(*exact_case(0, 3), **EXPERT)
    with pytest.raises(ubep.Misuse, match="by_expert"):
        comm.poll_expert(handle, 0)
    with pytest.raises(ubep.InvalidArgument, match="True or False"):
        comm.start_combine(handle, by_expert=1)


def into_out(bootstrap, kind):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 4 + 3 * comm.rank)
    wide = np.full((60, 40), 7, np.float32)
    out = wide[:, 4:28]
    handle = dict(
        dispatch=lambda: comm.dispatch(x, idx, weights, out=out, **EXPERT),
        start_dispatch=lambda: start(comm, x, idx, weights, out=out, **EXPERT),
        dispatch_cached=lambda: again(comm, x, idx, weights, out),
    )[kind]()
    comm.wait(handle)
    r = handle.received
    rows = r.rows
    assert rows.ctypes.data == out.ctypes.data and rows.flags.writeable
    assert (wide[r.num_rows :] == 7).all() and (wide[:, :4] == 7).all() and (wide[:, 28:] == 7).all()
    y = np.full((60, 24), np.nan, np.float32)  # as many rows as out has: the rest is not read
    y[: r.num_rows] = weighted_rows(r, comm)
    np.testing.assert_array_equal(comm.combine(handle, y), dense_moe(x, idx, weights))


def again(comm, x, idx, weights, out):
    first = comm.dispatch(x, idx, weights, **EXPERT)
    comm.release(first)
    return comm.dispatch_cached(x, first, out=out)


@pytest.mark.parametrize("kind", ["dispatch", "start_dispatch", "dispatch_cached"])
def test_rows_in_a_tensor_of_the_callers(kind):
    run(2, into_out, kind)


def contiguous_out(bootstrap):
    import torch

    comm = open_comm(bootstrap)
    x, idx, weights = (torch.from_numpy(a) for a in exact_case(comm.rank, 5))
    out = torch.zeros(16, 24, dtype=torch.bfloat16)
    handle = comm.dispatch(x.bfloat16(), idx, weights, out=out, contiguous=True)
    r = handle.received
    assert r.rows.data_ptr() == out.data_ptr() and r.topk_idx.shape == r.topk_weights.shape == (16, 4)
    assert (r.topk_idx[r.num_rows :] == -1).all() and (r.topk_idx[: r.num_rows] >= 0).any(1).all()
    factor = torch.where(r.topk_idx >= 0, r.topk_weights * (r.topk_idx + comm.local_experts[0] + 1), 0).sum(1)
    y = (out.float() * factor[:, None]).bfloat16()
    got = comm.combine(handle, y).float()
    np.testing.assert_array_equal(got, dense_moe(x.numpy(), idx.numpy(), weights.numpy()))


def test_fixed_shapes_in_rank_major():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run(2, contiguous_out)


def too_small(bootstrap):
    comm = open_comm(bootstrap)
    case = exact_case(comm.rank, 9)
    out = np.zeros((2, 24), np.float32)
    with pytest.raises(ubep.NoCapacity) as caught:
        comm.dispatch(*case, out=out, **EXPERT)
    handle = caught.value.handle
    r = handle.received
    assert r.num_rows > 2 and r.rows.ctypes.data != out.ctypes.data
    handle.expert_output[:] = weighted_rows(r, comm)
    np.testing.assert_array_equal(comm.combine(handle), dense_moe(*case))


def test_too_few_rows_lose_nothing():
    run(2, too_small)


def test_what_out_must_be():
    comm = one_rank()
    x, idx, weights = exact_case(0, 5)
    fixed = np.zeros((40, 24), np.float32)
    fixed.flags.writeable = False

    def refused(text, out, **options):
        with pytest.raises(ubep.InvalidArgument, match=text) as caught:
            comm.dispatch(x, idx, weights, out=out, **(EXPERT | options))
        assert caught.value.argument.startswith("out")

    refused("overlaps x", x)
    refused("read-only", fixed)
    refused("bf16 of hidden 24, expected fp32 of 24", np.zeros((40, 24), ml_dtypes.bfloat16))
    refused("hidden 23", np.zeros((40, 23), np.float32))
    refused("strides", np.zeros((24, 40), np.float32).T)
    refused("in_place", np.zeros((40, 24), np.float32), in_place=True, path="pull")
    refused("contiguous", np.zeros((40, 24), np.float32), layout="rank_major")
    refused("quant", np.zeros((40, 24), np.float32), quant="int8")
    with pytest.raises(ubep.InvalidArgument, match="out overlaps"):
        out = np.zeros((40, 24), np.float32)
        handle = comm.dispatch(x, idx, weights, out=out, **EXPERT)
        comm.combine(handle, out=out[:5])
    with pytest.raises(TypeError, match="active"):
        comm.dispatch_cached(x, handle, active=np.ones(5, bool), handle=ubep.Handle())


def test_out_is_held_until_the_lease_ends():
    comm = one_rank()
    x, idx, weights = exact_case(0, 5)
    out = np.zeros((40, 24), np.float32)
    before = sys.getrefcount(out)
    handle = comm.dispatch(x, idx, weights, out=out, **EXPERT)
    rows = handle.received.rows
    assert sys.getrefcount(out) > before
    seen = rows.copy()
    comm.combine(handle, np.ascontiguousarray(rows))
    comm.release(comm.dispatch(x, idx, weights, handle=handle, **EXPERT))
    assert sys.getrefcount(out) > before  # by the view
    np.testing.assert_array_equal(rows, seen)
    del rows
    gc.collect()
    assert sys.getrefcount(out) == before


def part_of_the_tokens(bootstrap, dtype):
    comm = open_comm(bootstrap, max_tokens=4)
    x, idx, weights = exact_case(comm.rank, 11)
    active = np.arange(11) % 3 != comm.rank
    given = active.astype(dtype)
    expected = dense_moe(x, np.where(active[:, None], idx, -1), weights)
    idx = np.where(active[:, None], idx, np.int32(7))

    def experts(handle):
        handle.expert_output[:] = weighted_rows(handle.received, comm)

    np.testing.assert_array_equal(
        comm.run_layer(x, idx, weights, active=given, experts=experts, **EXPERT), expected)
    for mask in (given[:4], np.repeat(given[:4], 2)[::2]):
        handle = start(comm, x[:4], idx[:4], weights[:4], active=mask, **EXPERT)
        comm.wait(handle)
        experts(handle)
        np.testing.assert_array_equal(comm.combine(handle), expected[:4])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8], ids=str)
def test_tokens_that_take_no_part(dtype):
    run(2, part_of_the_tokens, dtype)


def test_what_active_must_be():
    comm = one_rank()
    case = exact_case(0, 5)
    for given, text in ((np.ones(4, bool), r"\[5\]"), (np.ones((5, 1), bool), "2 dimensions"),
                        (np.ones(5, np.int32), "int32, expected bool or uint8"), ("no", "str")):
        with pytest.raises(ubep.InvalidArgument, match=text) as caught:
            comm.dispatch(*case, active=given)
        assert caught.value.argument == "active"
    with pytest.raises(ubep.InvalidArgument, match="x has dtype bool"):
        comm.dispatch(np.ones((5, 8), bool), *case[1:])
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    handle = comm.dispatch(*case, active=torch.zeros(5, dtype=torch.bool), **EXPERT)
    assert handle.received.num_rows == 0


def test_what_creation_was_given():
    comm = one_rank(slots=3, expert_capacity=9)
    given = (comm.num_experts, comm.max_tokens, comm.max_topk, comm.max_hidden, comm.max_dtype)
    assert given == (8, 32, 4, 64, ubep.DType.fp32)
    assert (comm.slots, comm.expert_capacity, comm.local_experts) == (3, 9, list(range(8)))


def owned(bootstrap):
    blocks = open_comm(bootstrap, num_experts=7).local_experts
    mapped = open_comm(ubep.local(bootstrap.rank, bootstrap.size, bootstrap.job + "/map"),
                       expert_rank=[2, 0, 0, 1, 0, 2, 0, 1]).local_experts
    return blocks, mapped


def test_local_experts():
    blocks, mapped = zip(*run(3, owned))
    assert blocks == ([0, 1, 2], [3, 4], [5, 6])
    assert mapped == ([1, 2, 4, 6], [3, 7], [0, 5])
