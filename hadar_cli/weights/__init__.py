"""Checkpoints as files: read strictly, judged, merged block by block.

Imports ``core`` and ``core.estimates``. Neither torch nor anything that unpickles may enter.
"""
