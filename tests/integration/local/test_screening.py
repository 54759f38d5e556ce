"""A campaign that screens its points, from submitting it to its report: real agents, a script that only waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.campaign import desired
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support.campaigns import Observed, open_store, run_to_end, submit

SCRIPT = """\
import os, sys
from dscampaign import report
if sys.argv[1] == "broken":
    raise KeyError("broken")
step_time = float(sys.argv[1])
for step in range(1, int(os.environ["CAMPAIGN_STEPS"]) + 1):
    report(step, loss=5 / step, step_time=step_time, tokens_per_s=1000 / step_time)
"""

SPEC = """\
name: screened
executor: local
local: {{parallel: 2}}
python: {launcher}
command: train.py {{pace}}
train: {{steps: 30}}
matrix: {{pace: [0.1, 0.2, broken]}}
repeats: 2
screen: {{steps: 10, keep: 1}}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("screened")
    (folder / "train.py").write_text(SCRIPT)
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(launcher=stand_in(folder)))
    store = open_store(f"sqlite:///{folder}/campaign.db")
    yield run_to_end(store, submit(spec, folder, store))
    store.close()


def where(done: Observed) -> list[str]:
    return ["--dir", str(Path(done.campaign.dir)), "--store", done.store.url_without_password]


def test_only_the_best_point_runs_in_full(done: Observed) -> None:
    states = done.states()
    assert {name for name, state in states.items() if state is RunState.COMPLETED} == {
        *("pace-0.1-screen", "pace-0.2-screen", "pace-0.1", "pace-0.1-r1"),
    }
    assert states["pace-broken-screen"] is RunState.FAILED
    assert {states[f"pace-{point}"] for point in ("0.2", "0.2-r1", "broken", "broken-r1")} == {RunState.SCREENED}
    assert [len(done.metrics(name)) for name in ("pace-0.1-screen", "pace-0.1", "pace-0.2")] == [10, 30, 0]
    reasons = {name: run.reason for name, run in done.runs.items()}
    assert reasons["pace-0.2"] == "not among the best by speed"
    assert reasons["pace-broken"].startswith("its screening run pace-broken-screen failed: KeyError")


def test_no_estimate_knows_the_screening_runs(done: Observed, tmp_path: Path) -> None:
    assert main(["report", "screened", "--output", str(tmp_path), *where(done)]) == 0
    document = json.loads((tmp_path / "report.json").read_text())
    assert {run["name"] for run in document["runs"]} == {
        f"pace-{point}{repeat}" for point in ("0.1", "0.2", "broken") for repeat in ("", "-r1")
    }
    assert document["cost"]["screening"] > 0
    text = (tmp_path / "report.md").read_text()
    timed = [one["name"] for work in document["workloads"] for one in work["conditions"] if one["speed"]]
    assert timed == ["pace-0.1"]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| pace")]
    assert [row[0] for row in rows if row[-1] == "screened out"] == ["pace 0.2", "pace broken"]


def test_the_plan_knows_what_is_decided(done: Observed, capsys: pytest.CaptureFixture[str]) -> None:
    spec = str(Path(done.campaign.provenance["spec"]))
    capsys.readouterr()
    assert main(["plan", spec, "--json", *where(done)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["to_submit"], plan["kept"], plan["later"]) == (0, 9, 0)


def test_a_user_runs_in_full_what_was_left_out(done: Observed) -> None:
    [run] = desired.retry(done.store, done.campaign, ["pace-0.2-r1"])
    assert (run.state, run.stage) == (RunState.SCREENED, Stage.FULL)
    again = run_to_end(done.store, done.campaign)
    assert again.states()["pace-0.2-r1"] is RunState.COMPLETED
    assert again.states()["pace-0.2"] is RunState.SCREENED


def test_a_run_that_is_slower_than_the_spec_allows_is_ended(tmp_path: Path) -> None:
    slow = "import sys, time\nfrom dscampaign import report\npace = float(sys.argv[1])\n"
    slow += "for step in range(1, 1001):\n    time.sleep(0.02)\n    report(step, loss=1.0, step_time=pace)\n"
    slow += "    if pace < 1 and step == 60:\n        break\n"
    (tmp_path / "train.py").write_text(slow)
    spec = tmp_path / "spec.yaml"
    header = f"name: pruned\nexecutor: local\nlocal: {{parallel: 2}}\npython: {stand_in(tmp_path)}\n"
    spec.write_text(f"{header}command: train.py {{pace}}\nmatrix: {{pace: [0.5, 1.5]}}\nprune: {{step_time_s: 1}}\n")
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    ended = run_to_end(store, submit(spec, tmp_path, store))
    assert ended.states() == {"pace-0.5": RunState.COMPLETED, "pace-1.5": RunState.FAILED}
    assert ended.runs["pace-1.5"].reason == "a step takes 1.5 s, longer than prune.step_time_s = 1"
    assert [row.failure_class for row in ended.attempts["pace-1.5"]] == ["pruned"]
    store.close()
