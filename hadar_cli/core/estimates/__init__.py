"""What can be reckoned beside measuring: speeds, bounds, what forking and merging are worth.

Imports ``core``. Pure like it: no I/O, clock or randomness.
"""
