"""Faults injected, not hoped for: the real head over a simulated world in which all goes wrong."""
