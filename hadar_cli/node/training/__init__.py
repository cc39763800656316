"""The API for training scripts.

Imports ``node``, ``node.training.checkpoints`` and ``node.training.gangs``, and torch. Nothing of
the head or of the agent may enter.
"""
