"""DeepEP's Python interface on CPU tensors, between processes of one host.

    import ubep.deep_ep as deep_ep      # or ubep.deep_ep.install(), then: import deep_ep

docs/deep_ep.md of the project says, call by call, what is the same, what differs, what is refused.
"""

import sys
from typing import Any

import torch

from . import _event as utils
from ._config import Config
from ._event import EventHandle, EventOverlap
from .buffer import Buffer
from .elastic import ElasticBuffer, EPHandle

__version__ = "2.1.0"
topk_idx_t = torch.int64


def install() -> None:
    """Makes `import deep_ep`, also of its `utils` and `buffer`, give this package. Raises ImportError
    when another deep_ep has been imported."""
    found = sys.modules.get("deep_ep")
    this = sys.modules[__name__]
    if found is not None and found is not this:
        raise ImportError(f"another deep_ep has been imported: {getattr(found, '__file__', found)}")
    sys.modules.update({"deep_ep": this, "deep_ep.utils": utils, "deep_ep.buffer": sys.modules[Buffer.__module__]})


def get_physical_domain_size(group: Any) -> "tuple[int, int]":
    """(nodes, ranks of one): (1, all)."""
    return 1, group.size()


def get_logical_domain_size(group: Any, allow_hybrid_mode: bool = True) -> "tuple[int, int]":
    """(1, all ranks)."""
    return 1, group.size()


__all__ = ["Buffer", "Config", "ElasticBuffer", "EPHandle", "EventHandle", "EventOverlap", "get_logical_domain_size",
           "get_physical_domain_size", "install", "topk_idx_t", "utils"]
