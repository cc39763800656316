"""What a run is expected to take, and how far off that was: records and sums, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# How far a forecast's TTD typically is off, by the share of the work whose speed was measured.
# The formula's 40 % is its median error over Gavel's table, rounded up (see core/formula.py).
FORMULA_ERROR = 0.4
MEASURED_ERROR = 0.1


@dataclass(frozen=True, slots=True)
class Forecast:
    """Stored with the run at its start. ``at_s`` is the run's clock when it was made."""

    ttd_s: float
    jct_s: Mapping[str, float]  # by the job's name
    lower_bound_s: float | None
    basis: str  # what it rests on, in words
    measured_share: float = 0.0  # of the training whose speed was measured, not estimated
    at_s: float = 0.0

    @property
    def typical_error(self) -> float:
        """The share of the time still to come by which forecasts like this one are off."""
        return FORMULA_ERROR + self.measured_share * (MEASURED_ERROR - FORMULA_ERROR)

    @property
    def caution(self) -> str:
        """How far to believe it, in words."""
        return f"typically right to ± {100 * self.typical_error:.0f} %: {self.basis}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A forecast beside what happened; errors are shares of what happened, + for too long."""

    when: str
    forecast: Forecast
    ttd_s: float | None  # of the run; None until it has finished
    ttd_error: float | None
    jct_errors: Mapping[str, float]


def judge(
    when: str, forecast: Forecast, ttd_s: float | None, jct_s: Mapping[str, float]
) -> Verdict:
    """Holds a forecast against the run's TTD and the JCTs of the jobs that are done."""
    errors = {
        name: forecast_error(expected_s, jct_s[name])
        for name, expected_s in forecast.jct_s.items()
        if jct_s.get(name)
    }
    error = forecast_error(forecast.ttd_s, ttd_s) if ttd_s else None
    return Verdict(when, forecast, ttd_s, error, errors)


def forecast_error(expected_s: float, happened_s: float) -> float:
    """0.1: the forecast was 10 % too long; −0.1: the run took longer than forecast."""
    return expected_s / happened_s - 1
