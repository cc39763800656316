"""A node's GPUs: what its tools tell of them, whose turn it is, how a worker is shown its own.

Imports ``node``. Standard library only, and nothing of the head.
"""
