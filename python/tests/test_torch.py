"""Tensors, gradients against autograd of a dense layer, and torch.compile."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its tests are skipped")

import torch._dynamo  # noqa: E402,F401 - once, before ranks are forked

import ubep  # noqa: E402
from ranks import dense_moe, exact_case, open_comm, run  # noqa: E402

torch.set_num_threads(1)

EXPERTS, HIDDEN, INNER, TOPK = 6, 12, 7, 3


def native(bootstrap, dtype):
    comm = open_comm(bootstrap)
    x, idx, weights = (torch.from_numpy(a) for a in exact_case(comm.rank, 6))
    x = x.to(dtype).requires_grad_()
    handle = comm.dispatch(x, idx.long(), weights, layout="expert_major")
    r = handle.received
    assert r.rows.dtype == dtype and isinstance(r.expert_counts, torch.Tensor)
    first = comm.rank * 8 // comm.size
    ids = torch.repeat_interleave(torch.arange(len(r.expert_counts)), r.expert_counts)
    handle.expert_output[:] = r.rows * (ids + first + 1)[:, None].to(dtype)
    out = comm.combine(handle)
    assert out.dtype == dtype and not out.requires_grad
    expected = dense_moe(x.detach().float().numpy(), idx.numpy(), weights.numpy())
    np.testing.assert_array_equal(out.float().numpy(), expected)
    assert handle.valid_tokens().dtype == torch.bool
    with pytest.raises(ubep.InvalidArgument, match="x has dtype float64"):
        comm.dispatch(x.double(), idx, weights)
    with pytest.raises(ubep.InvalidArgument, match="x has strides"):
        comm.dispatch(x.T, idx, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tensors(dtype):
    run(2, native, dtype)


def eight_bits(bootstrap):
    comm = open_comm(bootstrap)
    x = torch.randn(4, 32).to(torch.float8_e4m3fn)
    idx = torch.arange(4, dtype=torch.int32)[:, None] * 2
    handle = comm.dispatch(x, idx, torch.ones(4, 1), layout="expert_major")
    rows = handle.received.rows
    assert rows.dtype == torch.uint8
    y = rows.contiguous().view(torch.float8_e4m3fn).float()
    assert torch.equal(comm.combine(handle, y), x.float())


def test_eight_bit_floats():
    run(2, eight_bits)


def mlp(x, w1, w2):
    return torch.nn.functional.silu(x @ w1) @ w2


def problem(size, tokens, seed=3):
    """The same on all ranks: x, topk_idx, topk_weights, gradients of y, expert weights."""
    g = torch.Generator().manual_seed(seed)
    total = sum(tokens)
    x = torch.randn(total, HIDDEN, generator=g)
    idx = torch.rand(total, EXPERTS, generator=g).argsort(dim=1)[:, :TOPK].int()
    idx[torch.rand(total, TOPK, generator=g) < 0.2] = -1
    weights = torch.rand(total, TOPK, generator=g)
    w1 = torch.randn(EXPERTS, HIDDEN, INNER, generator=g) / 3
    w2 = torch.randn(EXPERTS, INNER, HIDDEN, generator=g) / 3
    d_y = torch.randn(total, HIDDEN, generator=g)
    return x, idx, weights, w1, w2, d_y


def dense(x, idx, weights, w1, w2, d_y):
    """y and the gradients of x, weights, w1, w2, by autograd in one process."""
    leaves = [t.clone().requires_grad_() for t in (x, weights, w1, w2)]
    x, weights, w1, w2 = leaves
    y = torch.zeros_like(x)
    for e in range(EXPERTS):
        for k in range(TOPK):
            y = y + torch.where(idx[:, k : k + 1] == e, weights[:, k : k + 1] * mlp(x, w1[e], w2[e]), 0)
    y.backward(d_y)
    return [y.detach()] + [t.grad for t in leaves]


def expert_rows(rows, counts, w1, w2):
    """A rank's experts on rows packed by expert, each from a multiple of 4 on where that was asked."""
    sizes = counts.tolist()
    if sum(sizes) != rows.shape[0]:
        sizes = [(n + 3) // 4 * 4 for n in sizes]
    return torch.cat([mlp(part, w1[e], w2[e]) for e, part in enumerate(torch.split(rows, sizes))])


def sums_of_rows(d, w1, w2):
    """rank_major: each row through all of its local experts, weighted here."""
    y = d.rows * 0
    for e in range(w1.shape[0]):
        weight = torch.where(d.index == e, d.weights, 0).sum(dim=1, keepdim=True)
        y = y + weight * mlp(d.rows, w1[e], w2[e])
    return y


def outputs(ep, d, w1, w2):
    if ep.is_rank_major:
        return sums_of_rows(d, w1, w2)
    if ep.padded_rows is not None:
        rows = d.rows.unflatten(0, (w1.shape[0], -1))
        return torch.cat([mlp(rows[e], w1[e], w2[e]) for e in range(w1.shape[0])])
    return expert_rows(d.rows, d.expert_counts, w1, w2)


def make_layer(bootstrap, tokens, **options):
    ep = ubep.ExpertParallel(num_experts=EXPERTS, hidden=HIDDEN, topk=TOPK, max_tokens=max(tokens) + 1,
                             dtype=torch.float32, training=True, bootstrap=bootstrap, timeout=20, **options)
    owned = [e for e in range(EXPERTS) if e * bootstrap.size // EXPERTS == bootstrap.rank]
    return ep, slice(owned[0], owned[-1] + 1)


def shard(rank, tokens, *tensors):
    first = sum(tokens[:rank])
    return [t[first : first + tokens[rank]].clone() for t in tensors]


def gradients(bootstrap, tokens, options, which):
    ep, owned = make_layer(bootstrap, tokens, **options)
    x, idx, weights, w1, w2, d_y = problem(bootstrap.size, tokens)
    wanted = dense(x, idx, weights, w1, w2, d_y)
    x, idx, weights, d_y = shard(bootstrap.rank, tokens, x, idx, weights, d_y)
    w1, w2 = w1[owned].clone().requires_grad_(), w2[owned].clone().requires_grad_()
    x.requires_grad_("x" in which)
    weights.requires_grad_("w" in which)
    for _ in range(2):
        d = ep.dispatch(x, idx, weights)
        y = ep.combine(outputs(ep, d, w1, w2), d)
        y.backward(d_y)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
    close(y.detach(), *shard(bootstrap.rank, tokens, wanted[0]))
    if "x" in which:
        close(x.grad / 2, *shard(bootstrap.rank, tokens, wanted[1]))
    if "w" in which:
        close(weights.grad / 2, *shard(bootstrap.rank, tokens, wanted[2]))
    close(w1.grad / 2, wanted[3][owned])
    close(w2.grad / 2, wanted[4][owned])


LAYOUTS = {
    "expert_major": {},
    "aligned": dict(expert_alignment=4),
    "expert_padded": dict(layout="expert_padded", expert_capacity=64),
    "rank_major": dict(layout="rank_major"),
    "rank_major pulled": dict(layout="rank_major", path="pull"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_are_those_of_the_dense_layer(name):
    run(2, gradients, [9, 5], LAYOUTS[name], "xw")


@pytest.mark.parametrize("which", ["x", "w"])
def test_gradients_of_one_input(which):
    run(2, gradients, [4, 6], {}, which)


@pytest.mark.parametrize("tokens", [[7], [3, 0, 11]], ids=str)
def test_gradients_on_other_ranks(tokens):
    run(len(tokens), gradients, tokens, {}, "xw")


def only_experts(bootstrap):
    """Backward ends at the experts: the lease it took must not stay."""
    ep, owned = make_layer(bootstrap, [4, 4])
    x, idx, weights, w1, w2, d_y = problem(2, [4, 4])
    wanted = dense(x, idx, weights, w1, w2, d_y)
    x, idx, weights, d_y = shard(bootstrap.rank, [4, 4], x, idx, weights, d_y)
    w1, w2 = w1[owned].clone().requires_grad_(), w2[owned].clone().requires_grad_()
    for _ in range(5):
        d = ep.dispatch(x, idx, weights)
        assert not d.rows.requires_grad
        ep.combine(outputs(ep, d, w1, w2), d).backward(d_y)
    torch.testing.assert_close(w1.grad / 5, wanted[3][owned], rtol=2e-5, atol=2e-6)
    with torch.no_grad():
        d = ep.dispatch(x, idx, weights)
    assert isinstance(d.handle, ubep.Handle)
    with pytest.raises(ubep.Misuse, match="needs a gradient"):
        ep.combine(outputs(ep, d, w1, w2), d)
    with torch.no_grad():
        ep.combine(outputs(ep, d, w1, w2), d)


def test_a_backward_that_ends_at_the_experts():
    run(2, only_experts)


def quantised_layer(bootstrap):
    ep = ubep.ExpertParallel(num_experts=4, hidden=HIDDEN, topk=1, max_tokens=8, dtype=torch.float32,
                             training=True, quant="int8", bootstrap=bootstrap, timeout=20)
    g = torch.Generator().manual_seed(bootstrap.rank)
    x, d_y = (torch.randn(6, HIDDEN, generator=g) for _ in range(2))
    idx, weights = torch.randint(0, 4, (6, 1), generator=g), torch.ones(6, 1)
    rounded = [ubep.dequantize(ubep.quantize(t, "int8"), "int8", HIDDEN, "fp32") for t in (x, d_y)]
    x.requires_grad_()
    y = ep.layer(x, idx, weights, lambda rows, counts: 2 * rows)
    torch.testing.assert_close(y.detach(), 2 * rounded[0], rtol=0, atol=0)
    y.backward(d_y)
    torch.testing.assert_close(x.grad, 2 * rounded[1], rtol=0, atol=0)
    with torch.no_grad():
        again = ep.layer(x, idx, weights, lambda rows, counts: 2 * rows)
    assert torch.equal(again, y)
    with pytest.raises(TypeError, match="topk1"):
        ubep.ExpertParallel(topk1=True, comm=ep.comm)


def test_quantised_rows_have_straight_through_gradients():
    run(2, quantised_layer)


def bf16_layer(bootstrap):
    ep = ubep.ExpertParallel(num_experts=4, hidden=HIDDEN, topk=2, max_tokens=8, dtype=torch.bfloat16,
                             bootstrap=bootstrap, timeout=20)
    x, idx, weights = (torch.from_numpy(a) for a in exact_case(bootstrap.rank, 5, HIDDEN, 2, 4))
    y = ep.layer(x.bfloat16(), idx, weights, lambda rows, counts: 2 * rows)
    expected = 2 * torch.where(idx >= 0, weights, 0).sum(dim=1, keepdim=True) * x
    assert y.dtype == torch.bfloat16 and torch.equal(y.float(), expected)
    handles = [ep.start_dispatch(x.bfloat16(), idx, weights) for _ in range(2)]
    outs = []
    for handle in handles:
        d = ep.wait(handle)
        outs.append((d, ep.start_combine(2 * d.rows, d)))
    for d, out in reversed(outs):
        ep.finish(d)
        assert torch.equal(out.float(), expected)
    assert ep.stats(d).path in (ubep.Path.pull, ubep.Path.push)


def test_inference_with_two_micro_batches():
    run(2, bf16_layer)


def compiled(bootstrap, backend, layout):
    ep, owned = make_layer(bootstrap, [9, 9], layout=layout)
    tokens = [[9, 5], [7, 8]]

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def layer(x, idx, weights, w1, w2):
        d = ep.dispatch(x, idx, weights)
        if ep.is_rank_major:
            y = sums_of_rows(d, w1, w2)
        else:
            expert = torch.repeat_interleave(
                torch.arange(w1.shape[0]), d.expert_counts.long(), output_size=d.rows.shape[0])
            inner = torch.nn.functional.silu((d.rows[:, None] @ w1[expert])[:, 0])
            y = (inner[:, None] @ w2[expert])[:, 0]
        return ep.combine(y, d)

    for turn, counts in enumerate(tokens):
        x, idx, weights, w1, w2, d_y = problem(2, counts, seed=turn)
        wanted = dense(x, idx, weights, w1, w2, d_y)
        x, idx, weights, d_y = shard(bootstrap.rank, counts, x, idx, weights, d_y)
        w1, w2 = w1[owned].clone().requires_grad_(), w2[owned].clone().requires_grad_()
        x.requires_grad_()
        weights.requires_grad_()
        y = layer(x, idx, weights, w1, w2)
        y.backward(d_y)
        mine = [*shard(bootstrap.rank, counts, *wanted[:3]), wanted[3][owned], wanted[4][owned]]
        for got, expected in zip((y.detach(), x.grad, weights.grad, w1.grad, w2.grad), mine):
            torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)
    if backend == "eager":
        with torch.no_grad():
            torch.testing.assert_close(layer(x, idx, weights, w1, w2), mine[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("backend,layout", [("aot_eager", "expert_major"), ("eager", "rank_major")])
def test_torch_compile_in_one_graph(backend, layout):
    run(2, compiled, backend, layout, limit=240)
