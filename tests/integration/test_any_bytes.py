"""Whatever an agent, a rank or a forwarder leaves in its files: no pass ends by it, and no page of what there is.

Beside the run whose files hold anything at all runs a healthy one, which completes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dscampaign.db.schema import metadata
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.jobs.agent.evidence import NodeOutcome, RankEnd
from dscampaign.jobs.agent.gpus import Gpu, GpuFacts
from dscampaign.jobs.agent.node import Start
from dscampaign.jobs.agent.progress import Heartbeat, RankProgress
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.reconcile.loop import Pass
from dscampaign.tests.support.world_on_disk import World

pytestmark = pytest.mark.nightly

BAD, GOOD = "depth-1", "depth-2"
PASSES = 20
EXAMPLES = int(os.environ.get("ANY_BYTES_EXAMPLES", "12"))
"""On each database; more of them look further."""

_ODD: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**53 + 1, 2**63, 10**30, -(2**70), 1.5, -0.0, 1e300, 1e-300),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "1", "\0", "\ud800", "\udcff\0", "x" * 70_000, "\x1b[2J"),
    *([], {}, [[]], {"": None}, [1, "a", None], {"a": {"b": [1e400]}}),
]
_SCALARS = st.one_of(st.sampled_from(_ODD), st.integers(), st.floats(), st.text(max_size=20))
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_DEEP = [*(b"[" * n + b"]" * n for n in (31, 200, 900, 990, 100_000)), b'{"a":' * 900 + b"1" + b"}" * 900, b"[" * 10**5]

_OUTCOME = asdict(
    NodeOutcome(
        *(1, "1_0", 0, "n", 1, "", 100.0, 160.0, 0, 3),
        ranks=(RankEnd(0, 1, {"type": "builtins.OSError", "message": "m", "trace": ["t"], "ts": 120.0}),),
        gpus=GpuFacts(1, (Gpu("0", 1, 2),), ()),
    )
)
_DOCUMENTS: dict[str, list[dict[str, Any]]] = {
    "outcome-0.json": [_OUTCOME],
    "heartbeat-0.json": [asdict(Heartbeat(5.0, "n", 9e9, "train", {0: RankProgress(3, "train")}))],
    "started.json": [asdict(Start("1_0", "n", "a", 1, "", 0, 5.0, 1, 1))],
    "claim": [{"job_id": "1_0", "host": "n", "ts": 5.0}],
    "ranks/rank-0.json": [{"rank": 0, "state": "running", "pid": 1}],
}
_SPEED = {"tokens_per_s": 5.0, "step_time_median_s": 1.0, "steps": 9, "warm_up_steps": 2, "warm_up_s": 1.0}
_FIGURES = ("loss", "eval_loss", "lr", "step_time", "tokens_per_s", "mem_reserved", "mfu", "skipped_steps", "own")
_LINES: dict[str, list[dict[str, Any]]] = {
    "metrics.jsonl": [
        {"step": 4, "ts": 7.0, **dict.fromkeys(_FIGURES, 1.0)},
        {"event": "target", "ts": 1.0, "steps": 3},
        {"event": "checkpoint", "step": 3, "path": "p", "size_bytes": 5},
        {"event": "memory", "device": "d", "torch": "t", "usable_gb": 8.0, "after_init_gb": 1.0, "per_sample_gb": 1.0},
        {"event": "memory", "peak_allocated_gb": 2.0, "peak_reserved_gb": 3.0, "micro_batch": 1},
        {"event": "speed", "mfu": 0.4, "data_wait_share": 0.1, "alloc_retries": 1, **_SPEED},
        {"event": "start", "device": "d", "torch": "t", "parameters": 5, "world_size": 1, "tokens": 9, "seq_len": 4},
        {"event": "eval", "message": "m", "loss": 1.0},
    ],
    "gpus-0.jsonl": [
        {"devices": [{"gpu": 0, "name": "H100", "uuid": "u", "mem_total_gb": 80.0}], "node": "n"},
        {"ts": 7.0, "span_s": 1.0, "gpu": [0], "power_w": [100.0], "energy_j": [5], "util_pct": [50]},
        {"event": "slowed", "message": "m", "ts": 5.0},
    ],
    "forward.jsonl": [
        {"event": "opened", "ts": 5.0, "tool": "wandb", "message": "m", "run_id": "a", "where": "w"},
        {"event": "failed", "ts": 5.0, "tool": "wandb", "message": "m"},
    ],
}


@st.composite
def changed(draw: st.DrawFn, originals: list[dict[str, Any]]) -> bytes:
    """A record as it should be, but for some of its values."""
    made: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(originals))))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = made
        while isinstance(place, dict | list) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], dict | list) or draw(st.booleans()):
                place[key] = draw(_JSON)
                break
            place = place[key]
    if draw(st.integers(0, 9)) == 0:
        made[draw(st.text(max_size=8))] = draw(_JSON)
    return json.dumps(made).encode()


def contents(name: str) -> st.SearchStrategy[bytes]:
    """What the file of that name may hold."""
    anything = st.one_of(st.binary(max_size=200), st.sampled_from(_DEEP), _JSON.map(lambda v: json.dumps(v).encode()))
    if name in _LINES:
        line = st.one_of(changed(_LINES[name]), changed(_LINES[name]), anything)
        lines = st.lists(line, max_size=8).map(b"\n".join)
        return st.builds(lambda text, end: text + end, lines, st.sampled_from([b"\n", b"", b"\n\n"]))
    return st.one_of(changed(_DOCUMENTS[name]), changed(_DOCUMENTS[name]), anything) if name in _DOCUMENTS else anything


FOLDER, PIPE, LOOP, HUGE = "folder", "pipe", "loop", "huge"
_NAMES = [*_DOCUMENTS, *_LINES, "checkpoints", "agent.log"]
_FILES = st.dictionaries(st.sampled_from(_NAMES), st.sampled_from([FOLDER, PIPE, LOOP, HUGE]), max_size=2).flatmap(
    lambda odd: st.fixed_dictionaries({}, optional={name: contents(name) for name in _NAMES if name not in odd}).map(
        lambda written: {**written, **odd}
    )
)

Files = Mapping[str, bytes | str]


def place(path: Path, what: bytes | str) -> None:
    """Puts it there, whatever was there before."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(what, bytes):
        path.write_bytes(what)
    elif what == FOLDER:
        path.mkdir()
    elif what == PIPE:
        os.mkfifo(path)
    elif what == LOOP:
        path.symlink_to(path.name)
    else:
        with path.open("wb") as file:
            file.write(b'{"step": 1, ')
            file.truncate(33 << 20)


class Trial:
    """A campaign of two runs in a folder and a store of its own."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.world = folder, World(folder, store)

    def run(self, early: Files, late: Files) -> None:
        """Runs the campaign, with these files in the place of the first run's while it runs and once it has ended."""
        world = self.world
        world.record()
        world.run_pass()
        bad = next(payload for payload in world.cluster.payloads() if payload.run == BAD)
        [key] = [key for key in world.cluster.jobs if key[1] == self._index(bad.attempt_dir)]
        queued = world.cluster.jobs.pop(key)
        world.cluster.jobs[key] = queued._replace(state="RUNNING")
        self._leave(early)
        world.run_pass()
        world.run_jobs()
        world.cluster.jobs[key] = queued._replace(state="FAILED", exit_code="1:0")
        self._leave(late)
        done = self._settle()
        assert done.settled, (world.states(), [str(trouble) for trouble in done.troubles])
        assert world.states()[GOOD] == "completed"
        assert world.steps(GOOD) == [1, 2, 3]
        assert world.states()[BAD] in ("completed", "failed", "held"), world.runs()[BAD].reason

    def _settle(self) -> Pass:
        for _ in range(PASSES):
            done = self.world.run_pass()
            if done.settled:
                break
            self.world.run_jobs()
            with self.world.store.write() as conn:  # no waiting for the next try
                conn.exec_driver_sql("UPDATE run SET not_before_s = NULL")
        return done

    def _index(self, attempt_dir: str) -> int:
        [row] = [row for row in self.world.attempts(BAD) if str(Path(row.spool_path).parent) == attempt_dir]
        return row.array_index or 0

    def _leave(self, files: Files) -> None:
        [row] = self.world.attempts(BAD)[:1]
        for name, what in files.items():
            path = Path(row.spool_path).parent / name
            if name == "checkpoints":
                kept = self.world.paths.run(BAD).checkpoints(row.config_hash)
                path = kept / "g0001-step00000002" / "manifest.json"
            if name == "agent.log":
                path = self.world.paths.batch(row.token) / f"{row.array_index}.log"
            place(path, what)

    def read(self, url: str) -> None:
        """Every command that only reads."""
        commands = [
            *(["status"], ["status", "--json"], ["describe"], ["describe", "--json"], ["describe", "c", BAD]),
            *(["describe", "c", BAD, "--json"], ["explain", "c", BAD], ["report", "c", "--json"], ["recommend", "c"]),
            *(["export", "--what", what, "--format", form, "--output", f"{self.folder}/x"] for what, form in EXPORTS),
        ]
        for command in commands:
            assert main([*command, "--store", url]) in (0, 1, 2, 8), command


EXPORTS = [
    *(("steps", "csv"), ("runs", "json"), ("gpus", "csv"), ("attempts", "csv"), ("events", "json")),
    *(("steps", "parquet"), ("events", "parquet"), ("runs", "parquet"), ("gpus", "parquet"), ("attempts", "parquet")),
]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path}/campaign.db"
        Store.open(made, create=True).close()
        return made
    address: str = request.getfixturevalue("postgres").new_database()
    upgrade(Store.open(address, check_schema=False))
    return address


def tried(url: str, early: Files, late: Files) -> None:
    """A campaign in this store, which is empty again afterwards."""
    folder, store = Path(tempfile.mkdtemp(prefix="any-bytes-")), Store.open(url)
    try:
        trial = Trial(folder, store)
        trial.run(early, late)
        trial.read(url)
    finally:
        with store.write() as conn:
            for table in reversed(metadata.sorted_tables):
                conn.execute(table.delete())
        store.close()
        shutil.rmtree(folder)


_INF = b'{"event": "target", "steps": 1e400}\n{"event": "odd", "ts": 1e300}\n'


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(early=_FILES, late=_FILES)
@example(early={"metrics.jsonl": _INF}, late={})
@example(early={}, late={"outcome-0.json": PIPE, "metrics.jsonl": PIPE, "checkpoints": PIPE})
@example(early={"claim": FOLDER, "heartbeat-0.json": HUGE}, late={"outcome-0.json": HUGE, "started.json": LOOP})
def test_whatever_lies_there_the_others_complete(url: str, early: Files, late: Files) -> None:
    tried(url, early, late)
