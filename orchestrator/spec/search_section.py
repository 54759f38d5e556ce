"""The section `search` of a spec: parameters as distributions, and how to search them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from dscampaign.orchestrator.errors import did_you_mean

from .field_types import Hint, Positive, Real, Scalar, SpecSection, Whole
from .objective import HIGHER, LOWER, WORDS

RANGES: Final = ("uniform", "log_uniform", "int")
KINDS: Final = (*RANGES, "choice")
_FORMS: Final = "write {log_uniform: [1e-5, 1e-2]}, {uniform: [0, 1]}, {int: [1, 8]} or {choice: [zero1, zero2]}"

_NEEDS: Final = {
    "choice": "at least two values, finite and without structure: a strategy names several fields at once",
    "uniform": "two finite numbers, the lower first",
    "log_uniform": "two finite numbers, the lower first, with a lower end above 0",
    "int": "two whole numbers, the lower first",
}


def _distribution(value: Any) -> Any:
    if not isinstance(value, Mapping) or len(value) != 1 or not set(value) <= set(KINDS):
        raise Hint("is no distribution", _FORMS)
    [(kind, given)] = value.items()
    given = list(given) if isinstance(given, list | tuple) and _all_scalars(given) else []
    fits = len(given) > 1
    if kind != "choice":
        fits = len(given) == 2 and not any(isinstance(number, bool | str) for number in given)
        fits = fits and given[0] < given[1] and math.isfinite(float(given[1]) - given[0])
        fits = fits and (kind != "log_uniform" or given[0] > 0) and (kind != "int" or all(n == int(n) for n in given))
        given = [int(number) if kind == "int" else float(number) for number in given] if fits else []
    if not fits:
        raise Hint(f"{kind} needs {_NEEDS[kind]}", f"write {{{kind}: [{'A, B' if kind == 'choice' else 'LOW, HIGH'}]}}")
    return {kind: list(dict.fromkeys(given))}


def _all_scalars(values: Sequence[Any]) -> bool:
    return all(isinstance(v, Scalar) and not (isinstance(v, float) and not math.isfinite(v)) for v in values)


def _figure(name: str) -> str:
    known = (*WORDS, *LOWER, *HIGHER)
    if name not in known:
        raise Hint(
            f"{name} is no figure", did_you_mean(name, known, f"write {', '.join(WORDS)} or a column of conditions.csv")
        )
    return name


_Figure = Annotated[str, AfterValidator(_figure)]


class HalvingConfig(SpecSection):
    """Stop weak trials early ([ASHA](search.md#halving))."""

    model_config = ConfigDict(populate_by_name=True)

    first: Annotated[Positive, Field(alias="from")]
    """Steps of the first rung."""
    to: Positive
    """Steps of a whole trial."""
    factor: Annotated[Whole, Field(ge=2, le=16)] = 3
    """Each rung has n times the steps of the rung before, and the best of n trials reach it."""

    @model_validator(mode="after")
    def _grows(self) -> HalvingConfig:
        if self.to <= self.first:
            raise Hint(f"from {self.first} to {self.to} has no second rung", "write from: 200 and to: 20000")
        return self

    @property
    def rungs(self) -> tuple[int, ...]:
        """The steps of each rung; the last is a whole trial."""
        steps = [self.first]
        while steps[-1] * self.factor < self.to:
            steps.append(steps[-1] * self.factor)
        return (*steps, self.to)


class ConfirmConfig(SpecSection):
    """Train the best trials [again with other seeds](search.md#confirmation)."""

    top: Annotated[Whole, Field(ge=1, le=100)] = 3
    """Trials to train again."""
    repeats: Annotated[Whole, Field(ge=1, le=100)] = 3
    """Runs of each, with a seed that no trial had."""


class SearchConfig(SpecSection):
    """[A search](search.md): trials with sampled parameters instead of a matrix."""

    parameters: dict[str, Annotated[Any, AfterValidator(_distribution)]] = Field(min_length=1)
    """Distributions by field or placeholder: `{train.lr: {log_uniform: [1e-5, 1e-2]}}`; also `uniform`, `int` and
    `choice`."""
    sampler: Literal["random", "tpe", "gp"] = "tpe"
    """[Optuna](https://optuna.org)'s sampler: `random`, `tpe`, or `gp` (Gaussian process; needs torch)."""
    trials: Annotated[Whole, Field(ge=1, le=10_000)] = 50
    """Most trials."""
    parallel: Positive = 8
    """Most queued and running trials."""
    objective: Annotated[
        tuple[_Figure, ...],
        Field(min_length=1),
        BeforeValidator(lambda v: (v,) if isinstance(v, str) else v, json_schema_input_type=str | tuple[str, ...]),
    ] = ("loss",)
    """`loss`, `speed`, `memory`, `energy` or another [figure](search.md#objectives); a list searches their Pareto
    front."""
    bounds: dict[_Figure, Annotated[Real, Field(gt=0)]] = Field(default={})
    """Limits of other figures: `{mem_reserved_gb: 70}`. Beyond them a trial is infeasible."""
    budget: Annotated[Real, Field(gt=0)] | None = None
    """GPU-hours after which no trial is added or goes on; queued and running trials finish. Confirmation is extra."""
    seed: Annotated[Whole, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the sampler; trials themselves use `train.seed`."""
    halving: HalvingConfig | None = None
    """Stop weak trials early."""
    confirm: ConfirmConfig = ConfirmConfig()
    """Train the best again."""

    @model_validator(mode="after")
    def _fits(self) -> SearchConfig:
        names = [key.rpartition(".")[2] for key in self.parameters]
        if len(set(names)) < len(names):
            raise Hint("two parameters end in the same name", "search one of them")
        if self.halving and len(self.objective) > 1:
            raise Hint("halving compares by a single objective", "name one, or leave halving out")
        return self

    @property
    def maximize(self) -> tuple[bool, ...]:
        """Whether more is better, for each objective."""
        return tuple(WORDS.get(name, (name,))[0] in HIGHER for name in self.objective)

    def distribution(self, key: str) -> tuple[str, list[Any]]:
        """Return the kind of a parameter's distribution, and its values."""
        [(kind, given)] = self.parameters[key].items()
        return kind, given
