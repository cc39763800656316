"""Hadar, which gives whole jobs a gang of devices, and what every policy of gangs needs.

Imports ``core``, ``core.estimates`` and ``core.policies``. Pure like them: no I/O, clock or
randomness.
"""
