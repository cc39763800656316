"""A run's directory on the head: journal, checkpoints by hash, lock, requests, what is kept.

Imports ``core``, ``core.estimates``, ``core.measures``, ``engine``, ``weights``, ``node``,
``node.agent`` and ``typed``. Nothing here reaches a node.
"""
