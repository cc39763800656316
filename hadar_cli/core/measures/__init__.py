"""What a run came to: times, utilisation, history, the forecast and how far off it was.

Imports ``core`` and ``core.estimates``. Pure like them: no I/O, clock or randomness.
"""
