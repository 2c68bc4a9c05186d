"""How tokens reach the experts of other ranks and come back: over ubep, and over gloo to compare.

An exchange is a `moe` of model.TinyMoe for one rank of several, each of which owns an equal part of
each layer's experts:

    exchange(layer, hidden [T, H], topk_idx [T, K], topk_weights [T, K]) -> [T, H]

All ranks call it for the same layers in the same order, with as many tokens as `begin` was told.
`spent` is where its time went, in seconds.
"""

import time

import torch
import torch.distributed as dist

import ubep

# Their names since PyTorch 2.13, and before.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Exchange:
    """What all have in common. experts: of each layer those of this rank (model.Experts)."""

    name = ""

    def __init__(self, rank, size, config, experts):
        self.rank, self.size, self.config, self.experts = rank, size, config, experts
        self.num_local = config.num_experts // size
        self.tokens = [0] * size
        self.reset()

    def reset(self):
        self.spent = {"dispatch": 0.0, "experts": 0.0, "combine": 0.0}

    def begin(self, tokens):
        """tokens: of each rank in the calls that follow; a serving step knows them."""
        self.tokens = tokens

    def __call__(self, layer, hidden, topk_idx, topk_weights):
        self.clock = time.perf_counter()
        return self.run(self.experts[layer], hidden, topk_idx, topk_weights)

    def lap(self, part):
        now = time.perf_counter()
        self.spent[part] += now - self.clock
        self.clock = now

    def close(self):
        pass


class OverUbep(Exchange):
    """Rows packed by expert; outputs are written where the library reads them."""

    name = "ubep"

    def __init__(self, rank, size, config, experts, *, bootstrap, max_tokens):
        super().__init__(rank, size, config, experts)
        self.comm = ubep.init(bootstrap, num_experts=config.num_experts, max_tokens=max_tokens,
                              max_hidden=config.hidden_size, max_dtype="fp32",
                              max_topk=config.num_experts_per_tok)
        self.options = ubep.DispatchOptions(layout="expert_major")

    def run(self, experts, hidden, topk_idx, topk_weights):
        handle = self.comm.dispatch(hidden, topk_idx, topk_weights, options=self.options)
        received = handle.received
        self.lap("dispatch")
        if received.num_rows > 0:
            rows, y, offsets = received.rows, handle.expert_output, received.expert_offsets.tolist()
            for expert, (begin, end) in enumerate(zip(offsets, offsets[1:])):
                if begin < end:
                    y[begin:end] = experts.rows(rows[begin:end], expert)
        self.lap("experts")
        out = self.comm.combine(handle)
        self.lap("combine")
        return out

    def close(self):
        self.comm.close()


class OverAllToAll(Exchange):
    """As token dispatchers do it over a process group: counts, rows, experts, rows back."""

    name = "gloo-alltoall"

    def run(self, experts, hidden, topk_idx, topk_weights):
        choices = topk_idx.flatten()
        order = choices.argsort(stable=True)
        counts = choices.bincount(minlength=self.config.num_experts)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        send = counts.view(self.size, -1).sum(1).tolist()
        theirs = theirs.view(self.size, -1)
        receive = theirs.sum(1).tolist()
        rows = hidden.new_empty(sum(receive), hidden.shape[1])
        dist.all_to_all_single(rows, hidden[order // topk_idx.shape[1]], receive, send)
        # Rows lie by source, then expert.
        which = torch.arange(self.num_local).repeat(self.size).repeat_interleave(theirs.flatten())
        self.lap("dispatch")
        y = torch.empty_like(rows)
        by_expert = which.argsort(stable=True)
        begin = 0
        for expert, count in enumerate(theirs.sum(0).tolist()):
            if count:
                at = by_expert[begin:begin + count]
                y[at] = experts.rows(rows[at], expert)
                begin += count
        self.lap("experts")
        back = hidden.new_empty(len(choices), hidden.shape[1])
        dist.all_to_all_single(back, y, send, receive)
        outputs = torch.empty_like(back)
        outputs[order] = back
        out = (outputs.view(*topk_idx.shape, hidden.shape[1]) * topk_weights[:, :, None]).sum(1)
        self.lap("combine")
        return out


class OverAllGather(Exchange):
    """Every token to every rank in one tensor with its choices, sums of all tokens back."""

    name = "gloo-allgather"

    def run(self, experts, hidden, topk_idx, topk_weights):
        most, width = max(self.tokens), hidden.shape[1]
        own = hidden.new_zeros(most, width + 2 * topk_idx.shape[1])
        own[:len(hidden)] = torch.cat((hidden, topk_idx.to(hidden.dtype), topk_weights), 1)
        gathered = own.new_empty(self.size * most, own.shape[1])
        all_gather(gathered, own)
        first = self.rank * self.num_local
        rows, ids, weights = gathered.split((width, topk_idx.shape[1], topk_idx.shape[1]), 1)
        local = ids.long() - first
        for source, count in enumerate(self.tokens):
            local[source * most + count:(source + 1) * most] = -1  # padding
        self.lap("dispatch")
        sums = experts.sums(rows, local, weights)
        self.lap("experts")
        out = sums.new_empty(most, width)
        reduce_scatter(out, sums)
        self.lap("combine")
        return out[:len(hidden)]


EXCHANGES = {kind.name: kind for kind in (OverUbep, OverAllToAll, OverAllGather)}
