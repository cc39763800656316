"""Commands that study: simulate, replay, policies, try.

Imports what ``cli`` may. No command imports another.
"""
