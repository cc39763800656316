"""What a node keeps on its disk for jobs: working directories, data, packages, and what
they leave.

Imports nothing of the rest of hadar. Standard library only; it runs on nodes and, for local ones,
in the head.
"""
