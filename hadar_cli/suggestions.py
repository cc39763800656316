"""Points of a sweep that Optuna suggests, from what came of those before (ask and tell).

The study is built anew for every question, of the trials in the order of their numbers, with a
seed of its own: the same question has the same answer, whoever asks and however often. Only this
file imports Optuna, which is an extra.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hadar_cli.core.model import Search, Value
from hadar_cli.errors import InputError

_DIGITS = 4  # of suggested numbers: names and tables stay readable


def suggest(
    search: Search, higher_is_better: bool, told: Sequence[tuple[Mapping[str, Value], float | None]]
) -> list[dict[str, Value]]:
    """The next points, as many as are tried at once; None is told of what came to nothing."""
    optuna = _load()
    count = min(search.at_once, search.trials - len(told))
    space = {name: _distribution(optuna, *how) for name, how in search.space.items()}
    seed = (search.seed + len(told)) % 2**32
    # Those that are tried at once should not be alike, though nothing is known of them yet.
    sampler = optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=search.at_once, constant_liar=True
    )
    study = optuna.create_study(
        direction="maximize" if higher_is_better else "minimize", sampler=sampler
    )
    states = optuna.trial.TrialState
    for params, value in told:
        is_known = value is not None and math.isfinite(value)
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(params),
                distributions=space,
                value=value if is_known else None,
                state=states.COMPLETE if is_known else states.FAIL,
            )
        )
    asked = [study.ask(space) for _ in range(count)]
    return [
        {name: _rounded(trial.params[name], *search.space[name]) for name in space}
        for trial in asked
    ]


def _distribution(optuna: Any, kind: str, ends: Sequence[Value]) -> Any:
    if kind == "choice":
        return optuna.distributions.CategoricalDistribution(ends)
    low, high = (float(end) for end in ends)
    if kind == "int":
        return optuna.distributions.IntDistribution(math.ceil(low), math.floor(high))
    return optuna.distributions.FloatDistribution(low, high, log=kind == "log")


def _rounded(value: Value, kind: str, ends: Sequence[Value]) -> Value:
    if kind in ("choice", "int") or not isinstance(value, float):
        return value
    low, high = (float(end) for end in ends)
    return min(max(float(f"{value:.{_DIGITS}g}"), low), high)


def _load() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "the sweep wants Optuna's suggestions, and Optuna is not installed here",
            field="optuna",
            fix="pip install 'hadar[optuna]', or leave out 'optuna' to draw at random",
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
