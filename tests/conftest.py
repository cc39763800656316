"""What holds for all tests, however they are started.

Property tests try the same examples each time, so that a check tells of the change at hand.

``HYPOTHESIS_PROFILE=explore pytest tests/property`` looks further, with new examples every time.
"""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: files that take minutes, most of them waiting: begun last, all others would wait for them
_LONG = (
    "tests/security/test_hostile_node.py",
    "tests/security/test_odd_results.py",
    "tests/integration/test_try.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))
