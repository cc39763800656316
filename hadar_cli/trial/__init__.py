"""Short real trainings outside a run: ``hadar try`` a script, measure how fast devices are.

Imports ``core``, ``core.policies``, ``engine``, ``node``, ``project``, ``runs``, ``weights`` and
``assembly``, which opens the nodes. No run of the user's may be touched.
"""
