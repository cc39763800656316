"""Runs on paper: an executor with a virtual clock, traces, fitted costs, forecasts.

Imports ``core``, ``core.estimates``, ``core.measures``, ``core.policies``, ``core.policies.gangs``,
``engine``, ``policies`` and ``runs``. Nothing here reaches a node.
"""
