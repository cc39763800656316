"""What a script may do by hand and hadar cannot follow: seen while it trains, and refused.

Imports ``node``, ``node.training``, and torch. Nothing may enter that changes what is trained.
"""
