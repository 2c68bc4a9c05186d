"""ubep.deep_ep.ElasticBuffer against what is written down token by token."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

import ubep  # noqa: E402
import ubep.deep_ep as deep_ep  # noqa: E402
from deep_ep_cases import case, from_fp8, received, received_tokens, tensor_hash, to_fp8  # noqa: E402
from dist_ranks import run  # noqa: E402

EXPERTS, TOPK, HIDDEN, ROOM = 8, 3, 256, 20


def aligned(n, alignment):
    return -(-n // alignment) * alignment


def make(group, **options):
    return deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=ROOM, hidden=HIDDEN, explicitly_destroy=True, **options)


def outputs(tokens):
    """[tokens, topk, hidden] of small whole numbers that depend on token (rank * ROOM + number) and k."""
    k = torch.arange(TOPK).view(1, -1, 1)
    return ((tokens.view(-1, 1, 1) * 7 + k * 3 + torch.arange(HIDDEN)) % 5 - 2).bfloat16()


def plain(x):
    return from_fp8(x[0], x[1].contiguous()) if isinstance(x, tuple) else x


def parts(x, n):
    return tuple(t[:n] for t in x) if isinstance(x, tuple) else (x[:n],)


def check_sums(buffer, x, cases, handle, alignment):
    """The handle's numbers and lists."""
    tokens = received_tokens(cases, buffer.rank_idx, EXPERTS)
    local = EXPERTS // buffer.num_ranks
    idx = received(cases, buffer.rank_idx, EXPERTS)[1]
    counts = [int((idx == e).sum()) for e in range(local)]
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    by_rank = [sum(q <= r for q, _ in tokens) for r in range(buffer.num_ranks)]
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == by_rank
    assert handle.num_recv_tokens == len(tokens)
    begin, ends = 0, []
    for n in counts:
        ends.append(begin + n if handle.do_expand else begin + aligned(n, alignment))
        begin += aligned(n, alignment)
    assert handle.psum_num_recv_tokens_per_expert.tolist() == ends
    assert handle.num_expanded_tokens == begin
    if handle.num_recv_tokens_per_expert_list:
        assert handle.num_recv_tokens_per_expert_list == [aligned(n, alignment) for n in counts]
    assert handle.recv_src_metadata[:, 0].tolist() == [q * ROOM + t for q, t in tokens]
    return counts


def check_plain(buffer, topk, cases, sent, bias, found):
    """Rows, ids and weights; the same again with the handle; the sums."""
    x, recv_idx, recv_weights, handle, _ = found
    expected = received(cases, buffer.rank_idx, EXPERTS)
    n = len(expected[0])
    check_sums(buffer, x, cases, handle, sent["expert_alignment"])
    assert torch.equal(recv_idx[:n], expected[1]) and torch.equal(recv_weights[:n], expected[2])
    assert (recv_idx[n:] == -1).all() and (recv_weights[n:] == 0).all()
    assert torch.equal(plain(parts(x, n) if isinstance(x, tuple) else x[:n]), expected[0])
    again, again_idx, nothing, same, _ = buffer.dispatch(sent["x"], handle=handle)
    assert same is handle and nothing is None and torch.equal(again_idx, recv_idx)
    assert all(torch.equal(a, b) for a, b in zip(parts(again, n), parts(x, n)))
    y = torch.full((len(recv_idx), HIDDEN), float("nan")).bfloat16()
    rows = outputs(handle.recv_src_metadata[:, 0])
    y[:n] = torch.where(recv_idx[:n].unsqueeze(2) >= 0, rows, 0).sum(1)
    out, out_weights, _ = buffer.combine(y, handle, topk_weights=recv_weights, bias=bias)
    check_combined(buffer, topk, bias, out, out_weights)


def check_combined(buffer, topk, bias, out, out_weights):
    idx, weights = topk
    mine = outputs(torch.arange(len(idx)) + buffer.rank_idx * ROOM).float()
    expected = torch.where(idx.unsqueeze(2) >= 0, mine, 0).sum(1)
    for b in bias if isinstance(bias, tuple) else () if bias is None else (bias,):
        expected = expected + b.float()
    assert torch.equal(out.float(), expected)
    assert torch.equal(out_weights, torch.where(idx >= 0, weights, 0))


def check_expanded(buffer, topk, cases, sent, bias, found):
    """Each row where its token's metadata says, zeros between experts; the same with the handle."""
    x, nothing, recv_weights, handle, _ = found
    assert nothing is None
    alignment = sent["expert_alignment"]
    counts = check_sums(buffer, x, cases, handle, alignment)
    rows, ids, weights = received(cases, buffer.rank_idx, EXPERTS)
    slots = handle.recv_src_metadata[:, 2:]
    assert torch.equal(slots >= 0, ids >= 0)
    token, k = (slots >= 0).nonzero(as_tuple=True)
    place = slots[token, k].long()
    x_plain = plain(parts(x, handle.num_expanded_tokens) if isinstance(x, tuple) else x[: handle.num_expanded_tokens])
    assert torch.equal(x_plain[place], rows[token]) and torch.equal(recv_weights[place], weights[token, k])
    begin = 0
    for e, n in enumerate(counts):
        assert sorted(place[ids[token, k] == e].tolist()) == list(range(begin, begin + n))
        end = begin + aligned(n, alignment)
        assert (x_plain[begin + n : end] == 0).all() and (recv_weights[begin + n : end] == 0).all()
        begin = end
    other = topk[1] * 2
    again, _, doubled, same, _ = buffer.dispatch(sent["x"], handle=handle, topk_weights=other, do_expand=True)
    assert same is handle and torch.equal(doubled, recv_weights * 2)
    assert all(torch.equal(a, b) for a, b in zip(parts(again, begin), parts(x, begin)))
    y = torch.full((len(recv_weights), HIDDEN), float("nan")).bfloat16()
    y[place] = outputs(handle.recv_src_metadata[:, 0])[token, k]
    out, out_weights, _ = buffer.combine(y, handle, topk_weights=recv_weights, bias=bias)
    check_combined(buffer, topk, bias, out, out_weights)


def whole_fp8(cases):
    """Cases whose x survives the way through 8 bits: multiples of the scale."""
    return [(from_fp8(*to_fp8(x)), idx, weights) for x, idx, weights in cases]


def program(group, all_tokens):
    buffer = make(group)
    size = group.size()
    assert buffer.get_logical_domain_size() == (1, size) == deep_ep.get_logical_domain_size(group)
    turn = 0
    for tokens in all_tokens:
        for is_fp8 in (False, True):
            for alignment in (1, 16):
                for do_cpu_sync in (True, False):
                    turn += 1
                    cases = [case(q, tokens[q], HIDDEN, TOPK, EXPERTS, seed=turn) for q in range(size)]
                    cases = whole_fp8(cases) if is_fp8 else cases
                    x, idx, weights = cases[buffer.rank_idx]
                    bias = [None, x, (x, x * 2)][turn % 3]
                    sent = dict(x=to_fp8(x) if is_fp8 else x, topk_idx=idx, topk_weights=weights, num_experts=EXPERTS,
                                expert_alignment=alignment, do_cpu_sync=do_cpu_sync,
                                async_with_compute_stream=bool(turn % 2), previous_event=buffer.capture(),
                                do_handle_copy=bool(turn % 2))
                    found = buffer.dispatch(**sent)
                    assert (found[3].topk_idx.data_ptr() != idx.data_ptr()) == bool(turn % 2) or idx.numel() == 0
                    if not do_cpu_sync:
                        assert len(found[1]) == size * ROOM and found[3].num_recv_tokens_per_expert_list == []
                    check_plain(buffer, (idx, weights), cases, sent, bias, found)
                    expanded = buffer.dispatch(**sent, do_expand=True, use_tma_aligned_col_major_sf=True,
                                               do_zero_padding=True)
                    if is_fp8:
                        scales = expanded[0][1]
                        assert scales.stride() == (1, max(aligned(len(scales), 4), 1))
                    check_expanded(buffer, (idx, weights), cases, sent, bias, expanded)
    buffer.barrier()
    buffer.destroy()


@pytest.mark.parametrize("tokens", [
    pytest.param([[7], [0]], id="1"),
    pytest.param([[7, 12], [0, 3]], id="2"),
    pytest.param([[5, 20, 1, 9], [0, 3, 0, 0]], id="4"),
])
def test_elastic_program(tokens):
    run(len(tokens[0]), program, tokens)


def rest(group):
    """Repeats, statistics, no weights, a larger room later, and what is refused."""
    buffer = make(group, deterministic=True)
    torch.manual_seed(buffer.rank_idx)
    x, idx = torch.randn(9, HIDDEN).bfloat16(), torch.rand(9, EXPERTS).topk(TOPK)[1]
    weights = torch.rand(9, TOPK)
    hashes = set()
    stats = torch.zeros(EXPERTS // group.size(), dtype=torch.int32)
    for _ in range(20):
        recv_x, recv_idx, recv_weights, handle, event = buffer.dispatch(
            x, idx, weights, num_experts=EXPERTS, do_expand=True, cumulative_local_expert_recv_stats=stats)
        event.current_stream_wait()
        out, out_weights, _ = buffer.combine(recv_x, handle, recv_weights)
        hashes.add(tensor_hash(recv_x, recv_weights, handle.recv_src_metadata, out, out_weights))
    assert len(hashes) == 1
    assert torch.equal(stats, handle.num_unaligned_recv_tokens_per_expert * 20)
    _, _, nothing, handle, _ = buffer.dispatch(x, idx, num_experts=EXPERTS)
    assert nothing is None
    many, many_idx = x.repeat(10, 1), idx.repeat(10, 1)
    big = buffer.dispatch(many, many_idx, num_experts=EXPERTS, num_max_tokens_per_rank=128)[3]
    assert buffer.combine(buffer.dispatch(x, handle=handle)[0], handle)[0].shape == x.shape
    assert buffer.combine(buffer.dispatch(many, handle=big)[0], big)[0].shape == many.shape
    for wrong, match in ((dict(topk_idx=idx), "neither with a handle"),
                         (dict(do_cpu_sync=True), "neither with a handle"), (dict(do_expand=True), "do_expand is True"),
                         (dict(num_experts=4), "num_experts is 4")):
        with pytest.raises(ubep.InvalidArgument, match=match):
            buffer.dispatch(x, handle=handle, **wrong)
    with pytest.raises(ubep.InvalidArgument, match="x has 90 tokens"):
        buffer.dispatch(many, many_idx, num_experts=EXPERTS)
    with pytest.raises(ubep.InvalidArgument, match="needed without a handle"):
        buffer.dispatch(x, idx)
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint(group, ROOM, HIDDEN, TOPK)
    assert hint % (2 << 20) == 0 and hint >= ROOM * HIDDEN * 2


def test_rest():
    run(2, rest)
