"""A search, pass by pass, on a store: runs end as the test wants, and no job is started."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.db import bulk, queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.states import UNSETTLED_RUN, RunState, Stage
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign import desired
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.reconcile import search
from dscampaign.orchestrator.reconcile.lease import LeaseHolder, take_lease
from dscampaign.orchestrator.spec.load import runs_of_text
from dscampaign.orchestrator.spec.sampling import TrialOutcome
from dscampaign.tests.support.worlds import new_attempt
from dscampaign.tests.unit.failures.test_cuda_oom import now

SPEC = """\
name: tuned
executor: local
command: train.py {{x}} {{kind}} {{steps}}
{train}
search:
  parameters: {{x: {{{x}}}, kind: {{choice: [a, b]}}}}
  sampler: {sampler}
  trials: {trials}
  parallel: 4
  confirm: {{top: 2, repeats: 2}}
  {more}
"""


def loss(run: RunRow) -> float:
    return float((run.params["x"] - 0.3) ** 2 + (run.params["kind"] == "b"))


class World:
    """A store with a search whose runs end at once, or as `end` decides."""

    def __init__(
        self,
        folder: Path,
        more: str = "",
        train: str = "train: {steps: 20}",
        *,
        sampler: str = "tpe",
        trials: int = 12,
        x: str = "uniform: [0, 1]",
    ) -> None:
        self.folder, self.text = folder, SPEC.format(more=more, train=train, sampler=sampler, trials=trials, x=x)
        (folder / "train.py").write_text("")
        self.store = Store.open(f"sqlite:///{folder}/campaign.db", create=True)
        self.submit()
        self.writer = take_lease(self.store, self.campaign, LeaseHolder.me())
        self.end: Callable[[RunRow], RunState] = lambda _: RunState.COMPLETED
        self.hours = 0.0

    def submit(self, old: str = "", new: str = "") -> None:
        self.text = self.text.replace(old, new)
        spec, runs = runs_of_text(self.text, self.folder / "spec.yaml")
        at = self.folder / "spec.yaml"
        desired.record(self.store, Submission(spec, self.text, runs, self.folder / "shared", at))

    @property
    def campaign(self) -> CampaignRow:
        with self.store.read() as conn:
            found = queries.campaign_by_name(conn, "tuned")
        assert found is not None
        return found

    @property
    def runs(self) -> list[RunRow]:
        with self.store.read() as conn:
            return queries.runs(conn, self.campaign.id)

    @property
    def trials(self) -> list[RunRow]:
        return [run for run in self.runs if run.stage is Stage.TRIAL]

    @property
    def confirmations(self) -> list[RunRow]:
        return [run for run in self.runs if run.stage is Stage.FULL]

    def measure(self, _: Store, __: CampaignRow, names: Collection[str]) -> Mapping[str, Mapping[str, float | None]]:
        return {run.name: {"final_loss": loss(run), "mem_reserved_gb": 1.0} for run in self.runs if run.name in names}

    def advance(self) -> bool:
        return search.advance(self.writer, self.campaign, self.measure, lambda: self.hours)

    def finish(self, run: RunRow) -> None:
        with self.store.write() as conn:
            queries.update_run(conn, run.id, state=self.end(run), reason="")

    def to_end(self, choose: Callable[[list[RunRow]], list[RunRow]] = lambda runs: runs) -> None:
        for _ in range(300):
            changed = self.advance()
            active = [run for run in self.runs if run.state in UNSETTLED_RUN]
            assert len([run for run in active if run.stage is Stage.TRIAL]) <= 4
            if not active and not changed:
                return
            for run in choose(active):
                self.finish(run)
        raise AssertionError("the search does not end")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def test_a_search_trains_its_trials_and_then_the_best_again(world: World) -> None:
    world.to_end()
    assert [run.name for run in world.trials] == [f"trial-{number:04}" for number in range(12)]
    best = sorted(world.trials, key=loss)[:2]
    assert {run.name for run in world.confirmations} == {
        name for run in best for name in (f"{run.name}-confirm", f"{run.name}-confirm-r1")
    }
    assert {run.config["train"].get("seed", 42) for run in world.trials} == {42}
    assert {run.config["train"]["seed"] for run in world.confirmations} == {43, 44}
    assert not world.campaign.provenance["search"]["open"]
    with world.store.read() as conn:
        assert queries.unsettled_campaigns(conn) == set()


def test_a_search_whose_reconciler_died_is_unsettled(world: World) -> None:
    world.advance()
    for run in world.runs:
        world.finish(run)
    with world.store.read() as conn:
        assert queries.unsettled_campaigns(conn) == {world.campaign.id}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_pass_that_dies_anywhere_loses_and_repeats_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "wild").mkdir()
    calm = World(tmp_path / "calm", sampler=sampler)
    calm.to_end()
    wild, dice = World(tmp_path / "wild", sampler=sampler), random.Random(1)
    advance, died = wild.advance, 0

    def revived() -> bool:
        nonlocal died
        while True:
            try:
                with monkeypatch.context() as patched:
                    for module, name in EFFECTS:
                        patched.setattr(module, name, _dying(getattr(module, name), dice))
                    return advance()
            except KeyboardInterrupt:
                died += 1

    monkeypatch.setattr(wild, "advance", revived)
    wild.to_end()
    assert died
    assert [(run.name, run.params) for run in wild.runs] == [(run.name, run.params) for run in calm.runs]
    for made in (calm, wild):
        with made.store.read() as conn:
            events = queries.events(conn, made.campaign.id, kind=search.MEASURED)
        assert len(events) == 12
        made.store.close()


EFFECTS = ((queries, "update_campaign"), (queries, "add_events"), (bulk, "change_runs"), (bulk, "insert_runs"))


def _dying(function: Callable[..., object], dice: random.Random) -> Callable[..., object]:
    def dies(*args: object, **kwargs: object) -> object:
        if dice.random() < 0.2:
            raise KeyboardInterrupt
        result = function(*args, **kwargs)
        if dice.random() < 0.2:
            raise KeyboardInterrupt
        return result

    return dies


def test_halving_lets_the_best_go_on_from_their_checkpoints(tmp_path: Path) -> None:
    world = World(tmp_path, more="halving: {from: 10, to: 90, factor: 3}", train="", sampler="random", trials=18)
    world.to_end(lambda runs: runs[:1])
    steps = sorted(run.target_step or 0 for run in world.trials)
    assert len(steps) == 18
    assert steps[-1] == 90
    reached = [sum(step >= rung for step in steps) for rung in (10, 30, 90)]
    assert reached[0] == 18
    assert 18 > reached[1] > reached[2] >= 2
    best = min(world.trials, key=loss)
    assert best.target_step == 90
    assert (best.state, best.retry_epoch) == (RunState.COMPLETED, 2)
    assert best.config["command"][-1] == "90"
    assert best.config["train"] == {**best.config["train"], "steps": 90, "schedule_steps": 90, "checkpoint_every": 90}
    pruned = [run for run in world.trials if run.state is RunState.PRUNED]
    assert len(pruned) == 18 - reached[2]
    assert all(" is number " in run.reason for run in pruned)
    assert {run.target_step for run in world.confirmations} == {90}
    hashes = {run.name: run.config_hash for run in world.trials}
    world.submit()
    assert {run.name: run.config_hash for run in world.trials} == hashes
    assert {run.desired for run in world.runs} == {"run"}
    world.store.close()


def test_of_too_few_trials_the_best_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, more="halving: {from: 10, to: 90, factor: 3}", train="", trials=4)
    world.to_end()
    whole = [run for run in world.trials if run.target_step == 90]
    assert whole == [min(world.trials, key=loss)]
    first, second = sorted(world.trials, key=loss)[:2]
    assert {run.name.partition("-confirm")[0] for run in world.confirmations} == {first.name, second.name}
    assert len(world.confirmations) == 4
    world.store.close()


def test_what_cannot_be_trained_is_no_candidate(world: World) -> None:
    world.end = lambda run: RunState.FAILED if run.params["kind"] == "a" else RunState.COMPLETED
    world.to_end()
    assert len(world.trials) == 12
    assert {run.params["kind"] for run in world.confirmations} == {"b"}


def test_out_of_memory_is_graded_by_what_was_asked_for(world: World) -> None:
    world.advance()
    line = {"text": now(78.0)}
    with world.store.write() as conn:
        for run, evidence in zip(world.runs, ({"line": line}, {}), strict=False):
            attempt = bulk.insert_attempts(conn, [replace(new_attempt(run.id), token=run.name)])[0].id
            queries.update_attempt(conn, attempt, state="failed", failure_class=FailureClass.OOM)
            queries.update_run(conn, run.id, state=RunState.FAILED)
            queries.add_events(conn, world.campaign.id, [queries.NewEvent("ended", "", run.id, data=evidence)])
        state = search.read_search(conn, world.campaign)
    assert state
    assert [trial.excess for trial in state.trials if trial.outcome is TrialOutcome.INFEASIBLE] == [1 + 2 / 80, 1]


def test_trials_beyond_a_bound_are_infeasible(tmp_path: Path) -> None:
    world = World(tmp_path, more="bounds: {mem_reserved_gb: 0.5}")
    world.to_end()
    assert len(world.trials) == 12
    assert not world.confirmations
    world.store.close()


def test_no_trial_starts_once_the_budget_is_used_up(world: World) -> None:
    world.submit("parallel: 4", "parallel: 4\n  budget: 3")
    world.advance()
    world.hours = 3.5
    world.to_end()
    assert len(world.trials) == 4
    assert len(world.confirmations) == 4


def test_more_trials_continue_a_search_that_was_over(world: World) -> None:
    world.to_end()
    before = {run.name: run.params for run in world.runs}
    world.submit("trials: 12", "trials: 16")
    assert world.campaign.provenance["search"]["open"]
    world.to_end()
    assert len(world.trials) == 16
    assert before.items() <= {run.name: run.params for run in world.runs}.items()


def test_a_space_is_searched_no_further_than_it_goes(tmp_path: Path) -> None:
    world = World(tmp_path, x="int: [1, 3]")
    world.to_end()
    assert len({(run.params["x"], run.params["kind"]) for run in world.trials}) == len(world.trials) == 6
    assert len(world.confirmations) == 4
    world.store.close()
