"""What `campaign recommend` prints of very many conditions."""

from __future__ import annotations

from dscampaign.orchestrator.cli.pages.report import _alike


def test_very_many_conditions_that_are_out_for_one_reason_share_a_row() -> None:
    cancelled = {f"lr-{number}": "it was cancelled" for number in range(10_000)}
    rows = list(_alike({"slow": "no step was timed", **cancelled, "odd": "it failed"}))
    assert rows == [
        ("slow", "no step was timed"),
        ("lr-0, lr-1 and 9,998 more", "it was cancelled"),
        ("odd", "it failed"),
    ]


def test_few_have_a_row_each() -> None:
    few = {f"lr-{number}": "it was cancelled" for number in range(20)}
    assert dict(_alike(few)) == few
