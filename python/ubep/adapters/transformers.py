"""Expert parallelism for models of `transformers` 5 whose experts are stacked tensors.

    model = AutoModelForCausalLM.from_pretrained(folder)
    ubep.adapters.transformers.parallelize(model, group, max_tokens=512)
    model.generate(tokens)                            # on all ranks

A sparse block routes its tokens itself and calls its `experts` with (hidden_states, top_k_index,
top_k_weights); that module is what is replaced. Each rank keeps the weights of its own experts.
"""

from typing import Any, Iterator

import torch
from torch import nn

from .._bootstrap import from_environment, from_process_group
from .._core import Bootstrap, Communicator
from .._errors import InvalidArgument
from ..expert_parallel import ExpertParallel

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# Options that decide how rows lie.
_FIXED = ("layout", "expert_alignment", "quant", "in_place", "contiguous")
# Attributes that transformers gives a module of experts, and the only values that are computed here.
_PLAIN = dict(has_gate=True, has_bias=False, is_transposed=False, is_concatenated=True,
              has_post_expert_norm=False)


def _is_experts(module: nn.Module) -> bool:
    return all(getattr(getattr(module, name, None), "ndim", 0) == 3 for name in ("gate_up_proj", "down_proj"))


def _check(name: str, experts: nn.Module) -> None:
    for attribute, wanted in _PLAIN.items():
        found = getattr(experts, attribute, None)
        if found is not wanted:
            raise InvalidArgument(f"model: {name}.{attribute} is {found}, expected {wanted}")
    if getattr(experts, "_is_expert_parallel", False):
        raise InvalidArgument(f"model: {name} is spread over devices already")


class ShardedExperts(nn.Module):
    """In the place of a block's `experts`: this rank's experts, and the way to the others.

    gate_up_proj [local experts, 2 * inner, hidden], down_proj [local experts, hidden, inner]; the
    i-th is the global expert `exchange.comm.local_experts[i]`.
    """

    def __init__(self, experts: Any, exchange: ExpertParallel) -> None:
        super().__init__()
        self.exchange = exchange
        self.act_fn = experts.act_fn
        self._gate = type(experts)._apply_gate
        mine = torch.tensor(exchange.comm.local_experts, dtype=torch.long)
        for name in ("gate_up_proj", "down_proj"):
            whole = getattr(experts, name)
            own = whole.detach()[mine.to(whole.device)]  # a copy: the whole can be freed
            setattr(self, name, nn.Parameter(own, requires_grad=whole.requires_grad))

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                top_k_weights: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden]: the weighted sums of the experts' outputs, wherever they are.

        hidden_states [tokens, hidden] float32, bfloat16 or float16; top_k_index int64 and
        top_k_weights [tokens, top-k]. Raises what Communicator.dispatch and combine do.
        """
        weights = top_k_weights.float()
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            return self.exchange.layer(hidden_states, top_k_index, weights, self._outputs)
        return self.exchange.comm.run_layer(hidden_states, top_k_index, weights, experts=self._write,
                                            options=self.exchange.options)

    def _outputs(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        parts = torch.split(rows, counts.tolist())
        outputs = [self._expert(e, part) for e, part in enumerate(parts)]
        return torch.cat(outputs) if outputs else rows

    def _write(self, handle: Any) -> None:
        """One round without gradients: outputs go where the library reads them."""
        offsets = handle.received.expert_offsets.tolist()
        if offsets[-1] == 0:
            return
        rows, y = handle.received.rows, handle.expert_output
        for e, (begin, end) in enumerate(zip(offsets, offsets[1:])):
            if begin < end:
                y[begin:end] = self._expert(e, rows[begin:end])

    def _expert(self, e: int, rows: torch.Tensor) -> torch.Tensor:
        inner = self._gate(self, nn.functional.linear(rows, self.gate_up_proj[e]))
        return nn.functional.linear(inner, self.down_proj[e])


def _exchange_for(experts: Any, topk: int, ranks: Any, max_tokens: int, training: bool,
                  options: dict) -> ExpertParallel:
    num_experts, hidden = experts.down_proj.shape[:2]
    dtype = _DTYPES.get(experts.down_proj.dtype)
    if dtype is None:
        raise InvalidArgument(f"model has experts of {experts.down_proj.dtype}, expected float32, bfloat16 or float16")
    if isinstance(ranks, Communicator):
        if ranks.num_experts != num_experts:
            raise InvalidArgument(f"comm has {ranks.num_experts} experts, expected {num_experts} as the model")
        return ExpertParallel(comm=ranks, **options)
    if ranks is None:
        bootstrap = from_environment()
    elif isinstance(ranks, Bootstrap):
        bootstrap = ranks
    else:
        bootstrap = from_process_group(ranks)
    return ExpertParallel(num_experts=num_experts, hidden=hidden, topk=topk, max_tokens=max_tokens,
                          dtype=dtype, training=training, bootstrap=bootstrap, **options)


def parallelize(model: nn.Module, ranks: Any = None, *, max_tokens: int = 512, training: bool = False,
                **options: Any) -> ExpertParallel:
    """Replaces the experts of every sparse block of `model`, in place; returns what they share.

    ranks: a Communicator, a Bootstrap, a torch process group, or None for the launcher's ranks.
    max_tokens: of this rank in one forward, the same on all ranks; without gradients more are sent in
    several rounds. training: leaves room for gradients. options: of ExpertParallel, as
    reduction="per_rank" or timeout=60.

    Collective. All ranks hold the same model, and afterwards make the same number of forwards; one
    that has no tokens for one of them calls join_forward(). Raises InvalidArgument where a
    module of experts is not what is computed here, or where there is none.
    """
    for name in _FIXED:
        if name in options:
            raise InvalidArgument(f"{name} is given, expected what the adapter chooses")
    found = [(name, module) for name, module in model.named_modules() if _is_experts(module)]
    if not found:
        raise InvalidArgument("model has no module with gate_up_proj and down_proj of 3 dimensions")
    for name, module in found:
        _check(name, module)
    topk = model.config.num_experts_per_tok
    exchange = _exchange_for(found[0][1], topk, ranks, max_tokens, training, options)
    while found:  # each layer's weights can be freed before the next is copied
        name, module = found.pop(0)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, ShardedExperts(module, exchange))
    return exchange


def sharded_experts(model: nn.Module) -> "Iterator[ShardedExperts]":
    """The modules that parallelize() put into `model`, in the order of its layers. Their parameters
    differ between ranks, and have their whole gradient after backward: leave them out of an
    all-reduce."""
    return (module for module in model.modules() if isinstance(module, ShardedExperts))


@torch.no_grad()
def join_forward(model: nn.Module) -> None:
    """This rank's share of a forward that other ranks make without gradients, in which it has no
    tokens."""
    topk = model.config.num_experts_per_tok
    for module in sharded_experts(model):
        like = module.down_proj
        module(like.new_empty(0, like.shape[1]), torch.empty(0, topk, dtype=torch.long), torch.empty(0, topk))
