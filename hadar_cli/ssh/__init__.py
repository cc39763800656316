"""Machines reached by SSH: endpoints, host keys, logins, connections, bulk transfers.

Imports ``core``, ``nodes``, ``node`` and ``node.agent``; fabric in link.py alone. A key that nobody
has vouched for is never accepted.
"""
