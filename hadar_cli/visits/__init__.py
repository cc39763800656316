"""Short visits to nodes outside a run: check, logs, clean, discovery.

Imports ``core``, ``nodes``, ``node``, ``runs`` and ``transports``. A visit trains nothing.
"""
