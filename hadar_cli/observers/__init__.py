"""Where people look beside hadar: TensorBoard, W&B and MLflow are given a run's curves.

Imports ``core``, ``core.measures``, ``engine`` and ``runs``. Everything here reads journals, in
processes of its own: no sink can hold up a head. A sink's library is an extra, imported in its file
alone.
"""
