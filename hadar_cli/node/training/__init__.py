"""The API for training scripts.

Imports ``node``, ``node.training.checkpoints``, ``node.training.gangs``, ``node.training.misuse``,
and torch. Nothing of the head or of the agent may enter.
"""
