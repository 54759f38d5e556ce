"""Two conditions beside each other."""

from __future__ import annotations

from dscampaign.db.records import RunState
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.difference import compare, verdict
from dscampaign.tests.support.planted import Plant, Planted, Try


def test_what_a_retry_changed_is_said_to_be_left_out(planted: Plant) -> None:
    tries = (Try(0, 10, "oom"), Try(0, 100, micro_batch=2))
    base, changed = conditions_of(planted(Planted("base"), Planted("changed", (0.1,), (3.0,), tries=tries)))
    assert "changed is not compared: a retry changed what completed." in verdict(compare(base, changed))


def test_what_has_not_completed_is_said_to_be_left_out(planted: Plant) -> None:
    failed = Planted("failed", (0.1,), (3.0,), state=RunState.FAILED, tries=(Try(0, 50, "crash"),))
    base, other = conditions_of(planted(Planted("base"), failed))
    assert "failed is not compared: none of its runs has completed." in verdict(compare(base, other))
    assert not any("not compared" in sentence for sentence in verdict(compare(base, base)))
