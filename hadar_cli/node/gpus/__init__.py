"""A node's GPUs: what its tools tell of them, who holds them, how a worker is shown its own.

Imports ``node``. Standard library only, and nothing of the head.
"""
