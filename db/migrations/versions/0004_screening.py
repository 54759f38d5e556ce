"""Which stage of a campaign a run belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Campaigns so far have only one."""
    op.add_column("run", sa.Column("stage", sa.String(16), nullable=False, server_default="full"))
