"""What travels to a node: which folder is a script's project, and which of its files go.

Imports ``core``, ``node`` and ``node.agent``. It decides once for `try`, local runs and SSH, and
sends nothing.
"""
