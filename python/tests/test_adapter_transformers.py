"""ubep.adapters.transformers against the modules of transformers as they are, in one process."""

import contextlib
import copy
import io
import os
import pathlib
import re
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", minversion="5", reason="transformers 5 is not installed")

import torch._dynamo  # noqa: E402,F401 - once, before ranks are forked
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: E402

import ubep  # noqa: E402
from ranks import job, run  # noqa: E402
from ubep.adapters.transformers import ShardedExperts, join_forward, parallelize, sharded_experts  # noqa: E402

torch.set_num_threads(1)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "tiny_moe" / "model"
SIZES = dict(vocab_size=64, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=16, max_position_embeddings=64, num_experts_per_tok=3)


def make_model(kind):
    """The same random weights on every rank."""
    torch.manual_seed(5)
    if kind == "mixtral":
        model = MixtralForCausalLM(MixtralConfig(num_local_experts=6, **SIZES))
    else:
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(num_experts=6, moe_intermediate_size=16, head_dim=6,
                                                   norm_topk_prob=True, **SIZES))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def tokens_for(rank, count):
    return torch.randint(0, 64, (1, count), generator=torch.Generator().manual_seed(rank))


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


def forward(bootstrap, kind, counts):
    model = make_model(kind)
    count = counts[bootstrap.rank]
    tokens = tokens_for(bootstrap.rank, count)
    with torch.no_grad():
        expected = model(tokens).logits if count else None
        exchange = parallelize(model, bootstrap, max_tokens=4, timeout=20)
        for turn in range(2):
            if count:
                close(model(tokens).logits, expected)
            else:
                join_forward(model)
    kept = [len(m.down_proj) for m in sharded_experts(model)]
    assert kept == [exchange.comm.num_local_experts] * 2
    return kept[0]


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("counts", [[9, 3], [5, 0, 11, 1]], ids=str)
def test_logits_are_those_of_the_whole_model(kind, counts):
    kept = run(len(counts), forward, kind, counts, limit=60)
    assert sum(kept) == 6


def block_gradients(bootstrap, kind, counts):
    model = make_model(kind)
    whole = model.model.layers[1].mlp
    g = torch.Generator().manual_seed(1)
    xs = [torch.randn(1, n, 24, generator=g) for n in counts]
    d_ys = [torch.randn(1, n, 24, generator=g) for n in counts]
    parts = []
    for x, d_y in zip(xs, d_ys):
        copied = copy.deepcopy(whole)
        x = x.clone().requires_grad_()
        y = copied(x)
        y.backward(d_y)
        parts.append((y.detach(), x.grad, copied.gate.weight.grad, copied.experts.gate_up_proj.grad,
                      copied.experts.down_proj.grad))
    exchange = parallelize(model, bootstrap, max_tokens=16, training=True, timeout=20)
    block, mine = model.model.layers[1].mlp, exchange.comm.local_experts
    x = xs[bootstrap.rank].clone().requires_grad_()
    for _ in range(2):
        y = block(x)
        y.backward(d_ys[bootstrap.rank])
    own = parts[bootstrap.rank]
    close(y.detach(), own[0])
    close(x.grad / 2, own[1])
    close(block.gate.weight.grad / 2, own[2])
    close(block.experts.gate_up_proj.grad / 2, sum(p[3] for p in parts)[mine])
    close(block.experts.down_proj.grad / 2, sum(p[4] for p in parts)[mine])
    assert block.experts.gate_up_proj.grad.abs().max() > 0


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("counts", [[7, 4], [5, 0, 9, 2]], ids=str)
def test_gradients_of_a_block_are_those_of_the_whole_block(kind, counts):
    run(len(counts), block_gradients, kind, counts, limit=60)


def training(bootstrap, kind):
    """A whole model's loss, through several blocks."""
    model = make_model(kind).train()
    grads = []
    for rank in range(bootstrap.size):
        copied = copy.deepcopy(model)
        tokens = tokens_for(rank, 6 + rank)
        copied(tokens, labels=tokens).loss.backward()
        grads.append({name: p.grad for name, p in copied.named_parameters()})
    exchange = parallelize(model, bootstrap, training=True, max_tokens=16, timeout=20)
    tokens = tokens_for(bootstrap.rank, 6 + bootstrap.rank)
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            close(parameter.grad, sum(g[name] for g in grads)[exchange.comm.local_experts])
        else:
            close(parameter.grad, grads[bootstrap.rank][name])


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_gradients_of_a_loss(kind):
    run(2, training, kind, limit=60)


NEW = 10
PROMPTS = ["The morning was fine, and", "She had never", "CHAPTER I. In which"]


def generated(bootstrap, with_prompt):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    wanted = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    inputs = tokenizer(PROMPTS[bootstrap.rank], return_tensors="pt")
    expected = model.generate(**inputs, **wanted)
    parallelize(model, bootstrap, max_tokens=4, timeout=20)
    if bootstrap.rank < with_prompt:
        assert torch.equal(model.generate(**inputs, **wanted), expected)
    else:
        for _ in range(NEW):
            join_forward(model)
    return expected.shape[1]


@pytest.mark.parametrize("size,with_prompt", [(2, 2), (3, 2)])
def test_generate_gives_the_same_tokens(size, with_prompt):
    assert len(set(run(size, generated, with_prompt, limit=90))) > 1  # prompts of several lengths


def bf16(bootstrap):
    model = make_model("qwen3_moe").to(torch.bfloat16)
    tokens = tokens_for(bootstrap.rank, 7)
    with torch.no_grad():
        expected = model(tokens).logits.float()
        parallelize(model, bootstrap, max_tokens=8, timeout=20)
        got = model(tokens).logits.float()
    assert (got - expected).abs().max() < 0.03 * expected.abs().max()


def test_bfloat16():
    run(2, bf16)


def test_what_is_refused():
    alone = lambda: ubep.local(0, 1, job())
    with pytest.raises(ubep.InvalidArgument, match="no module with gate_up_proj"):
        parallelize(torch.nn.Linear(2, 2), alone())
    model = make_model("mixtral")
    with pytest.raises(ubep.InvalidArgument, match="layout is given"):
        parallelize(model, alone(), layout="rank_major")
    with pytest.raises(ubep.InvalidArgument, match="comm has 5 experts, expected 6"):
        parallelize(model, ubep.init(alone(), num_experts=5, max_hidden=24))
    model.model.layers[1].mlp.experts.has_bias = True
    with pytest.raises(ubep.InvalidArgument, match="layers.1.mlp.experts.has_bias is True, expected False"):
        parallelize(model, alone())
    assert not any(isinstance(m, ShardedExperts) for m in model.modules())


def of_a_communicator(bootstrap):
    comm = ubep.init(bootstrap, num_experts=6, max_hidden=24, max_dtype="fp32", max_tokens=8, max_topk=3,
                     expert_rank=[1, 0, 1, 1, 0, 1], timeout=20)
    model = make_model("mixtral")
    tokens = tokens_for(comm.rank, 8)
    with torch.no_grad():
        expected = model(tokens).logits
        assert parallelize(model, comm).comm is comm
        close(model(tokens).logits, expected)
    names = {name for name, _ in model.named_parameters() if "experts" in name}
    assert names == {f"model.layers.{i}.mlp.experts.{n}_proj" for i in (0, 1) for n in ("gate_up", "down")}


def test_a_communicator_with_a_map_of_experts():
    run(2, of_a_communicator)


def example(bootstrap, name, code):
    os.environ.update(UBEP_RANK=str(bootstrap.rank), UBEP_WORLD_SIZE=str(bootstrap.size), UBEP_JOB=name)
    sys.argv = ["generate.py", str(MODEL), PROMPTS[bootstrap.rank]]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    return printed.getvalue()


def test_the_example_of_the_document():
    text = (ROOT / "docs" / "adapters.md").read_text()
    code = re.search(r"^## transformers\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    for prompt, printed in zip(PROMPTS, run(2, example, job(), code, limit=60)):
        assert prompt in printed and len(printed) > len(prompt) + 8
