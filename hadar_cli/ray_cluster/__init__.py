"""Nodes of a Ray cluster: a keeper on each, which is an actor, and streams through a bridge.

Imports ``core`` and ``nodes``. ``keeper`` runs in actors, sent as text: standard library only.
``bridge`` is a process of its own; with ``cluster``, its part, it alone imports Ray: what a cluster
sends is unpickled there and never in the head, and Ray ends the bridge when the cluster is gone.
"""
