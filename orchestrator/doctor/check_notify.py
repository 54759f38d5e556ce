"""Whether messages arrive: sends one by each way of the spec's `notify`."""

from __future__ import annotations

from dscampaign.orchestrator.campaign.desired import Submission
from dscampaign.orchestrator.reconcile.notify import TEST, WAYS, message, send

from .check import At, Check


def notify_checks(submission: Submission) -> list[Check]:
    """Send the test messages; return a check of each."""
    notify, at = submission.rules["notify"], At("notify")
    sent = message(submission.spec.name, TEST, {})
    troubles = {way: send(notify, way, sent) for way in WAYS if way in notify}
    return [
        at.problem(f"notify.{way}", f"not delivered: {trouble}", f"correct notify.{way}, or the service's settings")
        if trouble
        else at.ok(f"notify.{way}", "a test message was delivered")
        for way, trouble in troubles.items()
    ]
