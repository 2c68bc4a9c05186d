"""ubep.adapters.megatron in Megatron-LM's own MoE layer, router and experts, on the CPU.

Skipped unless UBEP_MEGATRON is the folder of a clone. Two things there want a GPU that this test does
not use: a module of kernels, and the device that the router's weight is moved to.
"""

import os
import sys
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if "UBEP_MEGATRON" not in os.environ:
    pytest.skip("UBEP_MEGATRON is not set: it is the folder of a clone of Megatron-LM", allow_module_level=True)

sys.path.insert(0, os.environ["UBEP_MEGATRON"])
sys.modules.setdefault("megatron.core.transformer.moe.ops.paged_stash", mock.MagicMock())

import torch._dynamo  # noqa: E402,F401 - once, before ranks are forked
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

import ubep  # noqa: E402
from ranks import run  # noqa: E402
from ubep.adapters.megatron import TokenDispatcher  # noqa: E402

torch.set_num_threads(1)

EXPERTS, HIDDEN, INNER, TOPK = 4, 12, 8, 2


def make_layer(ranks):
    """The layer of one rank of several; its own dispatcher is one that wants no GPU when it is made."""
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=2, num_moe_experts=EXPERTS, moe_ffn_hidden_size=INNER,
        ffn_hidden_size=INNER, moe_router_topk=TOPK, moe_token_dispatcher_type="allgather", add_bias_linear=False,
        expert_model_parallel_size=ranks, gated_linear_unit=True, activation_func=F.silu,
        use_cpu_initialization=True, moe_router_load_balancing_type="none", perform_initialization=True)
    spec = get_moe_module_spec(use_te=False, num_experts=EXPERTS, moe_grouped_gemm=False)
    return spec(config=config, layer_number=1)


def random_weights():
    g = torch.Generator().manual_seed(3)
    return (torch.randn(EXPERTS, HIDDEN, generator=g), torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=g) / 3,
            torch.randn(EXPERTS, HIDDEN, INNER, generator=g) / 3)


def dense_layer(x, gate, fc1, fc2):
    """x [tokens, hidden]; softmax over the chosen logits, as the router's default is."""
    logits, chosen = (x @ gate.T).topk(TOPK, dim=1)
    weights = logits.softmax(dim=1)
    y = torch.zeros_like(x)
    for e in range(EXPERTS):
        a, b = F.linear(x, fc1[e]).chunk(2, dim=-1)
        weight = torch.where(chosen == e, weights, 0).sum(dim=1, keepdim=True)
        y = y + weight * F.linear(F.silu(a) * b, fc2[e])
    return y


def real_layer(bootstrap, path):
    rank, size = bootstrap.rank, bootstrap.size
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=size)
    layer = make_layer(size)
    exchange = ubep.ExpertParallel(
        num_experts=EXPERTS, hidden=HIDDEN, topk=TOPK, max_tokens=16, dtype="fp32", training=True, timeout=20,
        bootstrap=ubep.from_process_group(parallel_state.get_expert_model_parallel_group()))
    mine = exchange.comm.local_experts
    layer.token_dispatcher = TokenDispatcher(layer.num_local_experts, layer.local_expert_indices, layer.config,
                                             exchange=exchange)
    gate, fc1, fc2 = random_weights()
    experts = layer.experts.local_experts
    with torch.no_grad():
        layer.router.weight.copy_(gate)
        for expert, e in zip(experts, mine):
            expert.linear_fc1.weight.copy_(fc1[e])
            expert.linear_fc2.weight.copy_(fc2[e])
    g = torch.Generator().manual_seed(7)
    cases = [(torch.randn(3 + r, 2, HIDDEN, generator=g), torch.randn(3 + r, 2, HIDDEN, generator=g))
             for r in range(size)]
    parts = []
    for x, d_y in cases:
        leaves = [t.clone().requires_grad_() for t in (x, gate, fc1, fc2)]
        y = dense_layer(leaves[0].flatten(0, 1), *leaves[1:]).view_as(x)
        y.backward(d_y)
        parts.append((y.detach(), *(t.grad for t in leaves)))
    x = cases[rank][0].clone().requires_grad_()
    with mock.patch("torch.cuda.current_device", lambda: "cpu"):
        y, bias = layer(x)
    y.backward(cases[rank][1])
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
    assert bias is None
    close(y.detach(), parts[rank][0])
    close(x.grad, parts[rank][1])
    close(layer.router.weight.grad, parts[rank][2])
    for i, e in enumerate(mine):
        close(experts[i].linear_fc1.weight.grad, sum(p[3] for p in parts)[e])
        close(experts[i].linear_fc2.weight.grad, sum(p[4] for p in parts)[e])
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 4])
def test_the_layer_and_its_gradients(size, tmp_path):
    run(size, real_layer, tmp_path / "group", limit=90)
