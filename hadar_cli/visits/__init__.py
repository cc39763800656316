"""Short visits to nodes outside a run: check, logs, clean, discovery.

Imports ``core``, ``nodes``, ``node``, ``runs``, ``transports`` and ``typed``. A visit trains
nothing.
"""
