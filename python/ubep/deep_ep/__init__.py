"""DeepEP's Python interface on CPU tensors, between processes of one host.

    import ubep.deep_ep as deep_ep      # or ubep.deep_ep.install(), then: import deep_ep

docs/deep_ep.md of the project says, call by call, what is the same, what differs, what is refused.
"""

import sys

import torch

from . import _event as utils
from ._config import Config
from ._event import EventHandle, EventOverlap
from .buffer import Buffer

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


__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "install", "topk_idx_t", "utils"]
