"""hadar: train a batch of models on mismatched GPU machines over plain SSH.

This file also travels to the nodes, beside ``node/`` and ``workloads/`` only,
so it imports nothing; ``training`` is loaded on first use because it pulls in torch.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["training"]


def __getattr__(name: str) -> Any:
    if name == "training":
        from hadar_cli.node.training import training

        return training
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
