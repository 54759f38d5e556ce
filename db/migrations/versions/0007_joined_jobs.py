"""Add the job array that runs an attempt, if another submission began it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; attempts of older stores run in the array of their own submission."""
    op.add_column("attempt", sa.Column("job_token", sa.String(64)))
