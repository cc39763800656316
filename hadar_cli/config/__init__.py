"""Reads what users write: the inventory and the mixes, strictly.

Imports ``core``, ``core.estimates``, ``project``, ``suggestions`` and the catalog of ``workloads``.
Nothing here reaches a node.
"""
