"""Figures of kept runs, computed from their stores by SQL and means alone: nothing here is code of the report."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from dscampaign import jobs

RESULTS = Path(jobs.__file__).parents[1] / "benchmarks/results"


@cache
def store(path: str) -> sqlite3.Connection:
    """Open a kept store in memory."""
    data = bytearray(gzip.decompress((RESULTS / path).read_bytes()))
    data[18:20] = b"\x01\x01"  # without the journal in a file of its own, for which memory has no place
    connection = sqlite3.connect(":memory:")
    connection.deserialize(bytes(data))
    connection.row_factory = sqlite3.Row
    return connection


@dataclass(frozen=True)
class KeptRun:
    """A run of a kept store."""

    path: str
    name: str

    @cached_property
    def row(self) -> sqlite3.Row:
        """The run."""
        row: sqlite3.Row = store(self.path).execute("SELECT * FROM run WHERE name = ?", (self.name,)).fetchone()
        return row

    @cached_property
    def attempts(self) -> list[sqlite3.Row]:
        """Its attempts with its present configuration, oldest first."""
        query = "SELECT * FROM attempt WHERE run_id = ? AND config_hash = ? ORDER BY generation"
        return store(self.path).execute(query, (self.row["id"], self.row["config_hash"])).fetchall()

    @cached_property
    def steps(self) -> list[sqlite3.Row]:
        """Its steps: of each the newest attempt's line."""
        query = "SELECT * FROM step_metric WHERE attempt_id = ? ORDER BY step"
        lines: dict[int, sqlite3.Row] = {}
        for attempt in self.attempts:
            for line in store(self.path).execute(query, (attempt["id"],)):
                lines[line["step"]] = line
        return [lines[step] for step in sorted(lines)]

    @cached_property
    def timed(self) -> list[sqlite3.Row]:
        """The steps after the warm-up of each attempt."""
        untimed = (json.loads(self.row["config"]).get("train") or {}).get("untimed_steps") or 20
        first = {}
        for attempt in self.attempts:
            begun = attempt["start_step"] or 0
            first[attempt["id"]] = begun + min(untimed, max(1, ((attempt["last_step"] or 0) - begun) // 2))
        return [one for one in self.steps if one["step"] > first[one["attempt_id"]] and one["step_time_s"]]

    def event(self, name: str) -> Mapping[str, Any]:
        """Return the fields that the trainer has reported under a name."""
        query = "SELECT data FROM event WHERE attempt_id = ? AND kind = ? ORDER BY id"
        found: dict[str, Any] = {}
        for (data,) in store(self.path).execute(query, (self.attempts[-1]["id"], f"script.{name}")):
            found |= json.loads(data)
        return found

    @cached_property
    def spans(self) -> list[tuple[sqlite3.Row, float]]:
        """The timed lines, each with the time of the steps since the line before it."""
        since = {after["step"]: before["step"] for before, after in pairwise(self.steps)}
        return [(one, one["step_time_s"] * (one["step"] - since.get(one["step"], 0))) for one in self.timed]

    @property
    def window_s(self) -> float:
        """Time of the timed steps."""
        return float(sum(span for _, span in self.spans))

    @property
    def speed(self) -> float:
        """Tokens of the timed steps by their time."""
        return float(sum(one["tokens_per_s"] * span for one, span in self.spans)) / self.window_s

    @property
    def mfu(self) -> float:
        """Mean over the time of the timed steps, in percent."""
        return 100 * float(sum(one["mfu"] * span for one, span in self.spans)) / self.window_s

    @property
    def step_ms(self) -> float:
        """Median time of the timed steps."""
        return 1e3 * float(median(one["step_time_s"] for one in self.timed))

    @property
    def late_steps_ms(self) -> list[float]:
        """Times of the last 20 steps."""
        return [1e3 * one["step_time_s"] for one in self.steps[-20:]]

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [one["loss"] for one in self.steps]

    @property
    def held_out(self) -> float:
        """The newest held-out loss."""
        return float([one["eval_loss"] for one in self.steps if one["eval_loss"] is not None][-1])

    @property
    def held_gb(self) -> float:
        """Highest reserved memory, after the warm-up if the trainer reports that."""
        return self._peak_gb("mem_reserved_gb")

    @property
    def allocated_gb(self) -> float:
        """The same of tensors."""
        return self._peak_gb("mem_allocated_gb")

    def _peak_gb(self, name: str) -> float:
        known = [one[name] for one in self.steps if one[name] is not None]
        return float(self.event("speed").get(name) or max(known))

    @property
    def left_gb(self) -> float:
        """Memory of tensors after the last step."""
        return float(self.event("speed")["mem_end_gb"])

    @property
    def host_gb(self) -> float:
        """Highest memory of the processes of a node."""
        nodes = [node for attempt in self.attempts for node in json.loads(attempt["evidence"])["nodes"]]
        return float(max(node["memory_peak_bytes"] for node in nodes)) / 1e9

    @cached_property
    def samples(self) -> list[sqlite3.Row]:
        """Samples of its GPUs between the end of the warm-up and the last step."""
        begin_s, end_s = self.timed[0]["ts_s"] - self.timed[0]["step_time_s"], self.timed[-1]["ts_s"]
        query = "SELECT * FROM gpu_sample WHERE attempt_id = ? AND ts_s BETWEEN ? AND ? ORDER BY gpu, ts_s"
        return store(self.path).execute(query, (self.timed[0]["attempt_id"], begin_s, end_s)).fetchall()

    def sampled(self, name: str) -> float:
        """Return the mean of a figure of its GPUs over the timed steps."""
        known = [(one[name], one["span_s"]) for one in self.samples if one[name] is not None]
        return float(sum(value * span for value, span in known) / sum(span for _, span in known))

    @property
    def busy_pct(self) -> float:
        """Mean utilisation of its GPUs."""
        return self.sampled("util_pct")

    @property
    def energy_kj(self) -> float:
        """Energy of all GPUs over the whole attempt, by their counters."""
        query = "SELECT max(energy_j) - min(energy_j) FROM gpu_sample WHERE attempt_id = ? GROUP BY node_rank, gpu"
        parts = (part for one in self.attempts for (part,) in store(self.path).execute(query, (one["id"],)))
        return float(sum(parts)) / 1e3

    @property
    def mj_per_token(self) -> float:
        """Energy of all GPUs between their first and last timed sample, by the tokens of that time."""
        used = 0.0
        for gpu in {one["gpu"] for one in self.samples}:
            own = [one for one in self.samples if one["gpu"] == gpu]
            used += (own[-1]["energy_j"] - own[0]["energy_j"]) / (own[-1]["ts_s"] - own[0]["ts_s"])
        return 1e3 * used / self.speed


def repeats(path: str, name: str) -> list[KeptRun]:
    """Return the runs of a condition that completed, in the order of their repeats."""
    names = [one for (one,) in store(path).execute("SELECT name FROM run WHERE state = 'completed' ORDER BY repeat")]
    return [KeptRun(path, one) for one in names if re.fullmatch(rf"{re.escape(name)}(-r\d+)?", one)]
