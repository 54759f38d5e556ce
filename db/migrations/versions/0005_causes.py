"""Why a run is in its state, as a code with fields: decisions no longer read the text of its reason."""

import re

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_MISSING = re.compile(r"(.+) (?:was|were) set where this campaign was submitted, not where it is reconciled: .*")
_NEVER_STARTS = (
    "will not start", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "DependencyNeverSatisfied",
    "AccountNotAllowed", "InvalidAccount", "InvalidQOS",
)  # fmt: skip


def upgrade() -> None:
    """Read the cause from the reasons that earlier versions wrote; nothing else does."""
    op.add_column("run", sa.Column("cause", sa.JSON()))
    run = sa.table("run", sa.column("id"), sa.column("state"), sa.column("reason"), sa.column("cause", sa.JSON))
    conn = op.get_bind()
    columns = sa.select(run.c.id, run.c.state, run.c.reason)
    for run_id, state, reason in conn.execute(columns.where(run.c.state.in_(["held", "failed", "queued"]))).all():
        if cause := _cause(state, reason):
            conn.execute(sa.update(run).where(run.c.id == run_id).values(cause=cause))


def _cause(state: str, reason: str) -> dict[str, object] | None:
    code, names = "", list[str]()
    if state == "held" and reason.endswith("the other runs continue; a retry starts this one again"):
        code = "unreadable"
    elif state == "held" and (missing := _MISSING.fullmatch(reason)):
        code, names = "missing-variables", missing[1].split(", ")
    elif state == "failed" and reason.startswith("sbatch refused it"):
        code = "refused"
    elif state == "queued" and reason.startswith(_NEVER_STARTS):
        code = "never-starts"
    return {"code": code, "names": names} if code else None
