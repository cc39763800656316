"""Nodes that Slurm allots: requests, the queue, a keeper in each allocation, streams by srun.

Imports ``core``, ``nodes``, ``node`` and ``node.agent``. ``keeper`` and ``relay`` run on nodes,
sent as text: standard library only. Any transport may lead to the login node; none is imported.
"""
