"""Instances of EC2 as nodes: found by tag, with their GPUs, prices and host keys.

Imports ``core``; boto3 in discovery.py alone, which is an extra: hadar[aws]. Starts nothing, stops
nothing, and trusts no host key that the instance's own console does not show.
"""
