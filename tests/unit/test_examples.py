"""The bring-your-own examples run as their specs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit
from dscampaign.tests.support.spec_files import load_spec

EXAMPLES = REPOSITORY / "examples"


@pytest.mark.training
@pytest.mark.nightly
def test_the_hugging_face_trainer_reports_every_step(tmp_path: Path) -> None:
    """With the real launcher; tests/integration/trainer/test_examples.py stops and resumes the same script."""
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    done = run_to_end(store, submit(EXAMPLES / "byo_hf_trainer" / "spec.yaml", tmp_path, store))
    assert done.states() == {"zero_stage-2": RunState.COMPLETED}
    losses = [row.loss or 9.0 for row in done.metrics("zero_stage-2")]
    assert done.steps("zero_stage-2") == list(range(1, 21))
    assert losses[-1] < losses[0]
    assert all(row.step_time_s for row in done.metrics("zero_stage-2"))
    said = [event.kind for event in done.events() if event.kind.startswith("script.")]
    assert said == ["script.target", "script.checkpoint", "script.checkpoint"]
    store.close()


@pytest.mark.parametrize("spec", sorted(EXAMPLES.glob("*/spec.yaml")), ids=lambda path: path.parent.name)
def test_every_example_is_a_valid_spec(spec: Path) -> None:
    assert expand(load_spec(spec))
