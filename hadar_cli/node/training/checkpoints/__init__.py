"""A script's state as a file: what of it travels, how it is rounded, what its model is.

Imports ``node``. Nothing of the loop or of its orders may enter.
"""
