"""The sampler of a search. Pure: a study is built anew from the trials, and Optuna asked for one more.

The seed of a trial is made of the search's seed and the trial's number, so asking again gives the same trial.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from .field_types import Scalar
from .matrix import short_name
from .search_section import SearchConfig

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

_DIGITS: Final = 4
"""Significant digits of a sampled number: more would only be hard to read."""
_TRIES: Final = 50
"""Draws for a trial that is neither a repetition nor contradictory; then the space counts as exhausted."""


class TrialOutcome(Enum):
    """The outcome of a trial for its sampler: the name of its state in Optuna."""

    OPEN = "RUNNING"
    MEASURED = "COMPLETE"
    PRUNED = "PRUNED"
    INFEASIBLE = "INFEASIBLE"
    """It cannot be trained, or exceeds a bound: complete for a sampler, with a constraint that marks it."""
    FAILED = "FAIL"
    """It says nothing about its parameters."""


@dataclass(frozen=True)
class Trial:
    """A trial of a search, with its values by short name.

    Attributes:
        values: Of the objectives, if measured.
        rungs: Value of the objective by step, of halving.
        excess: By how much it exceeds a bound, as a share of it; 1 if it cannot be trained.
    """

    number: int
    params: Mapping[str, Any]
    outcome: TrialOutcome
    values: tuple[float, ...] = ()
    rungs: Mapping[int, float] = field(default_factory=dict)
    excess: float = 0.0


def missing(search: SearchConfig) -> str:
    """Return the package that a search needs and that is not installed; "" for none."""
    needed = {"optuna": "optuna", "scikit-learn": "sklearn"} | ({"torch": "torch"} if search.sampler == "gp" else {})
    return next((name for name, module in needed.items() if importlib.util.find_spec(module) is None), "")


def ask(
    search: SearchConfig, trials: Sequence[Trial], number: int, accepts: Callable[[dict[str, Scalar]], bool]
) -> dict[str, Scalar] | None:
    """Return accepted parameters of a trial, by short name; None if no further combination is to be found."""
    known = [trial.params for trial in trials]
    for again in range(_TRIES):
        params = _sampled(search, trials, number, again)
        if params not in known and accepts(params):
            return params
    return None


def study_of(search: SearchConfig, trials: Sequence[Trial], sampler: Any = None) -> optuna.Study:
    """Return an in-memory study of Optuna with these trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    directions: list[Literal["maximize", "minimize"]]
    directions = ["maximize" if more else "minimize" for more in search.maximize]
    study = optuna.create_study(directions=directions, sampler=sampler)
    space, worst = _space(search), _worst(search, trials)
    for trial in trials:
        with suppress(ValueError):  # the spec has another range now
            study.add_trial(_frozen(trial, space, worst))
    return study


def _frozen(trial: Trial, space: Mapping[str, BaseDistribution], worst: Sequence[float]) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState, create_trial

    outcome = trial.outcome
    own: dict[str, Any] = {"intermediate_values": dict(trial.rungs)}
    values = worst if outcome is TrialOutcome.INFEASIBLE else trial.values
    if outcome in (TrialOutcome.MEASURED, TrialOutcome.INFEASIBLE):
        state = TrialState.COMPLETE
        own |= {"values": list(values), "constraints": {"bounds": trial.excess}}
    else:
        state = TrialState[outcome.value]
    return create_trial(state=state, params=dict(trial.params), distributions=dict(space), **own)


def _worst(search: SearchConfig, trials: Sequence[Trial]) -> list[float]:
    measured = [trial.values for trial in trials if trial.values]
    columns = zip(*measured, strict=True) if measured else [(0.0,)] * len(search.objective)
    return [min(values) if more else max(values) for more, values in zip(search.maximize, columns, strict=True)]


def _space(search: SearchConfig) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    make: dict[str, Callable[[Any], BaseDistribution]] = {
        "choice": CategoricalDistribution,
        "int": lambda ends: IntDistribution(*ends),
        "uniform": lambda ends: FloatDistribution(*ends),
        "log_uniform": lambda ends: FloatDistribution(ends[0], ends[1], log=True),
    }
    kinds = {short_name(key): search.distribution(key) for key in search.parameters}
    return {name: make[kind](given) for name, (kind, given) in kinds.items()}


def _sampled(search: SearchConfig, trials: Sequence[Trial], number: int, again: int) -> dict[str, Scalar]:
    from optuna import samplers

    digest = hashlib.sha256(f"{search.seed}/{number}/{again}".encode()).digest()
    seed, space = int.from_bytes(digest[:4], "big"), _space(search)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on what is experimental, and for whom the sampler is meant
        sampler: samplers.BaseSampler = samplers.RandomSampler(seed=seed)
        if not again and search.sampler == "tpe":
            sampler = samplers.TPESampler(seed=seed, multivariate=True)
        elif not again and search.sampler == "gp":
            sampler = samplers.GPSampler(seed=seed)
        study = study_of(search, trials, sampler)
        values = study.ask(space).params
    for key in search.parameters:
        kind, given = search.distribution(key)
        if kind in ("uniform", "log_uniform"):
            value = float(f"{values[short_name(key)]:.{_DIGITS}g}")
            values[short_name(key)] = min(max(value, given[0]), given[1])
    return {name: values[name] for name in space}


def best_first(search: SearchConfig, trials: Sequence[Trial]) -> list[Trial]:
    """Return the measured trials, best first; with several objectives, the trials that the fewest others beat."""
    measured = [trial for trial in trials if trial.outcome is TrialOutcome.MEASURED]
    return sorted(measured, key=lambda trial: (_beaten(search, trial, measured), _costs(search, trial)))


def unbeaten(search: SearchConfig, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that no other equals in all objectives and beats in any."""
    return [trial for trial in trials if not _beaten(search, trial, trials)]


def _beaten(search: SearchConfig, trial: Trial, trials: Sequence[Trial]) -> int:
    own, others = _costs(search, trial), (_costs(search, other) for other in trials)
    return sum(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in others)


def _costs(search: SearchConfig, trial: Trial) -> list[float]:
    return [-value if more else value for more, value in zip(search.maximize, trial.values, strict=True)]
