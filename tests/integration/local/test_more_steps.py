"""A finished run that gets more steps in the spec goes on from its last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.campaign.plan import Sign, make_plan
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.errors import UserError
from dscampaign.tests.support.campaigns import TEXT, open_store, run_to_end, submit
from dscampaign.tests.support.spec_files import load_runs

SPEC = f"""\
name: longer
executor: local
ranks_per_node: 1
train:
  model: {{model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 1}}
  tokenizer: bytes
  dataset: {TEXT}
  seq_len: 32
  global_batch: 4
  steps: STEPS
  schedule: constant
  precision: fp32
  checkpoint_every: 10
  eval_batches: 1
"""


@pytest.mark.nightly
@pytest.mark.training
def test_a_finished_run_goes_on_to_more_steps(tmp_path: Path) -> None:
    store, spec = open_store(f"sqlite:///{tmp_path}/campaign.db"), tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("STEPS", "2"))
    losses = [row.loss for row in run_to_end(store, submit(spec, tmp_path, store)).metrics("run")]
    spec.write_text(SPEC.replace("STEPS", "4"))
    read, runs = load_runs(spec)
    (planned,) = make_plan(store, Submission(read, spec.read_text(), runs, tmp_path, spec)).runs
    assert (planned.sign, planned.differing) == (Sign.RESUBMIT, ("train.steps: 2 → 4",))
    campaign = submit(spec, tmp_path, store)
    done = run_to_end(store, campaign)
    (attempts,) = done.attempts.values()
    assert done.states() == {"run": RunState.COMPLETED}
    assert [(attempt.start_step, attempt.last_step) for attempt in attempts] == [(0, 2), (2, 4)]
    assert done.steps("run") == [1, 2, 3, 4]
    assert [row.loss for row in done.metrics("run")[:2]] == losses
    assert "longer" in {event.kind for event in done.events()}
    submit(spec, tmp_path, store)
    assert run_to_end(store, campaign).attempts == done.attempts
    spec.write_text(SPEC.replace("STEPS", "6"))
    read, runs = load_runs(spec)
    shutil.rmtree(CampaignPaths(tmp_path, "longer").run("run").dir / "checkpoints")
    with pytest.raises(UserError, match="run run is completed") as refused:
        make_plan(store, Submission(read, spec.read_text(), runs, tmp_path, spec))
    assert "only with a constant schedule, a checkpoint" in (refused.value.hint or "")
    with pytest.raises(UserError, match="run run is completed"):
        submit(spec, tmp_path, store)
    store.close()
