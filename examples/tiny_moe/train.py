"""Trains the small mixture of experts in model/ from nothing, on the text of corpus.py.

    python train.py --cache CACHE                           # half an hour on a core with AMX
    python train.py --cache CACHE --steps 50 --out try      # a try

The model has the layout of Qwen3-MoE; `export` writes it so that transformers loads it. In
training each layer's rows are sorted by expert, so that an expert is two matrix products. Master
weights are float32, products bfloat16. Same seed, same libraries, one thread: same weights.
"""

import argparse
import ctypes
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import corpus
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

END = "<|endoftext|>"


@dataclass
class Config:
    """The sizes, under the names that config.json has for them."""

    vocab_size: int = 2048
    hidden_size: int = 192
    num_hidden_layers: int = 4
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 32
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    max_position_embeddings: int = 512
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


# --- the model ---


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    """Rotary positions, halves paired: x [batch, heads, tokens, head_dim]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_dim = c.head_dim
        width, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, c.hidden_size, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x, cos, sin, mask):
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        q = rotate(q, cos, sin) * self.head_dim**-0.5
        q, k = q.to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        # The heads that share keys form one product: faster here than PyTorch's attention.
        q, k, v = (t.reshape(batch * k.shape[1], -1, self.head_dim) for t in (q, k, v))
        scores = torch.bmm(q, k.mT).view(len(q), -1, length, length) + mask.to(v.dtype)
        y = torch.bmm(scores.softmax(-1, dtype=v.dtype).flatten(1, 2), v)
        return self.o_proj(y.view(batch, -1, length, self.head_dim).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """Router and experts; `balance` is the loss of the last forward, `load` its choices."""

    def __init__(self, c):
        super().__init__()
        self.topk = c.num_experts_per_tok
        self.gate = nn.Linear(c.hidden_size, c.num_experts, bias=False)
        inner = c.moe_intermediate_size
        self.gate_up = nn.Parameter(torch.empty(c.num_experts, 2 * inner, c.hidden_size))
        self.down = nn.Parameter(torch.empty(c.num_experts, c.hidden_size, inner))

    def route(self, x):
        """The choices [tokens, K] and their weights, of sum 1. Even load has balance loss 1."""
        with torch.autocast("cpu", enabled=False):
            probs = self.gate(x.float()).softmax(-1)
        weights, chosen = probs.topk(self.topk, dim=-1)
        num_experts = probs.shape[-1]
        self.load = torch.bincount(chosen.flatten(), minlength=num_experts)
        share = self.load / chosen.numel()
        self.balance = num_experts * (share * probs.mean(0)).sum()
        return chosen, weights / weights.sum(-1, keepdim=True)

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        chosen, weights = self.route(x)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        tokens, places, sizes = groups(chosen, self.load)
        rows = x.to(dtype).index_select(0, tokens).split(sizes)
        gate_up, down = self.gate_up.to(dtype).unbind(), self.down.to(dtype).unbind()
        gate, up = torch.cat([F.linear(r, w) for r, w in zip(rows, gate_up)]).chunk(2, -1)
        inner = (F.silu(gate) * up).split(sizes)
        out = torch.cat([F.linear(r, w) for r, w in zip(inner, down)])
        out = out.index_select(0, places).view(-1, self.topk, shape[-1])
        return (out * weights.to(dtype)[..., None]).sum(1).view(shape)


def groups(chosen, load):
    """Where the choices [tokens, K] lie when sorted by expert, of which each has `load` rows.

    Each group is filled up to a multiple of 64 rows, since products of ever new shapes are slow.
    Returns the token of each row, the row of each choice, and the sizes of the groups.
    """
    sizes = (load + 63) // 64 * 64
    order = chosen.flatten().argsort(stable=True)
    fill = (sizes - load).cumsum(0) - (sizes - load)  # rows of filling before each group
    rows = torch.arange(order.numel()) + fill[chosen.flatten()[order]]
    tokens = torch.zeros(int(sizes.sum()), dtype=torch.long).index_copy(
        0, rows, order // chosen.shape[1])
    return tokens, torch.empty_like(order).index_copy(0, order, rows), sizes.tolist()


class Layer(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Experts(c)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, *positions):
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), *positions))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Model(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.config = c
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)  # the output layer, too
        self.layers = nn.ModuleList(Layer(c, dropout) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        scale = (2 * c.num_hidden_layers) ** -0.5  # of what is added to the residual stream
        for name, p in self.named_parameters():
            if p.dim() > 1:
                residual = name.endswith(("o_proj.weight", "mlp.down"))
                nn.init.normal_(p, std=0.03 * (scale if residual else 1))

    def forward(self, tokens):
        """Logits [batch, tokens, vocabulary] of the tokens [batch, tokens]."""
        c = self.config
        length = tokens.shape[1]
        rates = c.rope_theta ** -(torch.arange(0, c.head_dim, 2) / c.head_dim)
        angles = torch.outer(torch.arange(length).float(), rates).repeat(1, 2)
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        return F.linear(self.norm(x), self.embed_tokens.weight)


# --- text and files ---


def train_tokenizer(texts, vocab_size):
    """A byte-level BPE: any text has tokens and comes back the same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer, texts):
    end = tokenizer.token_to_id(END)
    ids = [i for text in texts for i in (end, *tokenizer.encode(text).ids)]
    return torch.tensor(ids)


def expert_names(layer, experts):
    """Checkpoint names and tensors of a layer's experts: one by one, gate and up apart."""
    for e, (gate_up, down) in enumerate(zip(experts.gate_up, experts.down)):
        gate, up = gate_up.chunk(2)
        for part, tensor in (("gate", gate), ("up", up), ("down", down)):
            yield f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight", tensor


def export(model, tokenizer, folder):
    """Writes what `AutoModelForCausalLM.from_pretrained(folder)` reads, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": p for name, p in model.named_parameters() if p.dim() < 3}
    for i, layer in enumerate(model.layers):
        tensors.update(expert_names(i, layer.mlp))
    tensors = {name: t.detach().to(torch.bfloat16).contiguous() for name, t in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    end = tokenizer.token_to_id(END)
    config = asdict(model.config) | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16",
        "hidden_act": "silu", "norm_topk_prob": True, "tie_word_embeddings": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False,
        "intermediate_size": model.config.num_experts_per_tok * model.config.moe_intermediate_size,
        "bos_token_id": end, "eos_token_id": end, "pad_token_id": end,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END,
             "pad_token": END, "model_max_length": model.config.max_position_embeddings}
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n")


# --- training ---


def keep_memory():
    """Has glibc keep freed memory: else each step takes its large tensors anew from the system."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def autocast(args):
    return torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16")


@torch.no_grad()
def validate(model, tokens, args):
    """Mean loss in nats over all tokens, in windows that see nothing of each other."""
    model.eval()
    windows = tokens[: (len(tokens) - 1) // args.length * args.length + 1]
    inputs, targets = windows[:-1].view(-1, args.length), windows[1:].view(-1, args.length)
    total = 0.0
    for x, y in zip(inputs.split(args.batch), targets.split(args.batch)):
        with autocast(args):
            logits = model(x)
        total += F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="sum").item()
    model.train()
    return total / targets.numel()


def learning_rate(step, args):
    if step < args.warmup:
        return args.rate * (step + 1) / args.warmup
    progress = (step - args.warmup) / (args.schedule - args.warmup)
    return args.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model, args):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": args.decay},
              {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95), fused=True)


def train_step(model, optimizer, windows, rate, args):
    """One step on windows [batch, length + 1]; the loss of the text and of the balance."""
    with autocast(args):
        logits = model(windows[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
    balance = torch.stack([layer.mlp.balance for layer in model.layers]).mean()
    optimizer.zero_grad(set_to_none=True)
    (loss + args.balance * balance).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return loss.item(), balance.item()


def count_parameters(c, model):
    """(all, those one token uses): the others are the experts it is not sent to."""
    total = sum(p.numel() for p in model.parameters())
    expert = 3 * c.hidden_size * c.moe_intermediate_size * c.num_hidden_layers
    return total, total - expert * (c.num_experts - c.num_experts_per_tok)


def train(args):
    keep_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    train_texts, validation_texts = corpus.split(corpus.novels(args.cache))
    config = Config()
    tokenizer = train_tokenizer(train_texts, config.vocab_size)
    tokens, held_out = encode(tokenizer, train_texts), encode(tokenizer, validation_texts)
    bytes_per_token = sum(len(t.encode()) for t in validation_texts) / len(held_out)
    model = Model(config, args.dropout)
    total, active = count_parameters(config, model)
    print(f"{total} parameters, {active} for a token; {len(tokens)} tokens to train on, "
          f"{len(held_out)} to validate, {bytes_per_token:.3f} bytes each", flush=True)
    optimizer = make_optimizer(model, args)
    span = torch.arange(args.length + 1)
    wall, losses = time.time(), []
    for step in range(args.steps):
        starts = torch.randint(len(tokens) - args.length, (args.batch, 1))
        rate = learning_rate(step, args)
        losses.append(train_step(model, optimizer, tokens[starts + span], rate, args))
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            loss, balance = torch.tensor(losses).mean(0).tolist()
            losses.clear()
            held = validate(model, held_out, args)
            print(f"step {step + 1:5}  train {loss:.4f}  balance {balance:.3f}  validation "
                  f"{held:.4f} ({held / bytes_per_token / math.log(2):.4f} bits a byte)  "
                  f"{time.time() - wall:.0f} s, CPU {time.process_time():.0f} s", flush=True)
            export(model, tokenizer, Path(args.out))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", required=True, help="folder for the downloaded package")
    parser.add_argument("--out", default=str(Path(__file__).with_name("model")))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--schedule", type=int, default=2200,
                        help="steps over which the learning rate would fall to its end")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256, help="tokens of a window")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the balance loss")
    parser.add_argument("--every", type=int, default=200, help="steps between validations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
