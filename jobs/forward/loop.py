"""Forward the spools of a run's attempts to one tool until the attempt is over."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from dscampaign.db.ingest.lines import MetricBatch, parse
from dscampaign.db.ingest.reader import read_on
from dscampaign.files.atomic_files import load_json, read_json, write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.documents import decode
from dscampaign.jobs.shared.payload import Payload

from .tool import State, Steps, Tool, make_tool, tell, tell_unfinished

POLL_S = 5.0
MAX_WAIT_S = 60.0  # between two tries of a tool that fails
CHUNK_BYTES = 1 << 20


class Forwarding:
    """The part of a tool in an attempt; lines that earlier attempts left come first."""

    def __init__(self, payload: Payload, tool: str) -> None:
        self._payload, self._name, self._paths = payload, tool, payload.paths
        self._state_file = payload.run_paths.forward_state(payload.config_hash, tool)
        self._state: State | None = None
        self._tool: Tool | None = None
        self._resumes = False

    def run(self, over: threading.Event, how: Callable[[], str]) -> None:
        """Forward lines until the attempt is over."""
        last, trouble, failures = False, "", 0
        while not last:
            last, before, trouble = over.is_set(), trouble, ""
            current = read_json(self._payload.run_paths.current)
            if current is not None and current["generation"] > self._payload.generation:
                return  # a newer attempt goes on with the run
            try:
                self._pass_on()
                if last and self._tool is not None:
                    self._tool.close(how())
            except ImportError as exc:
                package = "mlflow-skinny" if self._name == "mlflow" else self._name
                hint = f"; install it into the agents' environment, `pip install {package}`"
                self._tell("failed", f"{self._name} gets no metrics: {exc}{hint}")
                return
            except Exception as exc:  # noqa: BLE001 - a tool may raise anything, and nobody else is to suffer from it
                self._tool, trouble = None, f"{type(exc).__name__}: {exc}".partition("\n")[0]
            if trouble and trouble != before:
                self._tell("failed", f"{self._name} does not take the metrics, they wait in the spool: {trouble}")
            elif before and not trouble:
                self._tell("recovered", f"{self._name} takes the metrics again")
            failures = failures + 1 if trouble else 0
            if not last:
                rest_s = min(POLL_S * 2 ** min(failures, 9), MAX_WAIT_S)
                over.wait(rest_s * random.uniform(0.8, 1.2))  # many runs share a server and a file system
        if trouble:
            tell_unfinished(self._paths, self._name, "it has not taken all lines")

    def _pass_on(self) -> None:
        if self._state is None:
            with suppress(ValueError):  # it is damaged; an OSError is raised, lest a second run be made
                self._state = decode(State, load_json(self._state_file) or {})
            self._state = self._state or State()
            self._resumes = bool(self._state.offsets) and self._payload.generation not in self._state.offsets
            self._state.offsets.setdefault(self._payload.generation, 0)
        if self._tool is None:
            self._tool = self._open(self._state)
        for generation in sorted(self._state.offsets):
            spool = self._payload.run_paths.attempt(generation).metrics
            while stretch := read_on(spool, self._state.offsets[generation], CHUNK_BYTES):
                begin = self._state.offsets[generation] + stretch.skipped
                batch = MetricBatch(length=len(stretch.chunk)) if stretch.endless else parse(stretch.chunk, begin)
                if not stretch.skipped + batch.length:
                    break
                if self._resumes and batch.steps and generation == self._payload.generation:
                    self._tool.resume(min(batch.steps))
                    self._resumes = False
                self._send(self._tool, self._state, batch.steps)
                self._state.offsets[generation] = begin + batch.length
                self._save(self._state)

    def _open(self, state: State) -> Tool:
        """Begin the run in the tool, or go on with it; its id is saved before anything is sent."""
        self._save(state)
        tool = make_tool(self._name, self._payload, state)
        trouble = tool.open()
        self._save(state)
        message = f"{self._name}: run {state.run_id}, {state.where}"
        self._tell("opened", message, run_id=state.run_id, where=state.where)
        if trouble:
            self._tell("failed", f"{self._name}: {trouble}")
        return tool

    def _send(self, tool: Tool, state: State, steps: Steps) -> None:
        new: dict[int, dict[str, float]] = {}
        for step, values in steps.items():
            old = {name for name in values if tool.keeps_first and step <= state.marks.get(name, -1)} - {"ts"}
            if values.keys() - old - {"ts"}:
                new[step] = {name: value for name, value in values.items() if name not in old}
        if new:
            tool.send(new)
        for step, values in steps.items():
            for name in values:
                state.marks[name] = max(step, state.marks.get(name, -1))

    def _save(self, state: State) -> None:
        make_below(self._payload.run_paths.dir, self._state_file.parent, closed=True)
        write_atomically(self._state_file, json.dumps(asdict(state)))

    def _tell(self, event: str, message: str, **data: object) -> None:
        tell(self._paths, event, self._name, message, **data)
