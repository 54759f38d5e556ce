"""Two conditions beside each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dscampaign.db.records import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.report.compare import compare, verdict
from dscampaign.orchestrator.report.conditions import Condition, conditions_of
from dscampaign.orchestrator.report.load import read_runs

from .planted import Planted, Try, plant

Read = Callable[..., list[Condition]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Plants conditions and reads them back."""

    def conditions(*planted: Planted) -> list[Condition]:
        store = Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)
        found = conditions_of(read_runs(store, plant(store, tmp_path, planted)))
        store.close()
        return found

    return conditions


def test_what_a_retry_changed_is_said_to_be_left_out(read: Read) -> None:
    tries = (Try(0, 10, "oom"), Try(0, 100, micro_batch=2))
    base, changed = read(Planted("base"), Planted("changed", (0.1,), (3.0,), tries=tries))
    assert "changed is not compared: a retry changed what completed." in verdict(compare(base, changed))


def test_what_has_not_completed_is_said_to_be_left_out(read: Read) -> None:
    failed = Planted("failed", (0.1,), (3.0,), state=RunState.FAILED, tries=(Try(0, 50, "crash"),))
    base, other = read(Planted("base"), failed)
    assert "failed is not compared: none of its runs has completed." in verdict(compare(base, other))
    assert not any("not compared" in sentence for sentence in verdict(compare(base, base)))
