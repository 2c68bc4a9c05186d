"""ubep.deep_ep.Buffer, high throughput, against what is written down token by token."""

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

import torch._dynamo  # noqa: E402,F401 - once, before ranks are forked
import torch.distributed as dist  # noqa: E402

import ranks  # noqa: E402
import ubep  # noqa: E402
import ubep.deep_ep as deep_ep  # noqa: E402
from deep_ep_cases import (  # noqa: E402
    calc_diff,
    case,
    dense_moe,
    from_fp8,
    received,
    run_experts,
    tensor_hash,
    to_fp8,
)
from dist_ranks import run  # noqa: E402

EXPERTS, TOPK = 8, 3
EXAMPLE = Path(__file__).parents[2] / "examples/python/deep_ep_torchrun.py"


def layout_args(buffer, idx, experts=EXPERTS):
    per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(idx, experts)
    return dict(num_tokens_per_rank=per_rank, num_tokens_per_expert=per_expert, is_token_in_rank=is_in_rank)


def check_layout(buffer, idx, experts):
    """The three tables, counted one by one; returns them as keyword arguments."""
    local = experts // buffer.group_size
    args = layout_args(buffer, idx, experts)
    for e in range(experts):
        assert args["num_tokens_per_expert"][e] == (idx == e).sum()
    for r in range(buffer.group_size):
        is_in = ((idx >= r * local) & (idx < (r + 1) * local)).any(1)
        assert torch.equal(args["is_token_in_rank"][:, r], is_in)
        assert args["num_tokens_per_rank"][r] == is_in.sum()
    assert args["num_tokens_per_rank"].dtype == args["num_tokens_per_expert"].dtype == torch.int32
    return args


def check_blocks(rows, prefix, rank):
    """Rows that hold their source's rank, where the prefix matrix says they are."""
    begin = 0
    for source in range(prefix.size(0)):
        end = int(prefix[source, rank])
        assert (rows[begin:end].float() == source).all()
        begin = end
    assert begin == rows.size(0)


def check_worst(buffer, args, found, worst):
    """The same with a fixed number of rows."""
    recv_x, recv_idx, recv_weights = found
    x, idx, weights, counts, _, _ = buffer.dispatch(**args, num_worst_tokens=worst)
    x = from_fp8(*x) if isinstance(x, tuple) else x
    assert counts == [] and len(x) == len(idx) == len(weights) == worst
    n = len(recv_x)
    assert torch.equal(x[:n], recv_x) and torch.equal(idx[:n], recv_idx) and torch.equal(weights[:n], recv_weights)
    assert (idx[n:] == -1).all() and (weights[n:] == 0).all()


def check_round(buffer, x, topk, args, totals, previous, is_async):
    """dispatch, with num_worst_tokens or cached, and combine, of one kind of rows."""
    idx, weights = topk
    rank, size = buffer.rank, buffer.group_size
    is_random = not isinstance(x, tuple) and x.float().std() > 0.5
    sent = dict(x=x, async_finish=is_async, config=deep_ep.Config(24, 8, 256), **args)
    with_topk = idx is not None
    if with_topk:
        sent.update(topk_idx=idx, topk_weights=weights)
    if previous:
        sent.update(previous_event=buffer.capture())
    recv_x, recv_idx, recv_weights, counts, handle, event = buffer.dispatch(**sent)
    event.current_stream_wait()
    recv_x = from_fp8(*recv_x) if isinstance(recv_x, tuple) else recv_x
    assert len(recv_x) == totals["rank"][rank]
    assert counts == totals["expert"].view(size, -1)[rank].tolist()
    if not is_random:
        check_blocks(recv_x, handle[0], rank)
    if with_topk:
        for e, count in enumerate(counts):
            assert (recv_idx == e).sum() == count
        assert ((recv_idx >= -1) & (recv_idx < len(counts))).all()
        check_worst(buffer, sent, (recv_x, recv_idx, recv_weights), len(x[0] if isinstance(x, tuple) else x) * size)
    else:
        again, *nothing, _ = buffer.dispatch(x, handle=handle)
        again = from_fp8(*again) if isinstance(again, tuple) else again
        assert nothing == [None] * 4 and torch.equal(again, recv_x)
    out, out_weights, _ = buffer.combine(recv_x, handle, topk_weights=recv_weights, async_finish=is_async)
    spread = args["is_token_in_rank"].sum(1).unsqueeze(1)
    plain = from_fp8(*x) if isinstance(x, tuple) else x
    assert calc_diff(out.float() / spread, plain) < 5e-6
    if with_topk:
        assert calc_diff(out_weights, weights) < 1e-9


def intranode(group, tokens=12, hidden=256, experts=16, topk=4):
    buffer = deep_ep.Buffer(group, int(2e9), 0, explicitly_destroy=True)
    rank, size = buffer.rank, buffer.group_size
    torch.manual_seed(rank)
    idx = torch.rand(tokens, experts).topk(topk, sorted=False)[1]
    args = check_layout(buffer, idx, experts)
    totals = dict(rank=args["num_tokens_per_rank"].clone(), expert=args["num_tokens_per_expert"].clone())
    for total in totals.values():
        dist.all_reduce(total, group=group)
    ones = torch.full((tokens, hidden), float(rank)).bfloat16()
    values, scales = to_fp8(ones)
    kinds = (torch.randn(tokens, hidden).bfloat16(), ones, (values, scales.T.contiguous().T))
    for previous in (False, True):
        for is_async in (False, True):
            for x in kinds:
                for topk_of in ((None, None), (idx, torch.rand(tokens, topk))):
                    check_round(buffer, x, topk_of, args, totals, previous, is_async)
    buffer.destroy()


def destroyed(group):
    buffer = deep_ep.Buffer(group, explicitly_destroy=True)

    def dispatch(tokens, **more):
        idx = torch.zeros(tokens, 1, dtype=torch.int64)
        args = layout_args(buffer, idx, 2)
        return buffer.dispatch(torch.ones(tokens, 8).bfloat16(), topk_idx=idx, topk_weights=torch.ones(tokens, 1),
                               **args, **more)

    handle = dispatch(3)[4]
    dispatch(500)  # into larger memory; the handle keeps the earlier one
    buffer.destroy()
    with pytest.raises(ubep.Misuse, match="closed"):
        buffer.dispatch(torch.ones(3, 8).bfloat16(), handle=handle)
    with pytest.raises(ubep.Misuse, match="closed"):
        dispatch(3)
    with pytest.raises(ubep.Misuse, match="destroyed"):
        buffer.low_latency_dispatch(torch.ones(3, 8).bfloat16(), torch.zeros(3, 1, dtype=torch.int64), 4, 2,
                                    use_fp8=False)


def test_destroy_closes_what_was_replaced_too():
    run(2, destroyed)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_intranode_program(size):
    run(size, intranode)


def layer(buffer, x, idx, weights, experts=EXPERTS, **options):
    """dispatch, experts, combine: [tokens, hidden]."""
    recv_x, recv_idx, recv_weights, counts, handle, _ = buffer.dispatch(
        x, topk_idx=idx, topk_weights=weights, **layout_args(buffer, idx, experts), **options)
    y = run_experts(recv_x, recv_idx, recv_weights, buffer.rank * experts // buffer.group_size)
    return buffer.combine(y, handle)[0], (recv_x, recv_idx, recv_weights, counts)


def uneven(group, all_tokens):
    buffer = deep_ep.Buffer(group)
    for seed, tokens in enumerate(all_tokens):
        cases = [case(q, tokens[q], seed=seed) for q in range(group.size())]
        x, idx, weights = cases[buffer.rank]
        out, (recv_x, recv_idx, recv_weights, counts) = layer(buffer, x, idx, weights, expert_alignment=4)
        for found, expected in zip((recv_x, recv_idx, recv_weights), received(cases, buffer.rank, EXPERTS)):
            assert torch.equal(found, expected) and found.dtype == expected.dtype and found.is_contiguous()
        assert counts == [-(-int((recv_idx == e).sum()) // 4) * 4 for e in range(EXPERTS // group.size())]
        assert torch.equal(out.float(), dense_moe(x, idx, weights))


@pytest.mark.parametrize("tokens", [
    pytest.param([[5], [0], [200]], id="1"),
    pytest.param([[5, 0], [0, 0], [1, 300], [300, 2]], id="2"),
    pytest.param([[3, 0, 7, 1], [0, 70, 0, 0], [65, 1, 2, 0], [1, 2, 3, 500]], id="4: grows thrice, one rank each"),
])
def test_uneven_tokens(tokens):
    run(len(tokens[0]), uneven, tokens)


def repeats(group):
    buffer = deep_ep.Buffer(group)
    torch.manual_seed(buffer.rank)
    tokens = 20 + 3 * buffer.rank
    x, idx = torch.randn(tokens, 64).bfloat16(), torch.rand(tokens, EXPERTS).topk(TOPK)[1]
    weights = torch.rand(tokens, TOPK)
    found = set()
    for _ in range(20):
        out, (recv_x, recv_idx, recv_weights, _) = layer(buffer, x, idx, weights)
        found.add(tensor_hash(out, recv_x, recv_idx, recv_weights))
    return found


def test_repeats_are_the_same_bits():
    for found in run(4, repeats):
        assert len(found) == 1


def other_rows(group):
    """One handle for 8-bit rows forward and 16-bit and 32-bit rows backward, and the other way round."""
    buffer = deep_ep.Buffer(group)
    x, idx, weights = case(buffer.rank, 5 + buffer.rank, hidden=256)
    quantised = to_fp8(x)
    args = dict(topk_idx=idx, topk_weights=weights, **layout_args(buffer, idx))
    with torch.inference_mode():
        (values, scales), *_, first, _ = buffer.dispatch(quantised, **args)
        rows, *_, second, _ = buffer.dispatch(x, **args)
        assert len(buffer._channels) == 1
        for handle in (first, second):
            for sent, expected in ((x, rows), (x[:, :128].contiguous().float(), rows[:, :128].float())):
                got = buffer.dispatch(sent, handle=handle)[0]
                assert torch.equal(got, expected) and got.dtype == expected.dtype
                spread = handle[4].sum(1, keepdim=True)
                assert torch.equal(buffer.combine(got, handle)[0].float(), sent.float() * spread)
            got, got_scales = buffer.dispatch(quantised, handle=handle)[0]
            assert torch.equal(got.view(torch.uint8), values.view(torch.uint8)) and torch.equal(got_scales, scales)
    assert torch.equal(from_fp8(values, scales), torch.cat([from_fp8(*to_fp8(r[None])) for r in rows]))


def test_rows_of_another_kind():
    run(2, other_rows)


class Dispatch(torch.autograd.Function):
    """As trainers do it: the gradient of a dispatch is a combine, and of its weights, too."""

    @staticmethod
    def forward(ctx, x, idx, weights, buffer):
        recv_x, recv_idx, recv_weights, _, handle, _ = buffer.dispatch(
            x, topk_idx=idx, topk_weights=weights, **layout_args(buffer, idx), async_finish=True,
            previous_event=buffer.capture(), allocate_on_comm_stream=True)
        ctx.handle, ctx.buffer = handle, buffer
        ctx.mark_non_differentiable(recv_idx)
        return recv_x, recv_idx, recv_weights, handle

    @staticmethod
    def backward(ctx, d_x, _, d_weights, __):
        d_x, d_weights, event = ctx.buffer.combine(d_x.contiguous(), ctx.handle, topk_weights=d_weights.float())
        with event:
            return d_x, None, d_weights, None


class Combine(torch.autograd.Function):
    """And the gradient of a combine is a dispatch that uses the handle again."""

    @staticmethod
    def forward(ctx, y, handle, buffer):
        ctx.handle, ctx.buffer = handle, buffer
        return buffer.combine(y, handle)[0]

    @staticmethod
    def backward(ctx, d_out):
        return ctx.buffer.dispatch(d_out.contiguous(), handle=ctx.handle)[0], None, None


def trained(group, layers):
    """Layers in float32, more than there are slots, all forward and then all backward."""
    buffer, size = deep_ep.Buffer(group), group.size()
    tokens = [0, 5, 9, 2][:size] if size > 1 else [6]
    x, idx, weights = case(buffer.rank, tokens[buffer.rank])
    idx = [torch.roll(idx, i, 1) for i in range(layers)]
    scale = torch.arange(1.0, EXPERTS + 1) / EXPERTS

    def dense(h, w):
        for chosen in idx:
            h = h + (torch.where(chosen >= 0, w * scale[chosen], 0).sum(1, keepdim=True)) * torch.tanh(h)
        return h

    def parallel(h, w):
        mine = scale[buffer.rank * EXPERTS // size :]
        for chosen in idx:
            rows, local, row_weights, handle = Dispatch.apply(h, chosen, w, buffer)
            factor = torch.where(local >= 0, row_weights * mine[local], 0).sum(1, keepdim=True)
            h = h + Combine.apply(factor * torch.tanh(rows), handle, buffer)
        return h

    results = []
    for forward in (dense, parallel):
        leaves = [t.clone().float().requires_grad_() for t in (x, weights)]
        out = forward(*leaves)
        (out * torch.linspace(-1, 1, 64)).sum().backward()
        results.append((out.detach(), *(t.grad for t in leaves)))
    for expected, found in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_gradients(size):
    run(size, trained, 5)


def biases(group):
    buffer = deep_ep.Buffer(group)
    x, idx, weights = case(buffer.rank, 4 + buffer.rank)
    dispatched = buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **layout_args(buffer, idx))
    recv_x, handle = dispatched[0], dispatched[4]
    plain = buffer.combine(recv_x, handle)[0].float()
    one, two = (case(buffer.rank, len(x), seed=s)[0] for s in (7, 8))
    assert torch.equal(buffer.combine(recv_x, handle, bias=one)[0].float(), plain + one.float())
    assert torch.equal(buffer.combine(recv_x, handle, bias=(one, two))[0].float(), plain + one.float() + two.float())
    assert torch.equal(buffer.combine(recv_x, handle, bias=(None, two))[0].float(), plain + two.float())
    with pytest.raises(ubep.InvalidArgument, match="bias is a list"):
        buffer.combine(recv_x, handle, bias=[one, two])


def test_bias():
    run(2, biases)


def handles(group):
    """Six items, taken apart and put together; many at once; after their buffer's name is gone."""
    buffer = deep_ep.Buffer(group)
    x, idx, weights = case(buffer.rank, 6)
    kept = []
    for i in range(7):
        dispatched = buffer.dispatch(x * i, topk_idx=idx, topk_weights=weights, **layout_args(buffer, idx))
        kept.append((dispatched[0], dispatched[4]))
    assert isinstance(kept[0][1], tuple) and len(kept[0][1]) == 6
    prefix, _, _, source, is_in_rank, head = kept[0][1]
    assert prefix.shape == (group.size(), group.size()) and len(source) == len(kept[0][0])
    assert head.shape == is_in_rank.shape == (6, group.size())
    comb = buffer.combine
    del buffer
    spread = is_in_rank.sum(1, keepdim=True)
    for i in (3, 0, 6, 1, 5, 2, 4):
        rows, handle = kept[i]
        handle = list(handle) if i % 2 else handle
        assert torch.equal(comb(rows, handle)[0].float(), (x * i).float() * spread)
    del comb, kept, dispatched
    assert torch.equal(rows, rows.clone())
    return handle[4].sum().item()


def test_handles_in_any_order():
    run(2, handles)


def overwritten(group):
    """More than what is stored at once, peers that come late, and a source that writes over it."""
    buffer = deep_ep.Buffer(group)
    x = torch.full((160, 4096), float(buffer.rank + 1)).bfloat16()
    idx = torch.arange(EXPERTS).expand(160, -1).contiguous()
    args = layout_args(buffer, idx)
    for late in range(group.size()):
        if buffer.rank == late:
            time.sleep(0.2)
        sent = x.clone()
        rows, *_, handle, _ = buffer.dispatch(sent, topk_idx=idx, topk_weights=torch.ones(idx.shape), **args)
        sent.fill_(77)
        check_blocks(rows - 1, handle[0], buffer.rank)
        y = rows.clone()
        out = buffer.combine(y, handle)[0]
        y.fill_(99)
        rows.fill_(55)
        assert (out == x * group.size()).all()


def test_inputs_may_change_after_the_call():
    run(4, overwritten)


def refusals(group):
    buffer = deep_ep.Buffer(group)
    x, idx, weights = case(buffer.rank, 4)
    args = layout_args(buffer, idx)
    with pytest.raises(ubep.InvalidArgument, match="get_dispatch_layout"):
        buffer.dispatch(x, topk_idx=idx, topk_weights=weights)
    with pytest.raises(ubep.InvalidArgument, match="expected both"):
        buffer.dispatch(x, topk_idx=idx, **args)
    with pytest.raises(ubep.InvalidArgument, match="multiple of 2 ranks"):
        buffer.get_dispatch_layout(idx, 7)
    with pytest.raises(ubep.InvalidArgument, match="float64"):
        buffer.dispatch(x.double(), topk_idx=idx, topk_weights=weights, **args)
    with pytest.raises(ubep.InvalidArgument, match="with scales"):
        buffer.dispatch((x, torch.ones(4, 1)), topk_idx=idx, topk_weights=weights, **args)
    *_, handle, _ = buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **args)
    with pytest.raises(ubep.InvalidArgument, match="None with a handle"):
        buffer.dispatch(x, handle=handle, topk_idx=idx, topk_weights=weights)
    with pytest.raises(ubep.InvalidArgument, match="was copied"):
        buffer.combine(x, tuple(t.clone() for t in handle))
    with pytest.raises(ubep.InvalidArgument, match="num_worst_tokens is 1"):
        buffer.dispatch(x, topk_idx=idx, topk_weights=weights, num_worst_tokens=1, **args)
    with pytest.raises(NotImplementedError, match="get_local_buffer_tensor"):
        buffer.get_local_buffer_tensor(torch.uint8)
    with pytest.raises(ubep.Misuse, match="explicitly_destroy"):
        buffer.destroy()
    # All ranks hear of a difference; then they go on.
    narrow = idx[:, : 1 + buffer.rank].contiguous()
    with pytest.raises(ubep.InvalidArgument, match="on rank .*, expected the same"):
        buffer.dispatch(x, topk_idx=narrow, topk_weights=torch.ones(narrow.shape), **args)
    assert torch.equal(layer(buffer, x, idx, weights)[0].float(), dense_moe(x, idx, weights))


def test_refusals():
    run(2, refusals)


def test_needs_ranks():
    with pytest.raises(ValueError, match="group and comm"):
        deep_ep.Buffer()


def groups(world):
    """Buffers of several groups in one process, in turn."""
    halves = [dist.new_group([r, r + 2]) for r in range(2)]
    rank = dist.get_rank()
    buffers = [deep_ep.Buffer(world), deep_ep.Buffer(halves[rank % 2]), deep_ep.Buffer(world)]
    for turn in range(3):
        for buffer in buffers:
            x, idx, weights = case(rank, (rank + turn) % 3, seed=turn)
            assert torch.equal(layer(buffer, x, idx, weights)[0].float(), dense_moe(x, idx, weights))
    return [buffer.rank for buffer in buffers]


def test_several_groups():
    assert run(4, groups) == [[0, 0, 0], [1, 0, 1], [2, 1, 2], [3, 1, 3]]


class FakeMpi:
    """What Buffer asks of an mpi4py communicator, of one rank."""

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 1

    def allgather(self, value):
        return [value]


def test_mpi_communicator():
    buffer = deep_ep.Buffer(comm=FakeMpi())
    x, idx, weights = case(0, 5)
    assert torch.equal(layer(buffer, x, idx, weights)[0].float(), dense_moe(x, idx, weights))


def test_sizes_and_configs():
    assert deep_ep.Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 288) == 2 * (
        2 * 288 * 128 * (2 * 7168 + 4 * 56) + 1152) + 128
    assert deep_ep.Config(20, 6, 256, 6, 128).get_nvl_buffer_size_hint(14336, 8) == 335709824
    assert deep_ep.Config(20, 6, 256, 6, 128).get_rdma_buffer_size_hint(14336, 8) == 0
    assert deep_ep.Config(20, 6, 256, 6, 127).num_max_rdma_chunked_recv_tokens == 132
    with pytest.raises(ValueError, match="chunks are 256 and 256"):
        deep_ep.Config(20, 256, 256)
    deep_ep.Buffer.set_num_sms(24)
    config = deep_ep.Buffer.get_combine_config(4)
    assert (config.num_sms, config.num_max_nvl_chunked_send_tokens) == (24, 9)
    assert deep_ep.Buffer.get_dispatch_config(3).num_max_nvl_chunked_send_tokens == 6
    deep_ep.Buffer.set_num_sms(20)
    with pytest.raises(ValueError, match="new_num_sms is 3"):
        deep_ep.Buffer.set_num_sms(3)


def test_events():
    calls = []
    event = deep_ep.Buffer.capture()
    event.register_hook_after_wait(lambda: calls.append(1))
    with event(release_handle=True):
        assert calls == []
    assert calls == [1] and event.event is None
    with pytest.raises(AssertionError, match="released"):
        event.current_stream_wait()


def installed(_):
    deep_ep.install()
    deep_ep.install()
    import deep_ep as found
    from deep_ep.utils import EventHandle, EventOverlap

    assert found is deep_ep and EventHandle is deep_ep.EventHandle and EventOverlap is deep_ep.EventOverlap
    sys.modules["deep_ep"] = types.ModuleType("deep_ep")
    with pytest.raises(ImportError, match="another deep_ep has been imported"):
        deep_ep.install()


def test_install():
    ranks.run(1, installed)


def test_torchrun_example():
    found = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
                            str(EXAMPLE)], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("equals the dense layer") == 4
