"""The low-latency calls of ubep.deep_ep.Buffer."""

import os
import signal
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

import ubep  # noqa: E402
import ubep.deep_ep as deep_ep  # noqa: E402
from deep_ep_cases import calc_diff, case, dense_moe, from_fp8, tensor_hash, to_fp8  # noqa: E402
from dist_ranks import run  # noqa: E402
from test_deep_ep import layer  # noqa: E402

HIDDEN, EXPERTS, TOPK, TOKENS = 1024, 8, 4, 6
FORMATS = [dict(use_fp8=False), dict(), dict(round_scale=True), dict(round_scale=True, use_ue8m0=True)]


def make(group, **options):
    experts = options.pop("experts", EXPERTS)
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, group.size(), experts)
    return deep_ep.Buffer(group, num_rdma_bytes=size, low_latency_mode=True,
                          num_qps_per_rank=experts // group.size(), **options)


def plain(recv_x):
    return recv_x.clone() if isinstance(recv_x, torch.Tensor) else from_fp8(recv_x[0], recv_x[1].contiguous())


def routings(size, tokens=TOKENS):
    """topk_idx and weights of all ranks, some of them -1."""
    return [case(q, tokens, topk=TOPK, experts=EXPERTS, masked=0.1)[1:] for q in range(size)]


def check_expert(e, recv_x, handle, all_idx, rows, exact):
    """Rows that hold rank - 128, and their token's number in the last 128 columns."""
    src_info, layout_range = handle[0][e], handle[1][e]
    rank, local = rows["rank"], handle[0].size(0)
    count = int(rows["count"][e])
    assert count == rows["stats"][e] == int((layout_range & 0xFFFFFFFF).sum())
    assert count == sum(int((idx == rank * local + e).sum()) for idx in all_idx)
    x, src_info = recv_x[e, :count].float(), src_info[:count]
    assert torch.equal(x[:, :-128].amin(1), x[:, :-128].amax(1))
    if exact:
        assert (x[:, -128:] == src_info.unsqueeze(1)).all()
        for q, idx in enumerate(all_idx):
            begin, n = int(layout_range[q] >> 32), int(layout_range[q] & 0xFFFFFFFF)
            assert n == (idx == rank * local + e).sum()
            assert (x[begin : begin + n, :-128] == q - 128).all()
            expected = (idx == rank * local + e).nonzero()[:, 0]
            assert torch.equal(src_info[begin : begin + n], expected.int())
    else:
        assert calc_diff(x[:, -1], src_info) < 0.007


def program(group, seed):
    """All formats, with and without hooks, each combined twice; a hash of everything."""
    buffer = make(group, explicitly_destroy=True)
    rank, size = buffer.rank, buffer.group_size
    torch.manual_seed(seed + rank)
    all_idx = [idx for idx, _ in routings(size)]
    idx, weights = routings(size)[rank]
    marked = torch.full((TOKENS, HIDDEN), float(rank - 128)).bfloat16()
    marked[:, -128:] = torch.arange(TOKENS).unsqueeze(1)
    found = []
    for x in (marked, (torch.randn(TOKENS, HIDDEN) * 0.1).bfloat16()):
        for with_hook in (False, True):
            for times, options in enumerate(FORMATS):
                for _ in range(times % 2 + 1):
                    stats = torch.zeros(EXPERTS // size, dtype=torch.int32)
                    recv_x, count, handle, event, hook = buffer.low_latency_dispatch(
                        x, idx, TOKENS, EXPERTS, cumulative_local_expert_recv_stats=stats,
                        async_finish=not with_hook, return_recv_hook=with_hook, **options)
                    hook() if with_hook else event.current_stream_wait()
                    hook() if with_hook else None  # which does nothing
                y = plain(recv_x)
                for e in range(EXPERTS // size):
                    if x is marked:
                        check_expert(e, y, handle, all_idx, dict(rank=rank, count=count, stats=stats),
                                     not options.get("round_scale"))
                    found.append(tensor_hash(y[e, : int(count[e])]))
                for zero_copy in (False, True):
                    if zero_copy:
                        buffer.get_next_low_latency_combine_buffer(handle)[:] = y
                    out = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16)
                    got, event, hook = buffer.low_latency_combine(
                        y, idx, weights, handle, zero_copy=zero_copy, async_finish=not with_hook,
                        return_recv_hook=with_hook, out=out)
                    hook() if with_hook else event.current_stream_wait()
                    assert got is out and not out.isnan().any()
                    expected = x.float() * torch.where(idx >= 0, weights, 0).sum(1, keepdim=True)
                    if not options.get("round_scale"):
                        assert calc_diff(expected, out) < (9e-4 if options != FORMATS[0] else 1e-5)
                    found.append(tensor_hash(out))
    buffer.destroy()
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_low_latency_program(size):
    run(size, program, 1)


def formats(group):
    """Shapes, dtypes, layout and exact bits of every format; uneven tokens, one rank without any."""
    buffer = make(group)
    size, rank = group.size(), buffer.rank
    tokens = [3, 0, 6, 1][:size]
    g = torch.Generator().manual_seed(5)
    xs = [(torch.randn(n, HIDDEN, generator=g) * 3).bfloat16() for n in tokens]
    all_idx = [case(q, n, topk=TOPK, experts=EXPERTS)[1] for q, n in enumerate(tokens)]
    local, capacity = EXPERTS // size, size * TOKENS
    for options in FORMATS:
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(xs[rank], all_idx[rank], TOKENS, EXPERTS, **options)
        assert handle[2:] == (TOKENS, HIDDEN, EXPERTS) and len(handle) == 5
        assert handle[0].shape == (local, capacity) and handle[1].shape == (local, size)
        values, scales = (recv_x, None) if options == FORMATS[0] else recv_x
        assert values.shape == (local, capacity, HIDDEN)
        assert values.view(-1, HIDDEN).data_ptr() == values.data_ptr()
        assert values.dtype == (torch.bfloat16 if scales is None else torch.float8_e4m3fn)
        if scales is not None:
            packed = options.get("use_ue8m0", False)
            assert scales.dtype == (torch.int32 if packed else torch.float32)
            assert scales.shape == (local, capacity, HIDDEN // (512 if packed else 128)) and scales.stride(1) == 1
        for e in range(local):
            sent = torch.cat([xs[q][(idx == rank * local + e).nonzero()[:, 0]] for q, idx in enumerate(all_idx)])
            assert count[e] == len(sent)
            got = values[e, : len(sent)]
            if scales is None:
                assert torch.equal(got, sent)
            elif options == dict():
                expected, expected_scales = to_fp8(sent)
                assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
                assert torch.equal(scales[e, : len(sent)], expected_scales)
            else:
                # The smallest power of two that is not below amax / 448.
                amax = sent.float().unflatten(1, (-1, 128)).abs().amax(2).clamp(1e-4)
                step = torch.exp2(torch.ceil(torch.log2(amax.double() / 448))).float()
                expected = (sent.float().unflatten(1, (-1, 128)) / step.unsqueeze(2)).flatten(1).to(torch.float8_e4m3fn)
                assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
                assert torch.equal(from_fp8(got, scales[e, : len(sent)].contiguous()), from_fp8(expected, step))


def test_formats():
    run(4, torch.inference_mode()(formats))


def start(buffer, x, idx, max_tokens=TOKENS):
    return buffer.low_latency_dispatch(x, idx, max_tokens, EXPERTS, use_fp8=False, return_recv_hook=True)


def apply_experts(recv_x, buffer):
    """Expert e gives (e + 1) * x."""
    local = recv_x.size(0)
    factor = torch.arange(local) + buffer.rank * local + 1
    return recv_x * factor.view(-1, 1, 1).bfloat16()


def two_alive(group):
    """Two micro-batches whose hooks are called in either order; tokens differ, one rank has none."""
    buffer = make(group)
    for turn in range(6):
        cases = [case(buffer.rank, (buffer.rank * (turn + 1) + i) % (TOKENS + 1), HIDDEN, TOPK, EXPERTS,
                      seed=turn * 2 + i) for i in range(2)]
        arrivals = [start(buffer, x, idx) for x, idx, _ in cases]
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for i in order:
            arrivals[i][4]()
        combines = []
        for (_, idx, weights), (recv_x, _, handle, _, _) in zip(cases, arrivals):
            y = apply_experts(recv_x, buffer)
            combines.append((*buffer.low_latency_combine(y, idx, weights, handle, return_recv_hook=True), y))
        for i in reversed(order):
            combines[i][2]()
        for (x, idx, weights), (out, *_) in zip(cases, combines):
            assert torch.equal(out.float(), dense_moe(x, idx, weights))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_two_handles_with_hooks(size):
    run(size, two_alive)


def forgotten(group):
    """Hooks that are not called, or late, and handles that are dropped, do not block what follows."""
    buffer = make(group)
    x, idx, weights = case(buffer.rank, 4, HIDDEN, TOPK, EXPERTS)
    for _ in range(9):
        start(buffer, x, idx)
    *_, handle, _, hook = start(buffer, x, idx)
    with pytest.raises(ubep.Misuse, match="once the hook was called"):
        handle[0]
    hook()
    recv_x, _, handle, _, hook = start(buffer, x, idx)
    hook()
    late = []
    for i in range(5):
        out, _, hook = buffer.low_latency_combine(apply_experts(recv_x, buffer), idx, weights, handle,
                                                  return_recv_hook=True)
        late.append((out, hook))
        recv_x, _, handle, _, hook = start(buffer, x, idx)
        hook()
    for out, hook in reversed(late):
        hook()
        assert torch.equal(out.float(), dense_moe(x, idx, weights))


def test_forgotten_hooks():
    run(2, forgotten)


class Interrupted(Exception):
    pass


def interrupted(group):
    """What a signal's handler raises comes out of a hook; the same hook then goes on."""
    buffer = make(group)
    x, idx, weights = case(buffer.rank, 5, HIDDEN, TOPK, EXPERTS)

    def give_up(*_):
        raise Interrupted

    def call(hook):
        if buffer.rank != 0:
            return hook()
        signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            hook()
        return hook()

    if buffer.rank == 1:
        start(buffer, x, idx)[4]()
        time.sleep(0.5)
    else:
        start(buffer, x, idx)[4]()
    recv_x, _, handle, _, hook = start(buffer, x, idx)
    call(hook)
    y = apply_experts(recv_x, buffer)
    out, _, hook = buffer.low_latency_combine(y, idx, weights, handle, return_recv_hook=True)
    hook()
    assert torch.equal(out.float(), dense_moe(x, idx, weights))


def test_exception_in_a_hook():
    run(2, interrupted)


def both_modes(group):
    """High throughput and low latency take turns on one Buffer, without a clean-up between."""
    buffer = make(group)
    for turn in range(4):
        x, idx, weights = case(buffer.rank, turn + buffer.rank, HIDDEN, TOPK, EXPERTS, seed=turn)
        assert torch.equal(layer(buffer, x, idx, weights)[0].float(), dense_moe(x, idx, weights))
        recv_x, _, handle, _, hook = start(buffer, x, idx)
        assert torch.equal(layer(buffer, x, idx, weights)[0].float(), dense_moe(x, idx, weights))
        hook()
        out = buffer.low_latency_combine(apply_experts(recv_x, buffer), idx, weights, handle)[0]
        assert torch.equal(out.float(), dense_moe(x, idx, weights))
        buffer.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)


def test_both_modes_take_turns():
    run(2, both_modes)


def shrinking(group):
    """Rank 1 dies before the first dispatch, rank 2 before the first combine; the others go on without."""
    buffer = make(group, enable_shrink=True)
    rank, size = buffer.rank, group.size()
    local = EXPERTS // size
    cases = [case(q, 5, HIDDEN, TOPK, EXPERTS) for q in range(size)]
    x, idx, weights = cases[rank]
    status = torch.full((size,), 7, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * size
    buffer._room(TOKENS, HIDDEN, EXPERTS, TOPK)

    def leave(who):
        if rank == who:
            time.sleep(0.3)
            os._exit(0)

    def masked():
        buffer.low_latency_query_mask_buffer(status)
        return [q for q in range(size) if status[q]]

    for turn in range(3):
        leave(1)
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(x, idx, TOKENS, EXPERTS, use_fp8=False)
        gone = [1] if turn == 0 else [1, 2]
        assert masked() == gone
        for e in range(local):
            assert count[e] == sum(int((cases[q][1] == rank * local + e).sum()) for q in range(size) if q not in gone)
        leave(2)
        out = buffer.low_latency_combine(apply_experts(recv_x, buffer), idx, weights, handle)[0]
        assert masked() == [1, 2]
        is_there = ~torch.isin(torch.div(idx, local, rounding_mode="floor"), torch.tensor([1, 2]))
        assert torch.equal(out.float(), dense_moe(x, torch.where(is_there, idx, -1), weights))
    buffer.low_latency_update_mask_buffer(1, True)
    with pytest.raises(NotImplementedError, match="rank 1|rank_to_mask=1"):
        buffer.low_latency_update_mask_buffer(1, False)
    with pytest.raises(NotImplementedError, match="takes part"):
        buffer.low_latency_update_mask_buffer(rank, True)
    with pytest.raises(NotImplementedError, match="ranks \\[1, 2\\] are lost"):
        buffer.low_latency_clean_mask_buffer()
    return "went on"


def alone(group, path):
    """The same, told by files, since ranks that die report nothing and gloo then fails."""
    if shrinking(group) == "went on":
        (path / f"rank{group.rank()}").touch()
    os._exit(0)


def test_ranks_that_are_lost(tmp_path):
    with pytest.raises(AssertionError, match="died"):
        run(4, alone, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank0", "rank3"]


def refusals(group):
    buffer = make(group)
    x, idx, weights = case(0, 3, HIDDEN, TOPK, EXPERTS)
    dispatch = buffer.low_latency_dispatch
    with pytest.raises(NotImplementedError, match="dispatch_wait_recv_cost_stats"):
        dispatch(x, idx, TOKENS, EXPERTS, dispatch_wait_recv_cost_stats=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ubep.InvalidArgument, match="async_finish and return_recv_hook"):
        dispatch(x, idx, TOKENS, EXPERTS, async_finish=True, return_recv_hook=True)
    with pytest.raises(ubep.InvalidArgument, match="expected round_scale=True"):
        dispatch(x, idx, TOKENS, EXPERTS, use_ue8m0=True)
    with pytest.raises(ubep.InvalidArgument, match="hidden is 640, expected a multiple of 512"):
        dispatch(x[:, :640], idx, TOKENS, EXPERTS, round_scale=True, use_ue8m0=True)
    with pytest.raises(ubep.Error, match="x.num_rows is 3, at most 2"):
        dispatch(x, idx, 2, EXPERTS)
    recv_x, _, handle, _, _ = dispatch(x, idx, TOKENS, EXPERTS, use_fp8=False)
    with pytest.raises(NotImplementedError, match="use_logfmt: sums"):
        buffer.low_latency_combine(recv_x, idx, weights, handle, use_logfmt=True)
    with pytest.raises(NotImplementedError, match="combine_wait_recv_cost_stats"):
        buffer.low_latency_combine(recv_x, idx, weights, handle, combine_wait_recv_cost_stats=weights)
    with pytest.raises(ubep.InvalidArgument, match="handle is none"):
        buffer.low_latency_combine(recv_x, idx, weights, (1, 2))
    with pytest.raises(ubep.Misuse, match="enable_shrink"):
        buffer.low_latency_query_mask_buffer(torch.zeros(1, dtype=torch.int32))


def test_refusals():
    run(1, refusals)


def test_repeats_are_the_same_bits():
    def repeat(group):
        first = program(group, 3)
        return all(program(group, 3) == first for _ in range(20))

    assert run(2, repeat, limit=120) == [True] * 2
