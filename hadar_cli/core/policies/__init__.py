"""Scheduling policies, each a small class with typed fields in the registry."""
