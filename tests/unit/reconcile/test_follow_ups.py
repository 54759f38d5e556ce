"""Follow-ups of completed runs, pass by pass, on a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.states import RunState, Stage
from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.campaign import desired
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.reconcile.follow_ups import follow
from dscampaign.orchestrator.reconcile.lease import LeaseHolder, take_lease
from dscampaign.orchestrator.spec.load import runs_of_text

SPEC = """\
name: c
executor: local
command: train.py {rate}
matrix: {rate: [0.1, 0.2]}
repeats: 2
train: {steps: 10}
then:
  eval: {command: "eval.py --weights {checkpoint} {rate} {run}"}
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for name in ("train.py", "eval.py"):
        (tmp_path / name).write_text("")
    return Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)


def submitted(store: Store, folder: Path, text: str = SPEC) -> CampaignRow:
    at = folder / "spec.yaml"
    spec, runs = runs_of_text(text, at)
    return desired.record(store, Submission(spec, text, runs, folder / "shared", at))


def runs_of(store: Store, campaign: CampaignRow) -> dict[str, RunRow]:
    with store.read() as conn:
        return {run.name: run for run in queries.runs(conn, campaign.id)}


def test_a_completed_run_has_one_follow_up(store: Store, tmp_path: Path) -> None:
    campaign = submitted(store, tmp_path)
    writer, paths = take_lease(store, campaign, LeaseHolder.me()), CampaignPaths(tmp_path / "shared", "c")
    assert not follow(writer, campaign, paths)
    runs = runs_of(store, campaign)
    saved = paths.run("rate-0.1-r1").checkpoints(runs["rate-0.1-r1"].config_hash) / "g0001-step00000010"
    saved.mkdir(parents=True)
    of_script = paths.run("rate-0.2").checkpoints(runs["rate-0.2"].config_hash) / "step_10.pt"
    of_script.parent.mkdir(parents=True)
    of_script.write_text("state")
    with store.write() as conn:
        queries.update_run(conn, runs["rate-0.1-r1"].id, state=RunState.COMPLETED)
        queries.update_run(conn, runs["rate-0.2"].id, state=RunState.COMPLETED)
        queries.update_run(conn, runs["rate-0.1"].id, state=RunState.FAILED)
        queries.update_run(conn, runs["rate-0.2-r1"].id, state=RunState.FAILED)
        assert queries.unsettled_campaigns(conn) == {campaign.id}  # its reconciler may have died here
    assert follow(writer, campaign, paths)
    added = {name: run for name, run in runs_of(store, campaign).items() if run.stage is Stage.THEN}
    assert added.keys() == {"rate-0.1-eval-r1", "rate-0.2-eval"}
    script, *arguments = added["rate-0.1-eval-r1"].config["command"]
    assert (Path(script).name, arguments) == ("eval.py", ["--weights", str(saved), "0.1", "rate-0.1-r1"])
    assert added["rate-0.2-eval"].config["command"][2] == str(of_script)
    assert {run.config["launcher"] for run in added.values()} == {"python"}
    assert {run.target_step for run in added.values()} == {None}
    with store.read() as conn:
        fresh = queries.campaign_by_id(conn, campaign.id)
    assert fresh is not None
    assert not fresh.grows
    assert not follow(writer, fresh, paths)
    again = submitted(store, tmp_path)
    assert {run.desired for run in runs_of(store, again).values()} == {"run"}
    assert len(runs_of(store, again)) == 6
    store.close()


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ('eval: {command: "eval.py {nope}"}', "{nope} is not defined"),
        ("eval: {command: gone.py}", "no such script"),
        ("Eval: {command: eval.py}", "Eval"),
        ("eval: {command: eval.py, slurm: {nodes: none}}", "nodes"),
    ],
)
def test_a_wrong_stage_has_its_place(store: Store, tmp_path: Path, stage: str, message: str) -> None:
    text = SPEC[: SPEC.index("  eval")] + f"  {stage}\n"
    with pytest.raises(SpecError, match="then") as error:
        runs_of_text(text, tmp_path / "spec.yaml")
    assert message in str(error.value)
    store.close()
