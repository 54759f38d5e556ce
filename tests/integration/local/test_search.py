"""A search from its submission to its report: real agents, a script that trains nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit

SCRIPT = """\
import os, sys
from pathlib import Path
from dscampaign import report
rate, kind, whole = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if kind == "big":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
done = Path(os.environ["CAMPAIGN_RUN_DIR"], "done")
first = int(done.read_text()) if done.exists() else 0
for step in range(first + 1, int(os.environ["CAMPAIGN_STEPS"]) + 1):
    report(step, loss=1 + (rate - 0.3) ** 2 + 1 / step + int(os.environ["CAMPAIGN_SEED"]) * 1e-4, step_time=0.1)
done.write_text(os.environ["CAMPAIGN_STEPS"])
"""

SPEC = """\
name: tuned
executor: local
local: {{parallel: 4}}
python: {launcher}
command: train.py {{rate}} {{kind}} {{schedule_steps}}
search:
  parameters:
    rate: {{uniform: [0, 1]}}
    kind: {{choice: [small, big]}}
  sampler: random
  trials: 8
  parallel: 4
  halving: {{from: 5, to: 15}}
  confirm: {{top: 2, repeats: 1}}
then:
  eval: {{command: "eval.py {{checkpoint}} {{rate}}"}}
"""

EVALUATION = """\
import sys
from pathlib import Path
from dscampaign import report
assert Path(sys.argv[1], "done").exists()
report(1, accuracy=float(sys.argv[2]))
"""


def test_a_search_from_submission_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "eval.py").write_text(EVALUATION)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(launcher=stand_in(tmp_path)))
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec, tmp_path, store)
    at = ["--dir", str(tmp_path), "--store", store.url_without_password]
    assert main(["reconcile", "--all-campaigns", "--watch", "--interval", "0.2", *at]) == 0  # as its job does
    done = run_to_end(store, campaign, poll_s=0.2)
    trials = [run for run in done.runs.values() if run.stage is Stage.TRIAL]
    assert [run.name for run in trials] == [f"trial-{number:04}" for number in range(8)]
    small = [run for run in trials if run.params["kind"] == "small"]
    assert {run.state for run in trials if run.params["kind"] == "big"} == {RunState.FAILED}
    assert {run.state for run in small} == {RunState.COMPLETED, RunState.PRUNED}
    for run in small:  # nothing was trained twice
        assert done.steps(run.name) == list(range(1, (run.target_step or 0) + 1))
    whole = sorted((run for run in small if run.target_step == 15), key=lambda run: abs(run.params["rate"] - 0.3))
    confirmed = {run.name for run in done.runs.values() if run.stage is Stage.FULL}
    assert {f"{run.name}-confirm" for run in whole[:2]} <= confirmed
    assert len(confirmed) == 2
    follow_ups = {run.name: run for run in done.runs.values() if run.stage is Stage.THEN}
    assert follow_ups.keys() == {f"{name}-eval" for name in confirmed}
    assert {run.state for run in follow_ups.values()} == {RunState.COMPLETED}
    assert main(["report", "tuned", "--output", str(tmp_path / "report"), *at]) == 0
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    assert {run["name"] for run in document["runs"]} == confirmed
    page = (tmp_path / "report" / "report.md").read_text()
    assert "kind small" in page.splitlines()[0]  # the same in all that compare
    assert "What did the search find?" in page
    assert f"{len(trials) - len(small)} infeasible" in page
    assert ("search_history" in page) is (len(whole) > 1)
    for name, run in follow_ups.items():
        assert f"| {name} | completed | {run.params['rate']:.5g} |" in page
    capsys.readouterr()
    assert main(["reconcile", "tuned", "--watch", *at]) == 0
    assert " · kind small " in capsys.readouterr().out
    assert main(["status", "tuned", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["settled"] is True
    store.close()
