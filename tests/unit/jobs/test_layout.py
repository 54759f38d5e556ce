"""What lies in `dir` beside the campaigns has a name that no campaign may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.jobs.shared.layout import Beside
from dscampaign.orchestrator.errors import SpecError
from dscampaign.tests.support.spec_files import load_spec


@pytest.mark.parametrize(
    "name",
    [*Beside, "campaign.db-wal", "campaign.db-shm", "campaign.db-journal", "campaign.db-writer", "campaign.db.gz"],
)
def test_a_campaign_of_such_a_name_is_refused_with_a_hint(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.py").touch()
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"name: {name}\nexecutor: local\ncommand: [a.py]\ntrain: {{steps: 3}}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(spec)
    [problem] = caught.value.problems
    assert problem.message == f"{name} is the name of something else in `dir`"
    free = (problem.hint or "").rpartition(" ")[2]
    assert load_spec(spec, [f"name={free}"]).name == free
