"""What a node is given before copies train there, code and data, and what they leave for the user.

Imports ``core``, ``engine``, ``project``, ``runs`` and ``nodes``. It speaks with nodes through
sessions that it is handed; it opens no connection.
"""
