"""A training that hangs without a word: noticed, ended, explained and resumed, by nothing but passes."""

from __future__ import annotations

from pathlib import Path

from dscampaign.db.states import RunState
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support import SCRIPTS
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit

SCRIPT = SCRIPTS / "hang.py"
STEPS, HANG_AT = 40, 33

SPEC = """\
name: hang
executor: local
python: {python}
ranks_per_node: 2
retry: {{backoff_s: 0, hang_min_s: 15, hang_factor: 20}}
train: {{steps: {steps}}}
command: [{script}, "{steps}", "{hang_at}"]
"""


def test_a_training_that_hangs_is_ended_and_resumed_and_the_rank_is_named(tmp_path: Path) -> None:
    spec = tmp_path / "hang.yaml"
    spec.write_text(SPEC.format(python=stand_in(tmp_path), script=SCRIPT, steps=STEPS, hang_at=HANG_AT))
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    seen = run_to_end(store, submit(spec, tmp_path, store))
    [(name, tried)] = seen.attempts.items()
    assert seen.states() == {name: RunState.COMPLETED}
    assert [attempt.failure_class for attempt in tried] == ["hang", "completed"]
    reason = tried[0].evidence["reason"]
    assert f"is stuck at step {HANG_AT - 1}, the others at {HANG_AT}" in reason
    assert "rank 1 on " in reason
    assert seen.steps(name) == list(range(1, STEPS + 1))
    store.close()
