"""Limits of a campaign; what an attempt changed and the memory that was predicted for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Applies the change; there is no way back but a backup."""
    op.add_column("campaign", sa.Column("limits", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("attempt", sa.Column("changes", sa.Text, nullable=False, server_default=""))
    op.add_column("attempt", sa.Column("memory_key", sa.String(255), nullable=True))
    op.add_column("attempt", sa.Column("predicted_gb", sa.Float(53), nullable=True))
    op.add_column("memory_observation", sa.Column("per_sample_gb", sa.Float(53), nullable=True))
    op.add_column("memory_observation", sa.Column("peak_allocated_gb", sa.Float(53), nullable=True))
