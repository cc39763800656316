"""Nodes of a Ray cluster: a keeper on each, which is an actor, and streams through a bridge.

Imports ``core`` and ``nodes``. ``keeper`` runs in actors, sent as text: standard library only.
``bridge`` is a process of its own, and the only file that imports Ray: what a cluster sends is
unpickled there and never in the head, and it is the bridge that Ray ends when the cluster is gone.
"""
