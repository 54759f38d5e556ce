"""Add the place of an attempt in a job that runs several."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns; attempts of older stores have a job each."""
    op.add_column("attempt", sa.Column("task", sa.Integer()))
    op.add_column("attempt", sa.Column("position", sa.Integer()))
