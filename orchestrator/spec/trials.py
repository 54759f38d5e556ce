"""The runs of a search: trials, and confirmations of the best. Pure, but for the import of Optuna."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from dscampaign.db.states import Stage
from dscampaign.orchestrator.errors import Finding, InvalidSpec

from .expand import Repeat, Run, SharedSections, base_of, config_of
from .field_types import Scalar
from .matrix import AxisSetting, Point, Texts, field_path, key_findings, short_name
from .model import RunConfig, Spec
from .sampling import Trial, ask, missing
from .search_section import SearchConfig

CONFIRMS: Final = 1_000_000
"""Added to the number of a trial, it is the ordinal of the runs that confirm it."""

_PLACE: Final = ("search", "parameters")
_NAME: Final = re.compile(r"trial-(\d{4,6})(-confirm(?:-r([1-9]\d{0,5}))?)?")


def number_of(ordinal: int) -> int:
    """Return the number of the trial of a run with this ordinal."""
    return ordinal % CONFIRMS


@dataclass(frozen=True)
class TrialTemplate:
    """The parts of a campaign's trials: the configuration that all share, the search, and the GPUs of this machine."""

    base: Mapping[str, Any]
    search: SearchConfig
    local_gpus: int

    @classmethod
    def of(cls, spec: Spec, local_gpus: int) -> Self:
        """Return the template of a spec with a search."""
        assert spec.search is not None
        return cls(base_of(spec, mode="json"), spec.search, local_gpus)

    @classmethod
    def read(cls, document: Mapping[str, Any], local_gpus: int) -> Self:
        """Return the template that `document` has written."""
        return cls(document["base"], SearchConfig.model_validate(document["section"]), local_gpus)

    @property
    def document(self) -> dict[str, Any]:
        """The same for the store."""
        return {"base": dict(self.base), "section": self.search.model_dump(mode="json", by_alias=True)}

    @property
    def rungs(self) -> tuple[int | None, ...]:
        """The steps at which trials are compared; None for the spec's."""
        return self.search.halving.rungs if self.search.halving else (None,)

    def trial(self, number: int, params: Mapping[str, Any], steps: int | None = None) -> Run:
        """Return the run of a trial, to so many steps of its rungs, by default the first; raise InvalidSpec.

        Its digest is that of the first rung: it goes on from its checkpoint.
        """
        name = f"trial-{number:04}"
        first = self._run(name, params, self.rungs[0], Stage.TRIAL)
        if steps not in (None, first.target_step) and self.search.halving:
            first = replace(self._run(name, params, steps, Stage.TRIAL), config_hash=first.config_hash)
        return replace(first, ordinal=number)

    def confirmation(self, number: int, params: Mapping[str, Any], repeat: int) -> Run:
        """Return a run that confirms a trial, with a seed that no trial has."""
        name = f"trial-{number:04}-confirm" + (f"-r{repeat}" if repeat else "")
        return replace(self._run(name, params, self.rungs[-1], Stage.FULL, repeat), ordinal=CONFIRMS + number)

    def again(self, name: str, params: Mapping[str, Any], steps: int | None) -> Run | None:
        """Return the trial or confirmation of this name, to so many steps; None if this search cannot have it."""
        named = _NAME.fullmatch(name)
        if named is None or set(params) != {short_name(key) for key in self.search.parameters}:
            return None
        number = int(named[1])
        with suppress(InvalidSpec):
            confirmed = self.confirmation(number, params, int(named[3] or 0)) if named[2] else None
            run = confirmed or self.trial(number, params, steps)
            return run if run.name == name else None
        return None

    def next_trial(self, trials: Sequence[Trial], number: int) -> Run | None:
        """Return the trial of this number, given the earlier trials; None if the space is exhausted."""
        made: list[Run] = []

        def accepts(params: dict[str, Scalar]) -> bool:
            try:
                made.append(self.trial(number, params))
            except InvalidSpec:
                return False
            return True

        return made[-1] if ask(self.search, trials, number, accepts) else None

    def _run(
        self, name: str, params: Mapping[str, Any], steps: int | None, stage: Stage, repeat: int | None = None
    ) -> Run:
        point = point_of(self.search, params)
        config = config_of(self._base(steps, repeat is not None), point, self.local_gpus, SharedSections(), {})
        return Repeat(config, repeat or 0, self.local_gpus).run(point, stage, {}, name)

    def _base(self, steps: int | None, confirms: bool) -> dict[str, Any]:
        train = dict(self.base.get("train", {}))
        if steps is not None:
            last = self.rungs[-1]
            train |= {"steps": steps, "checkpoint_every": train.get("checkpoint_every") or last}
            if self.base.get("command") or train.get("schedule") != "constant":
                train["schedule_steps"] = last
        if confirms:
            train["seed"] = RunConfig.model_validate({"train": train}).train.seed + 1
        return {**self.base, "train": train}


def point_of(search: SearchConfig, params: Mapping[str, Any]) -> Point:
    """Return the point of a trial with these values, by short name."""
    keys = [key for key in search.parameters if short_name(key) in params]
    settings = (AxisSetting(key, field_path(key), params[short_name(key)], (*_PLACE, key)) for key in keys)
    return Point(tuple(settings))


def first_trial(spec: Spec, local_gpus: int) -> Run:
    """Return the first trial of a spec with a search; raise InvalidSpec if it has errors, or no draw can be trained."""
    search = spec.search
    assert search is not None
    findings = [*_beside(spec), *_parameters(spec, search)]
    if package := missing(search):
        hint = "pip install torch" if package == "torch" else "pip install 'dscampaign[search]'"
        findings.append(Finding((("search",),), f"needs {package}", hint))
    if findings:
        raise InvalidSpec(findings)
    template = TrialTemplate.of(spec, local_gpus)
    if run := template.next_trial([], 0):
        return run
    corner = {short_name(key): search.distribution(key)[1][0] for key in search.parameters}
    template.trial(0, corner)  # its errors are those of the spec
    hint = "the errors of each combination are those that a matrix of them would have"
    raise InvalidSpec([Finding((_PLACE,), "no combination can be trained", hint)])


def _beside(spec: Spec) -> Iterator[Finding]:
    hint = "write a fixed axis as a parameter, {choice: [...]}, or a second spec"
    if spec.matrix:
        yield Finding((("matrix",), ("search",)), "stands beside `search`", hint)
    if spec.repeats > 1:
        yield Finding((("repeats",),), "a search trains each trial once", "write search.confirm.repeats")
    if spec.baseline:
        yield Finding((("baseline",),), "a search has no fixed condition", "leave it out")
    halving, train = spec.search.halving if spec.search else None, spec.train
    if halving and train.offload == "nvme":
        reason = "a run with offload: nvme cannot go on from a checkpoint"
        yield Finding((("search", "halving"), ("train", "offload")), reason, "leave halving out, or use offload: full")
    if halving and (train.epochs is not None or train.steps not in (None, halving.to)):
        place = ("train", "epochs" if train.epochs is not None else "steps")
        yield Finding((place,), f"the length of a whole trial is search.halving.to = {halving.to:,}", "leave it out")


def _parameters(spec: Spec, search: SearchConfig) -> Iterator[Finding]:
    point = point_of(search, {short_name(key): search.distribution(key)[1][0] for key in search.parameters})
    yield from key_findings([point], Texts(spec).used)
    for setting in point.settings:
        if setting.path in (("train", "steps"), ("train", "epochs")) and search.halving:
            yield Finding((setting.place,), "is set by search.halving", "search something else", at_key=True)
        elif setting.path:
            yield from _values(search, setting)


def _values(search: SearchConfig, setting: AxisSetting) -> Iterator[Finding]:
    """Find ends and choices that are no values of their field, whatever the others are."""
    *parents, field = setting.path or ()
    for value in search.distribution(setting.key)[1]:
        data: Any = {field: value}
        for parent in reversed(parents):
            data = {parent: data}
        try:
            SharedSections().read(data)
        except InvalidSpec as error:
            for finding in error.findings:
                yield replace(finding, places=(setting.place, *finding.places))
