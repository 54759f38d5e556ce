"""The code that a run's next attempt uses, and the code that each attempt ran."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Of what ran before, nobody knows."""
    for table in ("run", "attempt"):
        op.add_column(table, sa.Column("code", sa.String(64), nullable=False, server_default=""))
