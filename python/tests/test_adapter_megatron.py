"""ubep.adapters.megatron under a stand-in for Megatron-LM's layer (standin_megatron.py)."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch._dynamo  # noqa: E402,F401 - once, before ranks are forked

import standin_megatron as standin  # noqa: E402
import ubep  # noqa: E402
from ranks import job, run  # noqa: E402
from ubep.adapters.megatron import TokenDispatcher, choices_of  # noqa: E402

torch.set_num_threads(1)

EXPERTS, HIDDEN, INNER, TOPK = 6, 12, 7, 3


def weights():
    g = torch.Generator().manual_seed(2)
    return [torch.randn(*shape, generator=g) / 2
            for shape in ((HIDDEN, EXPERTS), (EXPERTS, HIDDEN, INNER), (EXPERTS, INNER, HIDDEN))]


def inputs(shapes):
    g = torch.Generator().manual_seed(4)
    return [[torch.randn(*shape, HIDDEN, generator=g) for _ in range(2)] for shape in shapes]


def make_exchange(bootstrap, **options):
    return ubep.ExpertParallel(num_experts=EXPERTS, hidden=HIDDEN, topk=TOPK, max_tokens=16, dtype="fp32",
                               training=True, bootstrap=bootstrap, timeout=20, **options)


def make_dispatcher(exchange, **more):
    mine = exchange.comm.local_experts
    return TokenDispatcher(len(mine), mine, standin.config(EXPERTS, TOPK, **more),
                           standin.groups(exchange.comm.size), exchange=exchange)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)


def gradients(bootstrap, shapes, older):
    cases, exchange = inputs(shapes), make_exchange(bootstrap)
    parts = []
    for x, d_y in cases:
        leaves = [t.clone().requires_grad_() for t in (x, *weights())]
        y = standin.dense_layer(*leaves, TOPK)
        y.backward(d_y)
        parts.append((y.detach(), *(t.grad for t in leaves)))
    gate, fc1, fc2 = weights()
    mine = exchange.comm.local_experts
    x, d_y = cases[bootstrap.rank]
    leaves = [t.clone().requires_grad_() for t in (x, gate, fc1[mine], fc2[mine])]
    layers = [standin.StandInMoELayer(make_dispatcher(exchange), *leaves[1:], TOPK, older) for _ in range(2)]
    for layer in layers:
        y = layer(leaves[0])
        y.backward(d_y)
    own = parts[bootstrap.rank]
    close(y.detach(), own[0])
    close(leaves[0].grad / 2, own[1])
    close(leaves[1].grad / 2, own[2])
    close(leaves[2].grad / 2, sum(p[3] for p in parts)[mine])
    close(leaves[3].grad / 2, sum(p[4] for p in parts)[mine])
    with torch.no_grad():
        close(layers[0](leaves[0]), own[0])


@pytest.mark.parametrize("shapes", [[(4, 2), (3, 1)], [(5, 1), (0, 2), (4, 3), (1, 1)]], ids=str)
def test_the_layer_and_its_gradients(shapes):
    run(len(shapes), gradients, shapes, False, limit=60)


def test_the_calls_of_older_releases():
    run(2, gradients, [(4, 2), (3, 2)], True)


def only_experts(bootstrap):
    """Backward ends at the experts: no lease may stay."""
    exchange = make_exchange(bootstrap)
    gate, fc1, fc2 = weights()
    mine = exchange.comm.local_experts
    (x, d_y), expected = inputs([(4, 2), (3, 2)])[bootstrap.rank], []
    fc2_mine = fc2[mine].clone().requires_grad_()
    layer = standin.StandInMoELayer(make_dispatcher(exchange), gate, fc1[mine], fc2_mine, TOPK)
    for _ in range(5):
        layer(x).backward(d_y)
    for x, d_y in inputs([(4, 2), (3, 2)]):
        leaf = fc2.clone().requires_grad_()
        standin.dense_layer(x, gate, fc1, leaf, TOPK).backward(d_y)
        expected.append(leaf.grad)
    close(fc2_mine.grad / 5, sum(expected)[mine])


def test_a_backward_that_ends_at_the_experts():
    run(2, only_experts)


def test_choices_of_a_map():
    routing_map = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5], [0.0] * 4, [1.0, 0, 0, 0]], dtype=torch.float64)
    idx, chosen = choices_of(routing_map, probs, 2)
    assert idx.tolist() == [[1, 3], [-1, -1], [0, -1]] and chosen.dtype == torch.float32
    assert chosen.tolist() == [[0.25, 0.5], [0, 0], [1, 0]]
    with pytest.raises(ubep.InvalidArgument, match="2 experts of a token, expected at most 1"):
        choices_of(routing_map, probs, 1)
    assert [t.shape for t in choices_of(routing_map[:0], probs[:0], 2)] == [(0, 2), (0, 2)]


def test_what_is_refused():
    exchange = make_exchange(ubep.local(0, 1, job()))
    mine = list(range(EXPERTS))

    def refused(text, count=EXPERTS, indices=mine, config=None, groups=None, exchange=exchange):
        with pytest.raises(ubep.InvalidArgument, match=text):
            TokenDispatcher(count, indices, config or standin.config(EXPERTS, TOPK), groups, exchange=exchange)

    refused("local_expert_indices are .1, 0", indices=[1, 0, 2, 3, 4, 5])
    refused("num_moe_experts is 8, expected 6", config=standin.config(8, TOPK))
    refused("moe_shared_expert_overlap is set", config=standin.config(EXPERTS, TOPK, moe_shared_expert_overlap=True))
    refused("ep and expt_tp of 2 and 1 ranks, expected 1 and 1", groups=standin.groups(2))
    refused("of 1 and 2 ranks", groups=standin.groups(1, 2))
    refused("expected expert_major", exchange=ubep.ExpertParallel(comm=exchange.comm, layout="rank_major"))
    dispatcher = make_dispatcher(exchange)
    with pytest.raises(ubep.Misuse, match="token_dispatch before dispatch_preprocess"):
        dispatcher.token_dispatch(torch.zeros(2, HIDDEN), torch.zeros(2, TOPK))
    with pytest.raises(ubep.Misuse, match="token_combine before token_dispatch"):
        dispatcher.token_combine(torch.zeros(2, HIDDEN))
    with pytest.raises(ubep.InvalidArgument, match="moe_shared_expert_overlap"):
        dispatcher.set_shared_experts(None)
    with pytest.raises(ubep.InvalidArgument, match="bias"):
        dispatcher.token_unpermutation(torch.zeros(2, HIDDEN), torch.zeros(HIDDEN))
