"""What failed, as the report lists it."""

from types import SimpleNamespace
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.report.measure.cost import failed_attempts


@pytest.mark.parametrize(("start_step", "then"), [(None, "attempt 2"), (0, "attempt 2 from step 0")])
def test_where_a_script_of_its_own_went_on_is_said_only_once_it_is_known(start_step: int | None, then: str) -> None:
    run: Any = SimpleNamespace(name="r", state=RunState.RUNNING, reason="")
    same = {"micro_batch": None, "changes": "", "config_hash": "h", "id": 1}
    first: Any = SimpleNamespace(generation=1, failure_class="crash", evidence={"reason": "boom"}, **same)
    later: Any = SimpleNamespace(generation=2, failure_class=None, start_step=start_step, **same)
    [found] = failed_attempts(run, [first, later], {})
    assert found.then == then


@pytest.mark.parametrize("reason", ["KeyError: 'x' · look at x · it failed so three times", ""])
def test_the_last_failure_has_the_reason_of_the_run(reason: str) -> None:
    run: Any = SimpleNamespace(name="r", state=RunState.FAILED, reason=reason)
    attempt: Any = SimpleNamespace(generation=1, failure_class="crash", evidence={"reason": "KeyError: 'x'"})
    [found] = failed_attempts(run, [attempt], {})
    assert (found.reason, found.then) == (reason or "KeyError: 'x'", "no further try")
