"""Finish-time fairness, as Themis and Shockwave count it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hadar_cli.core.arrays import FloatArray


def finish_time_fairness(
    jcts: Sequence[float], alone_s: FloatArray, devices: int
) -> FloatArray | None:
    """ρ of each job: its completion time over what it needs alone, times the jobs to a device.

    Above 1 it would have been better off with an equal share of the cluster. None without jobs.
    """
    if not len(jcts):
        return None
    crowd = max(1.0, len(jcts) / max(1, devices))
    rho: FloatArray = np.array(jcts) / np.maximum(crowd * alone_s, 1e-9)
    return rho


def by_user(rhos: FloatArray, users: Sequence[str]) -> dict[str, float]:
    """The mean ρ of each user's jobs; jobs of nobody are left out."""
    names = sorted(set(users) - {""})
    return {name: float(rhos[[user == name for user in users]].mean()) for name in names}
