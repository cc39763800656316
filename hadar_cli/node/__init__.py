"""What runs on a node, and the contract between head and node.

Imports nothing of the rest of hadar. It travels to the nodes; nothing of the head may enter.
"""
