"""The head's side of nodes: the executor, a session with each, the agent's client, the local node.

Imports ``core``, ``engine``, ``project``, ``runs``, ``nodes.session``, ``nodes.supply``, ``node``,
``node.agent``, ``node.files`` and ``typed``. SSH is next door.
"""
