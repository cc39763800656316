"""Who trains what: the port that policies implement, their registry, and HadarE.

Imports ``core`` and ``core.estimates``. A policy returns data and touches nothing; it knows no
other policy.
"""
