"""The first schema, frozen: what a database that was made with it has. Migrations must lead on from here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

REVISION = "0001"

_REAL = sa.Float(53)
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_FIGURES = (
    "ts_s",
    "loss",
    "eval_loss",
    "lr",
    "grad_norm",
    "step_time_s",
    "tokens_per_s",
    "mem_allocated_gb",
    "mem_reserved_gb",
    "gpu_util_pct",
    "power_w",
    "mfu",
)
"""Of a step, and the newest of a run."""

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


def create() -> None:
    """Makes the tables, within Alembic's `Operations.context`."""
    _campaigns_and_runs()
    _attempts()
    _checkpoints_and_events()
    _metrics()
    _gpus()
    op.execute(_RUN_METRIC)


def _campaigns_and_runs() -> None:
    """What is desired and who may act on it."""
    op.create_table(
        "campaign",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("dir", sa.Text, nullable=False),
        sa.Column("executor", sa.String(32), nullable=False),
        sa.Column("desired", sa.String(16), nullable=False),
        sa.Column("provenance", sa.JSON, nullable=False),
        sa.Column("created_s", _REAL, nullable=False),
        sa.Column("limits", sa.JSON, nullable=False, server_default="{}"),
        sa.PrimaryKeyConstraint("id", name="pk_campaign"),
        sa.UniqueConstraint("name", name="uq_campaign_name"),
    )
    op.create_table(
        "run",
        sa.Column("id", _ID, nullable=False),
        sa.Column("campaign_id", sa.BigInteger, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("config_hash", sa.String(64), nullable=False),
        sa.Column("repeat", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("desired", sa.String(16), nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("retry_epoch", sa.Integer, nullable=False),
        sa.Column("target_step", sa.BigInteger),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("not_before_s", _REAL),
        sa.Column("updated_s", _REAL, nullable=False),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaign.id"], name="fk_run_campaign_id"),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("campaign_id", "name", name="uq_run_campaign_id_name"),
    )
    op.create_index("ix_run_campaign_id_ordinal", "run", ["campaign_id", "ordinal"])
    op.create_table(
        "lease",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_s", _REAL, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lease"),
    )


def _attempts() -> None:
    """What was submitted, and how it ended."""
    op.create_table(
        "attempt",
        sa.Column("id", _ID, nullable=False),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
        sa.Column("array_index", sa.Integer),
        sa.Column("job_id", sa.String(64)),
        sa.Column("submit_time_s", _REAL),
        sa.Column("created_s", _REAL, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("config_hash", sa.String(64), nullable=False),
        sa.Column("retry_epoch", sa.Integer, nullable=False),
        sa.Column("micro_batch", sa.Integer, nullable=True),
        sa.Column("accumulation", sa.Integer, nullable=True),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("start_step", sa.BigInteger),
        sa.Column("last_step", sa.BigInteger),
        sa.Column("failure_class", sa.String(64)),
        sa.Column("evidence", sa.JSON, nullable=False),
        sa.Column("heartbeat_s", _REAL),
        sa.Column("gpu_seconds", _REAL, nullable=False),
        sa.Column("spool_path", sa.Text, nullable=False),
        sa.Column("spool_offset", sa.BigInteger, nullable=False),
        sa.Column("started_s", _REAL),
        sa.Column("ended_s", _REAL),
        sa.Column("executor", sa.String(32), nullable=False),
        sa.Column("changes", sa.Text, nullable=False, server_default=""),
        sa.Column("memory_key", sa.String(255)),
        sa.Column("predicted_gb", _REAL),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_attempt_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempt"),
        sa.UniqueConstraint("run_id", "generation", name="uq_attempt_run_id_generation"),
    )
    op.create_index("ix_attempt_token", "attempt", ["token"])


def _checkpoints_and_events() -> None:
    """What attempts left, and what happened."""
    op.create_table(
        "checkpoint",
        sa.Column("run_id", sa.BigInteger, nullable=False),
        sa.Column("attempt_id", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_s", _REAL, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_checkpoint_attempt_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_checkpoint_run_id"),
        sa.UniqueConstraint("attempt_id", "step", name="uq_checkpoint_attempt_id_step"),
    )
    op.create_index("ix_checkpoint_run_id", "checkpoint", ["run_id"])
    op.create_table(
        "event",
        sa.Column("id", _ID, nullable=False),
        sa.Column("campaign_id", sa.BigInteger, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("attempt_id", sa.BigInteger),
        sa.Column("ts_s", _REAL, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_event_attempt_id"),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaign.id"], name="fk_event_campaign_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_event_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_event"),
    )
    op.create_index("ix_event_campaign_id_id", "event", ["campaign_id", "id"])
    op.create_index("ix_event_run_id_id", "event", ["run_id", "id"])


def _metrics() -> None:
    """What scripts report."""
    op.create_table(
        "step_metric",
        sa.Column("attempt_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger, autoincrement=False, nullable=False),
        *(sa.Column(name, _REAL) for name in _FIGURES),
        sa.Column("nonfinite", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", "step", name="pk_step_metric"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric_extra",
        sa.Column("attempt_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("value", _REAL),
        sa.PrimaryKeyConstraint("attempt_id", "step", "name", name="pk_metric_extra"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_latest",
        sa.Column("run_id", _ID, autoincrement=False, nullable=False),
        sa.Column("attempt_id", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        *(sa.Column(name, _REAL) for name in _FIGURES),
        sa.Column("nonfinite", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_latest"),
    )
    op.create_table(
        "memory_observation",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("attempt_id", sa.BigInteger, nullable=False),
        sa.Column("micro_batch", sa.Integer, nullable=False),
        sa.Column("oom", sa.Boolean, nullable=False),
        sa.Column("after_init_gb", _REAL),
        sa.Column("per_sample_gb", _REAL),
        sa.Column("peak_allocated_gb", _REAL),
        sa.Column("peak_reserved_gb", _REAL),
        sa.Column("usable_gb", _REAL),
        sa.Column("created_s", _REAL, nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempt.id"], name="fk_memory_observation_attempt_id"),
        sa.UniqueConstraint("attempt_id", "oom", name="uq_memory_observation_attempt_id_oom"),
    )
    op.create_index("ix_memory_observation_key", "memory_observation", ["key"])


def _gpus() -> None:
    """What the nodes report."""
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
        "node_spool",
        sa.Column("attempt_id", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("node_rank", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("spool_offset", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", "node_rank", name="pk_node_spool"),
        sqlite_with_rowid=False,
    )
