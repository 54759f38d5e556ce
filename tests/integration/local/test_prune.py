"""A run that cannot win is ended early: a real agent, a script that only waits."""

from __future__ import annotations

from pathlib import Path

from dscampaign.db.states import RunState
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit


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
