"""The head's hand on a node: agent, supervisors, the nursery, transfers.

Imports ``node``, ``node.files``, ``node.gpus`` and, in the nursery's forks, ``node.training``.
Standard library only, and nothing of the head.
"""
