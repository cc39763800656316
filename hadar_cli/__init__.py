"""hadar: train a batch of models on mismatched GPU machines over plain SSH.

This file also travels to the nodes, beside ``node/`` and ``workloads/`` only, so it imports
nothing: what training scripts want of it is loaded on first use, because it pulls in torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.3.0"
__all__ = ["huggingface", "lightning", "training"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import_module("hadar_cli.node.network").hide_torch_variables()
    if name == "training":
        return import_module("hadar_cli.node.training.context").training
    if name in __all__:
        return import_module(f"hadar_cli.node.training.frameworks.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
