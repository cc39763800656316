"""Machines that a program of this computer gets commands to, over that program's pipes.

Imports ``core`` and ``nodes``. Slurm's commands on this computer go this way, and into pods
``kubectl exec``.
"""
