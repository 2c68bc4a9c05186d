"""ubep.adapters.vllm under a stand-in for vLLM's modular kernel (standin_vllm.py)."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch._dynamo  # noqa: E402,F401 - once, before ranks are forked

import standin_vllm as standin  # noqa: E402
import ubep  # noqa: E402
from ranks import job, run  # noqa: E402
from ubep.adapters.vllm import ExpertTokens, PrepareAndFinalize, weighted_sums  # noqa: E402

torch.set_num_threads(1)

EXPERTS, HIDDEN, INNER, TOPK = standin.NUM_EXPERTS, 20, 8, 3


class Ours(PrepareAndFinalize, standin.StandInBase):
    """As a user derives from both."""


def make_comm(bootstrap, **options):
    wanted = dict(num_experts=EXPERTS, max_tokens=16, max_hidden=HIDDEN, max_dtype="fp32", max_topk=TOPK, timeout=20)
    return ubep.init(bootstrap, **(wanted | options))


def expert_weights():
    g = torch.Generator().manual_seed(1)
    w1 = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=g) / 3
    return w1, torch.randn(EXPERTS, HIDDEN, INNER, generator=g) / 3


def case(rank, tokens, topk=TOPK):
    g = torch.Generator().manual_seed(10 + rank)
    ids = torch.rand(tokens, EXPERTS, generator=g).argsort(dim=1)[:, :topk]
    return torch.randn(tokens, HIDDEN, generator=g), torch.rand(tokens, topk, generator=g), ids


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)


def layer(bootstrap, counts, options, kernel_options):
    comm = make_comm(bootstrap)
    w1, w2 = expert_weights()
    mine = comm.local_experts
    expert_map = None
    if options.get("global_ids"):
        expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
        expert_map[mine] = torch.arange(len(mine), dtype=torch.int32)
    pf = Ours(comm, **options)
    kernel = standin.StandInModularKernel(pf, w1[mine], w2[mine], expert_map=expert_map, **kernel_options)
    for turn in range(3):
        given = case(comm.rank + 10 * turn, counts[(comm.rank + turn) % comm.size])
        close(kernel(*given), standin.dense(*given, w1, w2))
    assert (pf.num_dispatchers(), pf.max_num_tokens_per_rank()) == (comm.size, 16)
    assert pf.output_is_reduced() and pf.activation_format == "standard"


KINDS = {
    "fused": ({}, {}),
    "topk1": (dict(topk1=True), {}),
    "global ids": (dict(global_ids=True), {}),
    "in place": (dict(in_place=True), dict(kind="in place")),
    "unfused": ({}, dict(kind="unfused")),
    "unfused topk1": (dict(topk1=True), dict(kind="unfused")),
    "async": ({}, dict(asynchronous=True)),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_layer_is_the_dense_one(name):
    run(2, layer, [9, 4], *KINDS[name])


@pytest.mark.parametrize("name", ["fused", "topk1", "unfused"])
def test_four_ranks_and_none_of_the_tokens_on_one(name):
    run(4, layer, [5, 0, 13, 1], *KINDS[name])


def without_minus_one(bootstrap):
    comm = make_comm(bootstrap)
    x, weights, ids = case(comm.rank, 8)
    pf = PrepareAndFinalize(comm, topk1=True)
    rows, _, counts, local, row_weights = pf.prepare(x, weights, ids.int(), EXPERTS)
    assert local.shape == row_weights.shape == (len(rows), 1) and (local >= 0).all()
    assert isinstance(counts, ExpertTokens) and int(counts.expert_num_tokens_cpu.sum()) == len(rows)
    pf.finalize(torch.empty_like(x), rows.clone(), row_weights, local)


def test_topk1_has_no_missing_ids():
    run(2, without_minus_one)


def aliased(bootstrap):
    """Experts that wrote to the output tensor itself."""
    comm = make_comm(bootstrap)
    x, weights, ids = case(comm.rank, 8)
    ids[:] = torch.tensor([0, 2, 4])  # so every token reaches both ranks
    pf = PrepareAndFinalize(comm)
    rows, _, _, local, row_weights = pf.prepare(x, weights, ids.int(), EXPERTS)
    output = torch.empty(16, HIDDEN)
    assert rows.shape == output.shape
    output.copy_(rows)
    pf.finalize(output[:8], output, row_weights, local)
    close(output[:8], 2 * x)


def test_outputs_in_the_result_tensor():
    run(2, aliased)


def in_library_memory(bootstrap):
    comm = make_comm(bootstrap, max_hidden=32)
    _, weights, ids = case(comm.rank, 8)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(comm.rank))
    ids[:] = torch.tensor([0, 1, 2 + comm.rank])  # tokens of rank 0 stay, those of rank 1 go to both
    pf = PrepareAndFinalize(comm)
    assert pf.allocate_fused_expert_output((8, 32), x.dtype, x.device) is None
    rows, _, _, local, row_weights = pf.prepare(x, weights, ids.int(), EXPERTS)
    for shape, dtype in (((len(rows), TOPK, 32), x.dtype), ((len(rows), 32), torch.bfloat16)):
        assert pf.allocate_fused_expert_output(shape, dtype, x.device) is None
    memory = pf.allocate_fused_expert_output(tuple(rows.shape), x.dtype, x.device)
    memory[:] = 3 * rows
    output = torch.empty_like(x)
    pf.finalize(output, memory, row_weights, local)
    close(output, (3 if comm.rank == 0 else 6) * x)


def test_outputs_in_memory_of_the_library():
    run(2, in_library_memory)


def on_input(bootstrap):
    comm = make_comm(bootstrap)
    w1, w2 = expert_weights()
    mine = comm.local_experts
    given = case(comm.rank, 7, topk=1)
    for kind in ("fused", "unfused"):
        kernel = standin.StandInModularKernel(PrepareAndFinalize(comm), w1[mine], w2[mine], kind=kind)
        close(kernel(*given, on_input=True), standin.dense(*given, w1, w2, on_input=True))


def test_weights_on_the_input():
    run(2, on_input)


def two_batches(bootstrap):
    """Each of two micro-batches has a dispatch under way while the other's goes on."""
    comm = make_comm(bootstrap)
    w1, w2 = expert_weights()
    mine = comm.local_experts
    current = [0]
    pf = PrepareAndFinalize(comm, micro_batch=lambda: current[0])
    cases = [case(comm.rank + 5 * i, 6 + i) for i in (0, 1)]
    outputs = [torch.empty_like(c[0]) for c in cases]
    found = []
    for current[0] in (0, 1):
        x, weights, ids = cases[current[0]]
        found.append(pf.prepare_async(x, weights, ids.int(), EXPERTS))
    done = []
    for current[0] in (0, 1):
        rows, _, _, ids, weights = found[current[0]]()
        y = standin.fused(rows, ids, weights, w1[mine], w2[mine], False)
        done.append(pf.finalize_async(outputs[current[0]], y, weights, ids))
    for receive, given, output in zip(done, cases, outputs):
        receive()
        close(output, standin.dense(*given, w1, w2))


def test_two_micro_batches_under_way():
    run(2, two_batches)


def bf16(bootstrap):
    comm = make_comm(bootstrap)
    x, weights, ids = case(comm.rank, 6)
    w1, w2 = (w.bfloat16() for w in expert_weights())
    mine = comm.local_experts
    kernel = standin.StandInModularKernel(PrepareAndFinalize(comm), w1[mine], w2[mine])
    got = kernel(x.bfloat16(), weights, ids)
    expected = standin.dense(x.bfloat16(), weights, ids, w1, w2)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)


def test_bfloat16():
    run(2, bf16)


def test_sums_leave_out_what_is_not_here():
    y = torch.tensor([[[1.0], [float("nan")]], [[2.0], [4.0]]])
    ids, weights = torch.tensor([[0, -1], [1, 0]]), torch.tensor([[0.5, 0.0], [1.0, 0.25]])
    assert weighted_sums(y, ids, weights).tolist() == [[0.5], [3.0]]
    assert weighted_sums(y.view(4, 1), ids, weights).tolist() == [[0.5], [3.0]]


def test_what_is_refused():
    comm = make_comm(ubep.local(0, 1, job()))
    pf = PrepareAndFinalize(comm)
    x, weights, ids = case(0, 3)
    quantised = type("Config", (), dict(quant_dtype=torch.int8))()
    for text, args in (("num_experts is 5, expected 6", (5,)),
                       ("3 columns, expected 1", (EXPERTS, None, True)),
                       ("quant_dtype", (EXPERTS, None, False, quantised))):
        with pytest.raises(ubep.InvalidArgument, match=text):
            pf.prepare(x, weights, ids, *args)
    with pytest.raises(ubep.Misuse, match="finalize before prepare"):
        pf.finalize(x, x, weights, ids)
    rows, _, _, local, row_weights = pf.prepare(x, weights, ids, EXPERTS, None, False, quantised, True)
    with pytest.raises(ubep.Misuse, match="prepare before finalize"):
        pf.prepare(x, weights, ids, EXPERTS)
    output = torch.empty_like(x)
    pf.finalize(output, rows.clone(), row_weights, local)
    close(output, x)
