"""What an attempt is doing, and on which nodes; what the last pass of a reconciler learned."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Of attempts that run now, the next pass says it."""
    op.add_column("attempt", sa.Column("phase", sa.String(32), nullable=False, server_default=""))
    op.add_column("attempt", sa.Column("phase_since_s", sa.Float(53)))
    op.add_column("attempt", sa.Column("node_list", sa.Text(), nullable=False, server_default=""))
    op.add_column("lease", sa.Column("asked_s", sa.Float(53)))
    op.add_column("lease", sa.Column("heard_s", sa.Float(53)))
    op.add_column("lease", sa.Column("trouble", sa.Text(), nullable=False, server_default=""))
