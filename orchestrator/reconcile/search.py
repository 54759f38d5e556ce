"""Brings a search forward: measures ended trials, lets the best go on, asks for new trials, and confirms the best.

The store holds all of it: trials are runs, their figures are events. A pass decides from these alone and writes in a
single transaction, so a reconciler that dies at any moment leaves nothing half done. Trial numbers are in the names of
runs, which are unique.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Connection

from dscampaign.db import bulk, queries
from dscampaign.db.records import CampaignRow, NewRun, RunRow
from dscampaign.db.rows import StoredDocument
from dscampaign.db.states import ABSENT, UNSETTLED_RUN, RunState, Stage
from dscampaign.db.store import Store
from dscampaign.orchestrator.executors.local import local_gpus
from dscampaign.orchestrator.failures import cuda_oom
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.formatting import figure
from dscampaign.orchestrator.spec.expand import Run, SharedSections
from dscampaign.orchestrator.spec.objective import value_of
from dscampaign.orchestrator.spec.sampling import Trial, TrialOutcome, best_first
from dscampaign.orchestrator.spec.search_section import SearchConfig
from dscampaign.orchestrator.spec.trials import CONFIRMS, TrialTemplate, number_of

from .lease import FencedWriter

MEASURED: Final = "trial.measured"
"""The event with the figures of a trial at the end of a rung."""

_INFEASIBLE: Final = frozenset(
    {FailureClass.OOM, FailureClass.FRAGMENTATION, FailureClass.HOST_OOM, FailureClass.DIVERGED}
)
"""Ends of trials that their parameters are to blame for."""

Measure = Callable[[Store, CampaignRow, Collection[str]], Mapping[str, Mapping[str, float | None]]]
"""Returns the report's figures of runs, by their names."""


@dataclass(frozen=True)
class TrialRun:
    """A trial with its run."""

    row: RunRow
    failure: str | None  # the failure class of its newest attempt
    # by step, its figures: of the objectives, None for an unknown one, and its excess of a bound
    records: Mapping[int, tuple[Sequence[float | None], float]]
    asked: float = 0.0  # the share of the GPU's memory that the allocation without room asked for, if it ended so

    @property
    def number(self) -> int:
        """The number of the trial."""
        return number_of(self.row.ordinal)

    @property
    def step(self) -> int:
        """The step of its present rung."""
        return self.row.target_step or 0

    @property
    def active(self) -> bool:
        """Whether it is still to end by itself."""
        return self.row.state in UNSETTLED_RUN

    @property
    def unmeasured(self) -> bool:
        """Whether it has ended at a rung whose figures are not recorded yet."""
        return self.row.state is RunState.COMPLETED and self.step not in self.records

    @property
    def rungs(self) -> dict[int, float]:
        """The first objective by step, as far as it is known."""
        return {step: values[0] for step, (values, _) in self.records.items() if step and values[0] is not None}

    def as_trial(self, last: int | None) -> Trial:
        """Return the trial for its sampler; `last` is the step of a whole trial."""
        values, excess = self.records.get(self.step, ((None,), 0.0))
        outcome = self._outcome(values, excess, last)
        known = tuple(value for value in values if value is not None) if outcome is TrialOutcome.MEASURED else ()
        if outcome is TrialOutcome.INFEASIBLE and not excess:  # graded: else all directions look alike at first
            excess = 1.0 + self.asked
        return Trial(self.number, self.row.params, outcome, known, self.rungs, excess)

    def _outcome(self, values: Sequence[float | None], excess: float, last: int | None) -> TrialOutcome:
        state = self.row.state
        if self.active or self.unmeasured:
            return TrialOutcome.OPEN
        if state in (RunState.COMPLETED, RunState.PRUNED) and excess > 0:
            return TrialOutcome.INFEASIBLE
        if state is RunState.COMPLETED and None not in values:
            return TrialOutcome.MEASURED if last is None or self.row.target_step == last else TrialOutcome.PRUNED
        if state is RunState.PRUNED:
            return TrialOutcome.PRUNED
        if state is RunState.FAILED and self.failure in _INFEASIBLE:
            return TrialOutcome.INFEASIBLE
        return TrialOutcome.FAILED


@dataclass(frozen=True)
class SearchState:
    """A search as the store has it."""

    search: SearchConfig
    runs: tuple[TrialRun, ...]
    confirmed: frozenset[str] = frozenset()  # names of the runs that confirm trials
    asked: frozenset[int] = frozenset()  # numbers of all trials
    code: str = ""  # of the runs

    @property
    def last(self) -> int | None:
        """The step of a whole trial; None without halving."""
        return self.search.halving.to if self.search.halving else None

    @cached_property
    def trials(self) -> list[Trial]:
        """All trials, by their number."""
        return [run.as_trial(self.last) for run in sorted(self.runs, key=lambda run: run.number)]


def read_search(conn: Connection, campaign: CampaignRow) -> SearchState | None:
    """Return the search of a campaign; None if it has none."""
    document = campaign.provenance.get("search")
    if not document:
        return None
    stored = queries.runs(conn, campaign.id)
    rows = [row for row in stored if row.desired != ABSENT]
    ends = {run.run_id: run.failure_class for run in queries.status(conn, campaign.id)}
    records: dict[int, dict[int, tuple[Sequence[float | None], float]]] = {}
    for event in queries.events(conn, campaign.id, kind=MEASURED):
        data = event.data
        records.setdefault(event.run_id or 0, {})[data["step"]] = (tuple(data["values"]), data["excess"])
    trials = [row for row in rows if row.stage is Stage.TRIAL]
    asked: dict[int, float] = {}
    for event in queries.events(conn, campaign.id, kind="ended") if FailureClass.OOM in ends.values() else ():
        if memory := cuda_oom.read((event.data.get("line") or {}).get("text", "")):
            asked[event.run_id or 0] = memory.tried / (memory.allowed or memory.total)
    return SearchState(
        search=SearchConfig.model_validate(document["section"]),
        runs=tuple(TrialRun(row, ends.get(row.id), records.get(row.id, {}), asked.get(row.id, 0.0)) for row in trials),
        confirmed=frozenset(row.name for row in rows if row.ordinal >= CONFIRMS),
        asked=frozenset(number_of(row.ordinal) for row in stored if row.stage is Stage.TRIAL),
        code=trials[0].code if trials else "",
    )


@dataclass
class SearchStep:
    """The changes that a pass makes to a search."""

    measured: list[tuple[TrialRun, list[float | None], float]] = field(default_factory=list)
    promoted: list[tuple[RunRow, Run]] = field(default_factory=list)
    pruned: list[tuple[RunRow, str]] = field(default_factory=list)
    new: list[Run] = field(default_factory=list)
    exhausted: bool = False
    open: bool = False


def template_of(campaign: CampaignRow) -> TrialTemplate | None:
    """Return the template of a campaign's trials; None if it has no search."""
    document = campaign.provenance.get("search")
    return TrialTemplate.read(document, local_gpus() if campaign.executor == "local" else 0) if document else None


def advance(
    writer: FencedWriter, campaign: CampaignRow, measure: Measure | None, gpu_hours: Callable[[], float]
) -> bool:
    """Bring the search of a campaign forward; return whether its runs have changed."""
    document = campaign.provenance.get("search")
    if not document or campaign.desired != "active":
        return False
    with writer.store.read() as conn:
        state, template, step = read_search(conn, campaign), template_of(campaign), SearchStep()
    assert state is not None
    assert template is not None
    unmeasured = [run for run in state.runs if run.unmeasured]
    if unmeasured and measure is None:
        raise RuntimeError("a search needs the figures of its runs")
    if unmeasured and measure:
        figures = measure(writer.store, campaign, [run.row.name for run in unmeasured])
        writer.renew()
        step.measured = [(run, *_figures(state.search, figures.get(run.row.name, {}))) for run in unmeasured]
        known = {run.number: {run.step: (values, excess)} for run, values, excess in step.measured}
        runs = (replace(run, records={**run.records, **known.get(run.number, {})}) for run in state.runs)
        state = replace(state, runs=tuple(runs))
    used_up = state.search.budget is not None and gpu_hours() >= state.search.budget
    decide_search(state, template, step, used_up=used_up, exhausted=bool(document.get("exhausted")))
    return _write(writer, campaign, state, step)


def _figures(search: SearchConfig, figures: Mapping[str, float | None]) -> tuple[list[float | None], float]:
    beyond = [(value_of(name, figures), most) for name, most in search.bounds.items()]
    excess = max((value / most - 1 for value, most in beyond if value is not None), default=0.0)
    return [value_of(name, figures) for name in search.objective], max(excess, 0.0)


def decide_search(
    state: SearchState, template: TrialTemplate, step: SearchStep, *, used_up: bool, exhausted: bool
) -> None:
    """Add the next trials: first those that go on, then new trials, at the end the confirmation."""
    search, runs = state.search, state.runs
    active = sum(run.active for run in runs)
    free = search.parallel - active - sum(run.row.state is RunState.HELD for run in runs)
    rungs = list(_rungs(state))
    for run, best, reason in rungs:
        if run.row.state is RunState.COMPLETED and (used_up or not best):
            step.pruned.append((run.row, "search.budget is used up" if best else reason))
    going_on = [run for run, best, _ in reversed(rungs) if best and not used_up][: max(free, 0)]
    step.promoted = [(run.row, _next_rung(run, template)) for run in going_on]
    asked = state.asked.union(run.number for run in runs)
    trials, numbers = list(state.trials), [number for number in range(search.trials) if number not in asked]
    step.exhausted = exhausted
    while len(step.promoted) + len(step.new) < free and numbers and not (used_up or step.exhausted):
        following = template.next_trial(trials, numbers[0])
        step.exhausted = following is None
        if following:
            step.new.append(following)
            trials.append(Trial(numbers.pop(0), following.params, TrialOutcome.OPEN))
    over = used_up or step.exhausted or not numbers
    if over and not (active or step.promoted or step.new):
        _finish(state, template, step, used_up=used_up)
    step.open = bool(active or step.promoted or step.new)


def _finish(state: SearchState, template: TrialTemplate, step: SearchStep, *, used_up: bool) -> None:
    best = best_first(state.search, state.trials)
    waiting = _at_rungs(state) if state.search.halving else []
    waiting.sort(key=lambda run: (-run.step, _cost(state, run, run.step), run.number))
    if not best and not used_up and state.search.halving:  # too few trials for all rungs: the best goes on
        step.promoted = [(run.row, _next_rung(run, template)) for run in waiting[:1]]
        step.pruned = [(row, reason) for row, reason in step.pruned if row.id not in {r.row.id for r in waiting[:1]}]
        return
    ordered = [(trial.number, trial.params) for trial in best] + [(run.number, run.row.params) for run in waiting]
    confirm = state.search.confirm
    for number, params in ordered[: confirm.top]:
        runs = [template.confirmation(number, params, repeat) for repeat in range(confirm.repeats)]
        step.new += [run for run in runs if run.name not in state.confirmed]


def _at_rungs(state: SearchState) -> list[TrialRun]:
    """Return the trials that have ended below the last rung, with a figure, and that could go on."""
    ended = (RunState.COMPLETED, RunState.PRUNED)
    below = [run for run in state.runs if run.row.state in ended and run.row.target_step != state.last]
    left = [run for run in below if run.as_trial(state.last).outcome is TrialOutcome.PRUNED]
    return [run for run in left if run.step in run.rungs]


def _cost(state: SearchState, run: TrialRun, step: int) -> float:
    return -run.rungs[step] if state.search.maximize[0] else run.rungs[step]


def _rungs(state: SearchState) -> Iterator[tuple[TrialRun, bool, str]]:
    """Yield the trials at each rung but the last, whether they go on, and else why not."""
    halving = state.search.halving
    for step in halving.rungs[:-1] if halving else ():
        feasible = (run for run in state.runs if step in run.rungs and run.records[step][1] == 0)
        reached = sorted(feasible, key=lambda run: (_cost(state, run, step), run.number))
        most = len(reached) // halving.factor if halving else 0
        waiting = {run.row.id for run in _at_rungs(state) if run.step == step}
        for place, run in enumerate(reached):
            if run.row.id in waiting:
                value = f"{state.search.objective[0]} {figure(run.rungs[step], 5)}"
                yield run, place < most, f"{value} is number {place + 1} of {len(reached)} at step {step:,}"


def _next_rung(run: TrialRun, template: TrialTemplate) -> Run:
    higher = next(steps for steps in template.rungs if steps and steps > run.step)
    return template.trial(run.number, run.row.params, higher)


def _write(writer: FencedWriter, campaign: CampaignRow, state: SearchState, step: SearchStep) -> bool:
    document = campaign.provenance["search"]
    flags = {"open": step.open, "exhausted": step.exhausted}
    changes = bool(step.measured or step.promoted or step.pruned or step.new)
    if not changes and all(document.get(name, False) == value for name, value in flags.items()):
        return False
    with writer.write() as conn:
        fresh = queries.lock_campaign(conn, campaign.id)
        if fresh is None or (fresh.spec_hash, fresh.desired) != (campaign.spec_hash, campaign.desired):
            return False  # its user has submitted again meanwhile: the next pass looks anew
        provenance = {**fresh.provenance, "search": {**document, **flags}}
        queries.update_campaign(conn, campaign.id, provenance=provenance)
        queries.add_events(conn, campaign.id, list(_events(state, step)))
        changed: dict[int, dict[str, Any]] = {
            row.id: {"state": RunState.PRUNED, "reason": reason} for row, reason in step.pruned
        }
        for row, run in step.promoted:
            on = {"config": run.stored_config, "target_step": run.target_step, "retry_epoch": row.retry_epoch + 1}
            changed[row.id] = {**on, "state": RunState.PENDING, "reason": "", "not_before_s": None}
        bulk.change_runs(conn, changed)
        bulk.insert_runs(conn, campaign.id, [new_run(run, run.ordinal or 0, state.code) for run in step.new])
    return changes


def _events(state: SearchState, step: SearchStep) -> Iterator[queries.NewEvent]:
    for run, values, excess in step.measured:
        pairs = zip(state.search.objective, values, strict=True)
        text = ", ".join(f"{name} {'unknown' if value is None else figure(value, 5)}" for name, value in pairs)
        data = {"step": run.step, "values": values, "excess": excess}
        yield queries.NewEvent(MEASURED, f"trial {run.number}: {text}", run.row.id, data=data)
    for row, longer in step.promoted:
        yield queries.NewEvent("trial.promoted", f"goes on to step {longer.target_step:,}", row.id)


def new_run(run: Run, ordinal: int, code: str, sections: SharedSections | None = None) -> NewRun:
    """Return the row of a run of a spec; `sections` are shared with others."""
    return NewRun(
        name=run.name,
        params=run.params,
        config=StoredDocument((sections or SharedSections()).text_of(run.config)),
        config_hash=run.config_hash,
        ordinal=ordinal,
        repeat=run.repeat,
        target_step=run.target_step,
        code=code,
        stage=run.stage,
    )
