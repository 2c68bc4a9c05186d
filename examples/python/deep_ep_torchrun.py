"""A layer of experts with DeepEP's calls, on CPU tensors:

torchrun --nproc-per-node 4 examples/python/deep_ep_torchrun.py
"""

import torch
import torch.distributed as dist

import ubep.deep_ep as deep_ep

NUM_EXPERTS, HIDDEN, TOPK = 8, 512, 2

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
buffer = deep_ep.Buffer(dist.group.WORLD)
local = NUM_EXPERTS // size

torch.manual_seed(rank)
num_tokens = 10 * rank  # ranks need not have equally many; this one may have none
x = torch.randn(num_tokens, HIDDEN).bfloat16()
topk_weights, topk_idx = torch.rand(num_tokens, NUM_EXPERTS).topk(TOPK)

per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(topk_idx, NUM_EXPERTS)
rows, row_idx, row_weights, counts, handle, _ = buffer.dispatch(
    x, num_tokens_per_rank=per_rank, num_tokens_per_expert=per_expert, is_token_in_rank=is_in_rank,
    topk_idx=topk_idx, topk_weights=topk_weights)

# Expert e multiplies by e + 1. The caller weights: combine sums the rows of the ranks.
factor = torch.where(row_idx >= 0, row_weights * (row_idx + rank * local + 1), 0).sum(1, keepdim=True)
y, _, _ = buffer.combine((rows.float() * factor).bfloat16(), handle)

expected = x.float() * (topk_weights * (topk_idx + 1)).sum(1, keepdim=True)
torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)
print(f"rank {rank}: {num_tokens} tokens sent, {len(rows)} received, {counts} by expert; equals the dense layer")
dist.destroy_process_group()
