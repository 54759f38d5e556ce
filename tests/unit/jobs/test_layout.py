"""What lies in `dir` beside the campaigns has a name that no campaign may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import Beside, is_reserved
from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.settings import resolve
from dscampaign.orchestrator.spec.load import load_spec


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


def test_every_file_that_a_store_makes_there_is_reserved(tmp_path: Path) -> None:
    store = Store.open(resolve({"dir": str(tmp_path), "store": None}, {}).store, create=True)
    with store.write() as conn:
        conn.exec_driver_sql("CREATE TABLE x (y)")
        made = {path.name for path in tmp_path.iterdir()}
    assert Beside.STORE in made
    assert {name for name in made if not is_reserved(name)} == set()
    store.close()
