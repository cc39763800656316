"""``hadar selftest``: tries for real, on the user's machines, what a run relies on.

Imports ``core``, ``runs``, ``visits``, ``trial``, ``assembly`` and ``workloads``.
It leaves no run on the nodes, and no run of the user's may be touched.
"""
