"""The pure heart: nouns, steps, events and the state that they add up to.

Imports nothing but errors. No I/O, clock, randomness or torch may enter.
"""
