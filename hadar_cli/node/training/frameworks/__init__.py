"""Trainers that have a loop of their own: Hugging Face's and Lightning's.

Imports ``node``, ``node.training``, ``node.training.checkpoints`` and ``node.training.misuse``, and
each module its framework. Nothing else of hadar may enter, and nothing of hadar imports these but
``hadar_cli/__init__.py``, for scripts.
"""
