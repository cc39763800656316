"""Policies that Hadar is compared with: Gavel, Tiresias, YARN's capacity scheduler.

Imports ``core``, ``core.estimates``, ``core.policies`` and ``core.policies.gangs``. Pure like them:
no I/O, clock or randomness.
"""
