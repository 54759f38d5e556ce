"""Whose old metrics are thinned, and how much: what the user says now, else what the spec of each campaign says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dscampaign.db.prune import Pruned, Retention, prune
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.progress import counted

_DAY_S: Final = 86_400.0
_DEFAULT_DAYS: Final = 30.0


@dataclass(frozen=True)
class Thinning:
    """What of one campaign is thinned, and by which rule."""

    campaign: CampaignRow
    rule: Retention
    removed: Pruned = field(default_factory=Pruned)

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`."""
        rule = {"keep_every": self.rule.keep_every, "after_days": self.rule.after_s / _DAY_S}
        return {"campaign": self.campaign.name, **rule, **vars(self.removed)}


def thinnings(
    campaigns: Sequence[CampaignRow], keep_every: int | None, after_days: float | None
) -> tuple[Thinning, ...]:
    """What is asked for, of each campaign that a rule is about.

    Args:
        campaigns: those that the user means.
        keep_every: instead of the spec's.
        after_days: likewise.

    Raises:
        UserError: no rule is about any of them.
    """
    found = []
    for campaign in campaigns:
        said = campaign.provenance.get("retention") or {}
        every = keep_every or said.get("keep_every")
        days = after_days if after_days is not None else said.get("after_days", _DEFAULT_DAYS)
        if every:
            found.append(Thinning(campaign, Retention(int(every), float(days) * _DAY_S)))
    if not found:
        which = f"campaign {campaigns[0].name} has" if len(campaigns) == 1 else "the campaigns of this store have"
        hint = "say --keep-every 10, or set `retention: {keep_every: 10}` in the spec and submit it again"
        raise UserError(f"{which} no rule for old metrics", hint)
    return tuple(found)


def thin(store: Store, wanted: Thinning, *, dry_run: bool) -> Thinning:
    """Does it, or counts what would go; returns what did.

    Raises:
        StoreReadOnly: this user may not.
    """
    noun = "runs looked at" if dry_run else "runs thinned"
    removed = prune(store, wanted.campaign.id, wanted.rule, dry_run=dry_run, through=lambda runs: counted(noun, runs))
    return Thinning(wanted.campaign, wanted.rule, removed)
