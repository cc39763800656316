"""Gangs: the members of one take shares of every mini-batch and make the same update.

Imports ``node``, and torch. ``node.training`` imports these, never the other way round.
"""
