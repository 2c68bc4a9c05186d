"""Dispatch and combine against a dense layer that was written apart from the library."""

import hashlib

import ml_dtypes
import numpy as np
import pytest

from ranks import dense_moe, exact_case, open_comm, run

DTYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def first_expert(comm, num_experts=8):
    """Blocks: the first E mod R ranks own one expert more."""
    each, more = divmod(num_experts, comm.size)
    return comm.rank * each + min(comm.rank, more)


def expert_of_rows(received):
    """Local expert of each row of an expert layout, -1 of padding."""
    counts, offsets = received.expert_counts, received.expert_offsets
    found = np.full(received.num_rows, -1)
    for e, n in enumerate(counts):
        found[offsets[e] : offsets[e] + n] = e
    return found


def all_rows(received):
    """Rows of any layout as float32 [num_rows, hidden], by the view where there is one."""
    try:
        return np.asarray(received.rows).astype(np.float32)
    except Exception as error:
        assert type(error).__name__ == "Misuse", error
    rows = received.copy_rows().astype(np.float32)
    try:
        blocks = received.blocks
    except Exception:
        return rows
    parts = [blocks[q, :n] for q, n in enumerate(received.src_counts)]
    np.testing.assert_array_equal(np.concatenate(parts).astype(np.float32), rows)
    return rows


def outputs(handle, first, options):
    """What the experts of this rank give: one row per expected output row."""
    r = handle.received
    rows = all_rows(r)
    if options["layout"] != "rank_major":
        return rows * (expert_of_rows(r) + first + 1)[:, None]
    if options.get("weighting") == "owner":
        offsets = r.expert_offsets
        experts = np.concatenate([np.full(offsets[e + 1] - offsets[e], e) for e in range(len(offsets) - 1)])
        return rows[r.expert_rows] * (experts + first + 1)[:, None]
    idx, weights = r.topk_idx, r.topk_weights
    if options.get("topk1"):
        return rows * (weights * (idx + first + 1))[:, None]
    return rows * np.where(idx >= 0, weights * (idx + first + 1), 0).sum(axis=1)[:, None]


def layer(comm, case, dtype, options, in_output):
    x, idx, weights = case
    handle = comm.dispatch(x.astype(dtype), idx, weights, **options)
    y = outputs(handle, first_expert(comm), options).astype(dtype)
    if in_output:
        handle.expert_output[:] = y
        return comm.combine(handle)
    return comm.combine(handle, y)


LAYOUTS = {
    "expert_major": dict(layout="expert_major"),
    "aligned": dict(layout="expert_major", expert_alignment=4),
    "expert_padded": dict(layout="expert_padded"),
    "read": dict(layout="rank_major", path="read"),
    "pull": dict(layout="rank_major", path="pull"),
    "push": dict(layout="rank_major", path="push"),
    "contiguous": dict(layout="rank_major", path="pull", contiguous=True),
    "owner": dict(layout="rank_major", weighting="owner"),
    "topk1": dict(layout="rank_major", path="pull", topk1=True),
    "in_place": dict(layout="expert_major", path="pull", in_place=True),
    "allgather": dict(layout="rank_major", path="allgather"),
    "pushed experts": dict(layout="expert_major", path="push"),
    "bsp": dict(layout="expert_major", path="bsp"),
}


def tokens_of(rank, turn):
    """Uneven, and zero on one rank in turn."""
    return 0 if (rank + turn) % 3 == 2 else 5 + 7 * rank % 19


def all_layouts(bootstrap):
    comm = open_comm(bootstrap, expert_capacity=8 * 32, bsp=True)
    turn = 0
    for name, options in LAYOUTS.items():
        for dtype in DTYPES.values():
            turn += 1
            case = exact_case(comm.rank, tokens_of(comm.rank, turn), seed=turn)
            got = layer(comm, case, dtype, options, in_output=turn % 2 == 0)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.astype(np.float32), dense_moe(*case), f"{name} {dtype}")
    comm.close()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_layout_equals_the_dense_layer(size):
    run(size, all_layouts, limit=60)


def eight_ranks(bootstrap):
    comm = open_comm(bootstrap, num_experts=11)
    x, idx, weights = exact_case(comm.rank, 3 * comm.rank % 7, num_experts=11)
    handle = comm.dispatch(x, idx, weights, layout="expert_major")
    r = handle.received
    handle.expert_output[:] = r.rows * (expert_of_rows(r) + first_expert(comm, 11) + 1)[:, None]
    np.testing.assert_array_equal(comm.combine(handle), dense_moe(x, idx, weights))


def test_eight_ranks():
    run(8, eight_ranks, limit=60)


def repeats(bootstrap, size_of_case):
    comm = open_comm(bootstrap)
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal((size_of_case, 33)).astype(np.float32)
    idx = rng.integers(-1, 8, (size_of_case, 4)).astype(np.int32)
    weights = rng.random((size_of_case, 4)).astype(np.float32)
    hashes = set()
    for turn in range(20):
        handle = comm.dispatch(x, idx, weights, layout="expert_major", path=["pull", "push"][turn % 2])
        handle.expert_output[:] = np.tanh(handle.received.rows)
        hashes.add(hashlib.sha256(comm.combine(handle).tobytes()).hexdigest())
    return hashes


def test_twenty_repeats_give_the_same_bits():
    assert all(len(hashes) == 1 for hashes in run(2, repeats, 19))


def bytes_and_payloads(bootstrap):
    comm = open_comm(bootstrap, max_payload=32)
    rng = np.random.default_rng(comm.rank)
    x = rng.integers(0, 256, (6, 40)).astype(np.uint8)
    ids = np.arange(6, dtype=np.int64)[:, None] + 100 * comm.rank
    x[:, 0] = ids[:, 0]
    idx, weights = np.full((6, 2), -1, np.int32), np.ones((6, 2), np.float32)
    idx[:, 0] = rng.permutation(8)[:6]
    handle = comm.dispatch(x.view(ml_dtypes.float8_e4m3fn), idx, weights, layout="expert_major",
                           payloads={"id": ids, "flag": ids.astype(np.uint8)})
    r = handle.received
    got = np.ascontiguousarray(r.payload("id")).view(np.int64)[:, 0]
    np.testing.assert_array_equal(got.astype(np.uint8), r.rows[:, 0])
    np.testing.assert_array_equal(r.payload("flag")[:, 0], r.rows[:, 0])
    y = np.repeat(got[:, None], 5, axis=1).astype(np.float32)
    np.testing.assert_array_equal(comm.combine(handle, y), np.repeat(ids, 5, axis=1))


def test_bytes_with_payloads():
    run(2, bytes_and_payloads)


def quantised(bootstrap, quant):
    import ubep

    comm = open_comm(bootstrap, max_hidden=300)
    rng = np.random.default_rng(comm.rank)
    x = rng.standard_normal((7, 300)).astype(np.float32)
    idx = rng.integers(0, 8, (7, 1)).astype(np.int32)
    handle = comm.dispatch(x, idx, np.ones((7, 1), np.float32), layout="expert_major", quant=quant)
    r = handle.received
    values = np.ascontiguousarray(r.rows)[:, :300]
    scales = r.scales()
    np.testing.assert_array_equal(scales, r.scales(column_major=True))
    fp32 = scales if scales.dtype == np.float32 else np.ldexp(np.float32(1), scales.astype(int) - 127)
    kind = np.int8 if quant == "int8" else ml_dtypes.float8_e4m3fn
    decoded = values.view(kind).astype(np.float32) * np.repeat(fp32, r.scale_place[3], axis=1)[:, :300]
    np.testing.assert_array_equal(decoded, ubep.dequantize(r.rows, quant, 300, "fp32"))
    back = comm.combine(handle, np.ascontiguousarray(decoded))
    np.testing.assert_array_equal(back, ubep.dequantize(ubep.quantize(x, quant), quant, 300, "fp32"))
    # mxfp8 clips: its largest value may be an eighth less than the block's.
    assert np.abs(back - x).max() < np.abs(x).max() / 7


@pytest.mark.parametrize("quant", ["fp8", "fp8_pow2", "fp8_ue8m0", "int8", "mxfp8"])
def test_quantised_rows(quant):
    run(2, quantised, quant)


def strided(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 9)
    wide = np.full((18, 30), 99, np.float32)
    wide[::2, 3:27] = x
    handle = comm.dispatch(wide[::2, 3:27], np.asfortranarray(idx.astype(np.int64)), weights[:, ::-1][:, ::-1],
                           layout="expert_major")
    y = np.zeros((handle.received.num_rows, 50), np.float32)
    y[:, 7:31] = outputs(handle, first_expert(comm), dict(layout="expert_major"))
    out, bias = np.full((9, 40), 5, np.float32), np.ones((9, 24), np.float32)
    got = comm.combine(handle, y[:, 7:31], out=out[:, 4:28], added=[bias, 2 * bias])
    np.testing.assert_array_equal(got, dense_moe(x, idx, weights) + 3)
    np.testing.assert_array_equal(out[:, 4:28], got)
    assert (out[:, :4] == 5).all() and (out[:, 28:] == 5).all()


def test_strided_arrays_and_added_matrices():
    run(2, strided)


def rounds(bootstrap):
    comm = open_comm(bootstrap, max_tokens=4)
    case = exact_case(comm.rank, 3 + 10 * comm.rank)
    first = first_expert(comm)
    calls = []

    def experts(handle):
        calls.append(handle.received.num_rows)
        handle.expert_output[:] = outputs(handle, first, dict(layout="expert_major"))

    out = comm.run_layer(*case, experts=experts, layout="expert_major")
    np.testing.assert_array_equal(out, dense_moe(*case))
    return len(calls)


def test_run_layer_makes_rounds():
    assert run(2, rounds) == [4, 4]


def cached(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 8)
    handle = comm.dispatch(x, idx, weights, layout="expert_major")
    first = comm.combine(handle, np.ascontiguousarray(handle.received.rows))
    again = comm.dispatch_cached(2 * x, handle, handle=handle)
    assert again is handle
    second = comm.combine(handle, np.ascontiguousarray(handle.received.rows))
    np.testing.assert_array_equal(2 * first, second)
    other = comm.dispatch_cached(x, handle)
    assert other is not handle
    plain = comm.combine(other, np.ascontiguousarray(other.received.rows), unweighted=True)
    np.testing.assert_array_equal(plain, x * (idx >= 0).sum(axis=1)[:, None])


def test_cached_dispatch_and_plain_sums():
    run(2, cached)


def expert_parallel(bootstrap):
    import ubep

    ep = ubep.ExpertParallel(num_experts=8, hidden=24, topk=4, max_tokens=16, dtype=np.float32,
                             bootstrap=bootstrap, timeout=20)
    x, idx, weights = exact_case(bootstrap.rank, 11)
    first, seen = first_expert(ep.comm), []

    def experts(rows, counts):
        seen.append((len(rows), int(counts.sum())))
        return rows * (np.repeat(np.arange(len(counts)), counts) + first + 1)[:, None].astype(np.float32)

    np.testing.assert_array_equal(ep.layer(x, idx, weights, experts), dense_moe(x, idx, weights))
    d = ep.wait(ep.start_dispatch(x, idx, weights))
    d.handle.expert_output[:] = experts(d.rows, d.expert_counts)
    assert d.index.shape == d.weights.shape == (len(d.rows),) and d.num_tokens == 11
    out = ep.start_combine(None, d)
    ep.finish(d)
    np.testing.assert_array_equal(out, dense_moe(x, idx, weights))
    assert ep.stats(d).combine_copied_bytes >= 0 and seen[0] == seen[1]
    ep.close()


def test_expert_parallel_of_arrays():
    run(2, expert_parallel)


class OnlyDlpack:
    """An array of some other framework."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def other_arrays(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 5)
    for wrap in (memoryview, OnlyDlpack):
        handle = comm.dispatch(wrap(x), wrap(idx), wrap(weights), layout="expert_major")
        y = outputs(handle, first_expert(comm), dict(layout="expert_major")).astype(np.float32)
        out = np.zeros_like(x)
        comm.combine(handle, wrap(y), out=wrap(out))
        np.testing.assert_array_equal(out, dense_moe(x, idx, weights))
        out.flags.writeable = False
        handle = comm.dispatch(wrap(x), wrap(idx), wrap(weights), layout="expert_major")
        with pytest.raises(Exception, match="read-only"):
            comm.combine(handle, wrap(y), out=memoryview(out))
        comm.release(handle)


def test_buffers_and_dlpack():
    run(2, other_arrays)


def places(bootstrap):
    comm = open_comm(bootstrap)
    x, idx, weights = exact_case(comm.rank, 5)
    handle = comm.dispatch(x, idx, weights, path="read", mapped_view=True)
    r = handle.received
    mapped, ids, rows = r.mapped, r.mapped_idx, r.copy_rows()
    assert mapped.shape == (2, 32, 24) and ids.shape == r.mapped_weights.shape == (2, 32, 4)
    assert not mapped.flags.writeable and r.addresses.shape == (r.num_rows,)
    mine = (ids >= 0).any(axis=2)
    np.testing.assert_array_equal(mapped[mine], rows)
    np.testing.assert_array_equal(ids[mine], r.topk_idx)
    np.testing.assert_array_equal(r.mapped_weights[mine], r.topk_weights)
    assert r.sources == [0, 1] and r.src_counts.sum() == r.num_rows
    comm.release(handle)
    for in_place in (False, True):
        handle = comm.dispatch(x, idx, weights, layout="expert_major", path="pull", in_place=in_place)
        rows = handle.received.rows
        assert rows.flags.writeable is in_place
        assert (rows.ctypes.data == handle.expert_output.ctypes.data) is in_place
        with pytest.raises(Exception, match="blocks|overlaps|one tensor"):
            handle.received.copy_rows(handle.received.rows if in_place else handle.received.blocks)
        comm.release(handle)


def test_where_rows_lie():
    run(2, places)
