"""Telemetry of each GPU, the GPUs of an attempt, and how much of each node's telemetry the store holds; MFU."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_REAL = sa.Float(53)

_RUN_METRIC = """
CREATE VIEW run_metric AS
SELECT a.run_id, a.generation, m.*
FROM run r
JOIN attempt a ON a.run_id = r.id AND a.config_hash = r.config_hash
JOIN step_metric m ON m.attempt_id = a.id
WHERE NOT EXISTS (
    SELECT 1
    FROM attempt later
    JOIN step_metric again ON again.attempt_id = later.id AND again.step = m.step
    WHERE later.run_id = a.run_id AND later.generation > a.generation AND later.config_hash = r.config_hash
)
"""


def upgrade() -> None:
    """Applies the change; there is no way back but a backup."""
    op.execute("DROP VIEW run_metric")  # its columns were fixed when it was made
    for table in ("step_metric", "run_latest"):
        op.add_column(table, sa.Column("mfu", _REAL))
    op.execute(_RUN_METRIC)
    op.drop_table("gpu_sample")  # until now nothing wrote to it
    op.create_table(
        "gpu_sample",
        sa.Column("attempt_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("node_rank", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("gpu", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("ts_s", _REAL, nullable=False),
        sa.Column("span_s", _REAL, nullable=False),
        sa.Column("util_pct", _REAL),
        sa.Column("mem_util_pct", _REAL),
        sa.Column("mem_used_gb", _REAL),
        sa.Column("temperature_c", _REAL),
        sa.Column("sm_clock_mhz", _REAL),
        sa.Column("mem_clock_mhz", _REAL),
        sa.Column("power_w", _REAL),
        sa.Column("power_avg_w", _REAL),
        sa.Column("energy_j", _REAL),
        sa.Column("throttle", sa.BigInteger),
        sa.Column("ecc_errors", sa.BigInteger),
        sa.PrimaryKeyConstraint("attempt_id", "node_rank", "gpu", "ts_s", name="pk_gpu_sample"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "gpu",
        sa.Column("attempt_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("node_rank", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("gpu", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("uuid", sa.String(255), nullable=False),
        sa.Column("mem_total_gb", _REAL),
        sa.Column("power_limit_w", _REAL),
        sa.Column("sm_clock_max_mhz", _REAL),
        sa.Column("mem_clock_max_mhz", _REAL),
        sa.PrimaryKeyConstraint("attempt_id", "node_rank", "gpu", name="pk_gpu"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "node_spool",
        sa.Column("attempt_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("node_rank", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("spool_offset", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", "node_rank", name="pk_node_spool"),
        sqlite_with_rowid=False,
    )
