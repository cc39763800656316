"""The round loop, the job tracker, and the ports through which they reach the world.

Imports ``core``, ``core.estimates`` and ``core.policies``. It asks for everything else through its
ports; no file, process or network enters.
"""
