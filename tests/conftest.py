"""Property tests try the same examples each time, so that a check tells of the change at hand.

``HYPOTHESIS_PROFILE=explore pytest tests/property`` looks further, with new examples every time.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
