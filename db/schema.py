"""The tables. Their shape is a promise: a change here needs a migration (`tests/unit/db/test_upgrade.py` compares)."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    and_,
    event,
)
from sqlalchemy.types import TypeEngine

from .gpu_records import GPU_FIGURES, WHOLE_FIGURES
from .records import METRIC_COLUMNS
from .rows import DocumentType
from .states import AttemptState, Cause, CauseCode, RunState, Stage
from .storable import MAX_TEXT, text

HEAD: Final = "0007"  # the newest migration, named here so that opening a store does not import Alembic

Real = Float(53)  # eight bytes on every database

BigId = BigInteger().with_variant(Integer, "sqlite")  # a key that counts itself up: SQLite does that for INTEGER only

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _state(states: type[StrEnum]) -> Enum:
    """Return the type of a StrEnum kept as text, so that a new state needs no migration."""
    values = [str(state) for state in states]
    return Enum(states, native_enum=False, length=16, values_callable=lambda _: values)


class _CauseType(TypeDecorator[Cause]):
    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Cause | None, dialect: Dialect) -> dict[str, Any] | None:  # noqa: ARG002
        return {"code": value.code, "names": value.names} if value else None

    def process_result_value(self, value: dict[str, Any] | None, dialect: Dialect) -> Cause | None:  # noqa: ARG002
        return Cause(CauseCode(value["code"]), tuple(value["names"])) if value else None


class StorableText(TypeDecorator[str]):
    """Text from outside that every database takes, see `storable.text`, cut to `longest` or the column's length."""

    impl = Text
    cache_ok = True

    def __init__(self, length: int | None = None, longest: int | None = MAX_TEXT) -> None:
        super().__init__()
        self.length, self.longest = length, length or longest

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:  # noqa: ARG002
        """Return the plain type: a dialect's descriptor of TEXT may be VARCHAR."""
        return String(self.length) if self.length else Text()

    def bind_processor(self, dialect: Dialect) -> Callable[[str | None], str | None]:  # noqa: ARG002
        """Make it storable."""
        return lambda value: None if value is None else text(value, self.longest)


def _id() -> Column[int]:
    return Column("id", BigId, primary_key=True)


def _ref(name: str, to: Table, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, ForeignKey(to.c.id), nullable=nullable)


def _key(name: str, kind: type[Integer] = BigInteger) -> Column[int]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _gpu_key() -> tuple[Column[int], Column[int], Column[int]]:
    return _key("attempt_id"), _key("node_rank", Integer), _key("gpu", Integer)


campaign = Table(
    "campaign",
    metadata,
    _id(),
    Column("name", StorableText(255), nullable=False, unique=True),
    Column("spec", StorableText(longest=None), nullable=False),
    Column("spec_hash", StorableText(64), nullable=False),
    Column("dir", StorableText(), nullable=False),
    Column("executor", StorableText(32), nullable=False),
    Column("desired", StorableText(16), nullable=False),
    Column("provenance", JSON, nullable=False),
    Column("created_s", Real, nullable=False),
    Column("limits", JSON, nullable=False, server_default="{}"),
)

run = Table(
    "run",
    metadata,
    _id(),
    _ref("campaign_id", campaign),
    Column("name", StorableText(255), nullable=False),
    Column("params", JSON, nullable=False),
    Column("config", DocumentType, nullable=False),
    Column("config_hash", StorableText(64), nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("state", _state(RunState), nullable=False),
    Column("reason", StorableText(), nullable=False),
    Column("desired", StorableText(16), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("retry_epoch", Integer, nullable=False),
    Column("target_step", BigInteger),
    Column("ordinal", Integer, nullable=False),
    Column("not_before_s", Real),
    Column("updated_s", Real, nullable=False),
    Column("code", String(64), nullable=False, server_default=""),
    Column("stage", _state(Stage), nullable=False, server_default=Stage.FULL),
    Column("cause", _CauseType),
    UniqueConstraint("campaign_id", "name"),
    Index(None, "campaign_id", "ordinal"),
)

attempt = Table(
    "attempt",
    metadata,
    _id(),
    _ref("run_id", run),
    Column("generation", Integer, nullable=False),
    Column("token", StorableText(64), nullable=False, index=True),
    Column("array_index", Integer),
    Column("task", Integer),
    Column("position", Integer),
    Column("job_token", StorableText(64)),
    Column("job_id", StorableText(64)),
    Column("submit_time_s", Real),
    Column("created_s", Real, nullable=False),
    Column("state", _state(AttemptState), nullable=False),
    Column("config_hash", StorableText(64), nullable=False),
    Column("retry_epoch", Integer, nullable=False),
    Column("micro_batch", Integer, nullable=True),
    Column("accumulation", Integer, nullable=True),
    Column("world_size", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("start_step", BigInteger),
    Column("last_step", BigInteger),
    Column("failure_class", StorableText(64)),
    Column("evidence", DocumentType, nullable=False),
    Column("heartbeat_s", Real),
    Column("gpu_seconds", Real, nullable=False),
    Column("spool_path", StorableText(), nullable=False),
    Column("spool_offset", BigInteger, nullable=False),
    Column("started_s", Real),
    Column("ended_s", Real),
    Column("executor", StorableText(32), nullable=False),
    Column("changes", StorableText(), nullable=False, server_default=""),
    Column("memory_key", StorableText(255)),
    Column("predicted_gb", Real),
    Column("code", String(64), nullable=False, server_default=""),
    Column("phase", StorableText(32), nullable=False, server_default=""),
    Column("phase_since_s", Real),
    Column("node_list", StorableText(), nullable=False, server_default=""),
    UniqueConstraint("run_id", "generation"),
)

# The tables that grow with every step have no foreign keys: ingest holds the attempt's row while it writes,
# attempts go only with their campaign, and a check for each of 10^8 rows is not free.
step_metric = Table(
    "step_metric",
    metadata,
    _key("attempt_id"),
    _key("step"),
    Column("ts_s", Real),
    *(Column(name, Real) for name in METRIC_COLUMNS.values()),
    # Bit i set: column i of METRIC_COLUMNS is not finite. SQLite has no NaN: it is NULL with its bit set.
    Column("nonfinite", Integer, nullable=False),
    sqlite_with_rowid=False,
)

metric_extra = Table(
    "metric_extra",
    metadata,
    _key("attempt_id"),
    _key("step"),
    Column("name", StorableText(200), primary_key=True),
    Column("value", Real),  # NULL is NaN
    sqlite_with_rowid=False,
)

gpu_sample = Table(
    "gpu_sample",
    metadata,
    *_gpu_key(),
    Column("ts_s", Real, primary_key=True),
    Column("span_s", Real, nullable=False),
    *(Column(name, BigInteger if name in WHOLE_FIGURES else Real) for name in GPU_FIGURES),
    sqlite_with_rowid=False,
)

gpu = Table(
    "gpu",
    metadata,
    *_gpu_key(),
    *(Column(name, StorableText(255), nullable=False) for name in ("node", "name", "uuid")),
    *(Column(name, Real) for name in ("mem_total_gb", "power_limit_w", "sm_clock_max_mhz", "mem_clock_max_mhz")),
    sqlite_with_rowid=False,
)

node_spool = Table(
    "node_spool",
    metadata,
    _key("attempt_id"),
    _key("node_rank", Integer),
    Column("spool_offset", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

run_latest = Table(
    "run_latest",
    metadata,
    Column("run_id", BigId, primary_key=True, autoincrement=False),
    Column("attempt_id", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("ts_s", Real),
    *(Column(name, Real) for name in METRIC_COLUMNS.values()),
    Column("nonfinite", Integer, nullable=False),
)

events = Table(
    "event",
    metadata,
    _id(),
    _ref("campaign_id", campaign),
    _ref("run_id", run, nullable=True),
    _ref("attempt_id", attempt, nullable=True),
    Column("ts_s", Real, nullable=False),
    Column("kind", StorableText(64), nullable=False),
    Column("message", StorableText(), nullable=False),
    Column("data", DocumentType, nullable=False),
    Index(None, "campaign_id", "id"),
    Index(None, "run_id", "id"),
)

checkpoint = Table(
    "checkpoint",
    metadata,
    _ref("run_id", run),
    _ref("attempt_id", attempt),
    Column("generation", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("path", StorableText(), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_s", Real, nullable=False),
    UniqueConstraint("attempt_id", "step"),
    Index(None, "run_id"),
)

memory_observation = Table(
    "memory_observation",
    metadata,
    Column("key", StorableText(255), nullable=False),
    _ref("attempt_id", attempt),
    Column("micro_batch", Integer, nullable=False),
    Column("oom", Boolean, nullable=False),
    Column("after_init_gb", Real),
    Column("peak_reserved_gb", Real),
    Column("usable_gb", Real),
    Column("created_s", Real, nullable=False),
    Column("per_sample_gb", Real),
    Column("peak_allocated_gb", Real),
    UniqueConstraint("attempt_id", "oom"),
    Index(None, "key"),
)

lease = Table(
    "lease",
    metadata,
    Column("name", StorableText(64), primary_key=True),
    Column("holder", StorableText(255), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_s", Real, nullable=False),
    Column("asked_s", Real),
    Column("heard_s", Real),
    Column("trouble", StorableText(), nullable=False, server_default=""),
)

NEWEST: Final = and_(attempt.c.run_id == run.c.id, attempt.c.generation == run.c.generation)
"""Of an attempt and a run: it is the run's newest."""

PRESENT: Final = and_(attempt.c.run_id == run.c.id, attempt.c.config_hash == run.c.config_hash)
"""Of an attempt and a run: it has the run's present configuration."""

RUN_METRIC_VIEW = """
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
"""Each step of each run from the highest attempt that has the run's present configuration. `m.*` is fixed when the
view is made: a migration that adds a metric column makes it anew."""

run_metric = Table(
    "run_metric",
    MetaData(),  # a view: never created as a table
    Column("run_id", BigInteger),
    Column("generation", Integer),
    *(Column(column.name, column.type) for column in step_metric.columns),
)

event.listen(metadata, "after_create", DDL(RUN_METRIC_VIEW))
