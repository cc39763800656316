"""Commands on machines: the inventory, check, profile, trust, clean.

Imports what ``cli`` may. No command imports another.
"""
