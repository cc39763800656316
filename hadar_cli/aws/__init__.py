"""Instances of EC2 as nodes: found by tag, or started for a run and ended with it.

Imports ``core``, ``core.measures``, ``nodes``, ``node`` and ``runs``. boto3, an extra (hadar[aws]),
is opened in account.py alone. No host key is trusted that the instance's own console does not show;
nothing is ended that was not started here. ``transports`` hands over SSH; it is not imported.
"""
