"""Add the cause of a run's state: a code with fields, on which decisions rest."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; runs of older stores keep their state without a cause."""
    op.add_column("run", sa.Column("cause", sa.JSON()))
