"""What failed, as the report lists it."""

from types import SimpleNamespace
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.report.measure.failures import FailedAttempt, failed_attempts
from dscampaign.orchestrator.report.page.setup import failures


def test_many_failures_of_one_cause_share_a_row() -> None:
    def failed(run: int, reason: str) -> FailedAttempt:
        return FailedAttempt(f"lr-{run}", 1, "oom", reason, f"attempt 2 from step {run}, micro-batch 4 → 2")

    runs = [[failed(run, f"tried to allocate {run}.5 GiB")] for run in range(6)]
    results: Any = SimpleNamespace(runs=[SimpleNamespace(failures=one) for one in [*runs, [failed(9, "killed")]]])
    [table] = failures(results).tables
    assert [row[0] for row in table.rows] == ["lr-9", "lr-0, lr-1 and 4 more"]
    assert table.rows[1][3] == "tried to allocate 0.5 GiB"


@pytest.mark.parametrize(("start_step", "then"), [(None, "attempt 2"), (0, "attempt 2 from step 0")])
def test_where_a_script_of_its_own_went_on_is_said_only_once_it_is_known(start_step: int | None, then: str) -> None:
    run: Any = SimpleNamespace(name="r", state=RunState.RUNNING, reason="")
    same = {"micro_batch": None, "changes": "", "config_hash": "h", "id": 1}
    first: Any = SimpleNamespace(generation=1, failure_class="crash", evidence={"reason": "boom"}, **same)
    later: Any = SimpleNamespace(generation=2, failure_class=None, start_step=start_step, **same)
    [found] = failed_attempts(run, [first, later], {})
    assert found.then == then


@pytest.mark.parametrize(
    ("reason", "then"),
    [
        ("KeyError: 'x'", "no further try"),
        (
            "KeyError: 'x' · look at x · it failed so three times",
            "no further try: look at x · it failed so three times",
        ),
        ("KeyError: 'xy'", "no further try: KeyError: 'xy'"),
        ("", "no further try"),
    ],
)
def test_a_reason_is_not_said_twice(reason: str, then: str) -> None:
    run: Any = SimpleNamespace(name="r", state=RunState.FAILED, reason=reason)
    attempt: Any = SimpleNamespace(generation=1, failure_class="crash", evidence={"reason": "KeyError: 'x'"})
    [found] = failed_attempts(run, [attempt], {})
    assert (found.reason, found.then) == ("KeyError: 'x'", then)
