"""Reads what users write: the inventory and the mixes, strictly.

Imports ``core``, ``core.estimates``, ``project`` and the catalog of ``workloads``.
Nothing here reaches a node.
"""
