"""ubep.adapters.vllm under vLLM's own modular kernel.

Skipped unless UBEP_VLLM is the folder of its sources (0.33 was tried). Two of its files are run, the
modular kernel and its weighting; what they import of the rest is stubbed, since it wants a build.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from math import prod
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if "UBEP_VLLM" not in os.environ:
    pytest.skip("UBEP_VLLM is not set: it is the folder of the sources of vLLM", allow_module_level=True)

import torch._dynamo  # noqa: E402,F401 - once, before ranks are forked

import standin_vllm as standin  # noqa: E402
from ranks import run  # noqa: E402
from test_adapter_vllm import case, close, expert_weights, make_comm  # noqa: E402
from ubep.adapters.vllm import PrepareAndFinalize  # noqa: E402

MOE = "vllm.model_executor.layers.fused_moe."
REAL = (MOE + "modular_kernel", MOE + "topk_weight_and_reduce")
KNOWN = {
    "vllm.logger": dict(init_logger=lambda name: None),
    "vllm.platforms": dict(current_platform=SimpleNamespace(
        is_cpu=lambda: True, is_rocm=lambda: False, is_cuda=lambda: False)),
    "vllm.v1.worker.ubatching": dict(dbo_enabled=lambda: False, dbo_maybe_run_recv_hook=lambda: None),
    "vllm.utils.torch_utils": dict(PIN_MEMORY=False),
    MOE + "activation": dict(MoEActivation=SimpleNamespace(SILU="silu")),
    MOE + "utils": dict(_resize_cache=lambda x, shape: x.flatten()[: prod(shape)].view(*shape)),
}


class Stub(types.ModuleType):
    """A module that has every name: those of KNOWN, else an empty class."""

    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = KNOWN.get(self.__name__, {}).get(name) or type(name, (), {})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name in REAL:
            file = os.path.join(os.environ["UBEP_VLLM"], *name.split(".")) + ".py"
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] == "vllm":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
mk, weighting = (importlib.import_module(name) for name in REAL)


class Ours(PrepareAndFinalize, mk.FusedMoEPrepareAndFinalizeModular):
    """As docs/adapters.md says."""


class Experts(mk.FusedMoEExpertsModular):
    """Experts of the stand-in, as the kernel calls its own."""

    def __init__(self, kind):
        self.kind = kind
        self.moe_config = SimpleNamespace(moe_parallel_config=None)
        self.quant_config = SimpleNamespace(quant_dtype=None, a2_scale=None)

    def workspace_shapes(self, M, N, K, topk, *rest):
        return (0,), (0,), (M, K) if self.kind == "fused" else (M, topk, K)

    def finalize_weight_and_reduce_impl(self):
        fused = self.kind == "fused"
        return weighting.TopKWeightAndReduceNoOP() if fused else weighting.TopKWeightAndReduceDelegate()

    def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, apply_router_weight_on_input, **rest):
        if self.kind == "fused":
            standin.fused(hidden_states, topk_ids, topk_weights, w1, w2, apply_router_weight_on_input, output)
        else:
            output.copy_(standin.unfused(hidden_states, topk_ids, w1, w2))


Experts.__abstractmethods__ = frozenset()  # the rest tells which devices and formats it is for


def layer(bootstrap, counts, kind, options):
    comm = make_comm(bootstrap)
    w1, w2 = expert_weights()
    mine = comm.local_experts
    pf = Ours(comm, activation_format=mk.FusedMoEActivationFormat.Standard, **options)
    kernel = mk.FusedMoEKernelModularImpl(pf, Experts(kind))
    for turn in range(3):
        x, weights, ids = case(comm.rank + 10 * turn, counts[(comm.rank + turn) % comm.size])
        got = kernel.apply(x, w1[mine], w2[mine], topk_ids=ids.to(pf.topk_indices_dtype()), topk_weights=weights,
                           global_num_experts=comm.num_experts)
        close(got, standin.dense(x, weights, ids, w1, w2))


@pytest.mark.parametrize("kind", ["fused", "unfused"])
@pytest.mark.parametrize("options", [{}, dict(topk1=True)], ids=str)
@pytest.mark.parametrize("counts", [[9, 4], [8, 8], [5, 0, 13, 1]], ids=str)
def test_the_layer_is_the_dense_one(counts, options, kind):
    run(len(counts), layer, counts, kind, options, limit=60)
