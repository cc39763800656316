"""A session with one node: ``decisions`` says what to do, ``threads`` does it.

Imports ``core``, ``engine``, ``node`` and ``nodes``. Decisions know no thread, socket or clock, so
that the fault schedules of ``tests/faults`` run them as they are.
"""
