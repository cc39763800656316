"""Where people look beside hadar: TensorBoard, W&B and MLflow get curves, others a notification.

Imports ``core``, ``core.measures``, ``engine``, ``report`` and ``runs``. Sinks are written to by
processes that read journals, notifications are sent by a thread: nobody can hold up a head. A
sink's library is an extra, imported in its file alone.
"""
