"""Forward the spools of a run's attempts to one tool until the attempt is over."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from dscampaign.db.ingest.lines import MetricBatch, parse
from dscampaign.db.ingest.reader import read_on
from dscampaign.files.atomic_files import load_json, read_json, write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared import spool_steps
from dscampaign.jobs.shared.documents import decode
from dscampaign.jobs.shared.layout import RunPaths
from dscampaign.jobs.shared.payload import Payload

from .spool import tell, tell_unfinished
from .tool import Opened, State, Steps, Tool, make_tool

POLL_S = 5.0
MAX_WAIT_S = 60.0
"""Between two tries of a tool that fails."""
CHUNK_BYTES = 1 << 20
_ENDLESS = 1 << 60
_TITLES = {"wandb": "W&B", "tensorboard": "TensorBoard", "mlflow": "MLflow"}


class Forwarding:
    """One tool's part of an attempt.

    Args:
        payload: the attempt as it really runs.
        tool: the tool's name.
    """

    def __init__(self, payload: Payload, tool: str) -> None:
        self._payload, self._name = payload, tool
        self._title = _TITLES.get(tool, tool)
        self._run_paths = RunPaths(Path(payload.run_dir))
        self._paths = self._run_paths.attempt(payload.generation)
        self._state_file = self._run_paths.forward_state(payload.config_hash, tool)
        self._state, self._begun = State(), False
        self._tool: Tool | None = None
        self._trouble = ""
        self._failures = 0
        self._behind = False
        """Whether earlier attempts may have lines that the tool lacks."""

    def run(self, over: threading.Event, how: Callable[[], str]) -> None:
        """Forward lines until the attempt is over.

        Args:
            over: set when the ranks are gone.
            how: returns how they ended, once they have.
        """
        last = False
        while not last:
            last = over.is_set()
            if self._superseded() or not self._try(last):
                return  # a newer attempt goes on with the run, or nothing can be done
            if not last:
                rest_s = min(POLL_S * 2 ** min(self._failures, 9), MAX_WAIT_S)
                over.wait(rest_s * random.uniform(0.8, 1.2))  # many runs share a server and a file system
        if self._tool is not None:
            self._close(how())
        if self._trouble:
            tell_unfinished(self._paths, self._name, f"{self._left_bytes()} bytes of the spool were not passed on")

    def _try(self, last: bool) -> bool:
        """Forward the lines that are there; return False if trying again is of no use."""
        try:
            self._pass_on(last)
        except ImportError as exc:
            hint = ""
            if (exc.name or "").partition(".")[0] == self._name:
                package = "mlflow-skinny" if self._name == "mlflow" else self._name
                hint = f"; install it into the agents' environment, `pip install {package}`"
            self._tell("failed", f"{self._title} gets no metrics: {exc}{hint}")
            return False
        except Exception as exc:  # noqa: BLE001 - a tool may raise anything, and nobody else is to suffer from it
            self._failed(exc)
        else:
            self._worked()
        return True

    def _pass_on(self, last: bool) -> None:
        if not self._begun:
            self._begin()
        if self._tool is None:
            self._save()
            tool = make_tool(self._name, self._payload, self._state)
            self._record(tool.open())
            self._tool = tool
        while (own := self._read(self._payload.generation)).length:
            if own.steps and self._behind:
                self._catch_up(spool_steps.first_step(self._paths.metrics, default=min(own.steps)))
                if not self._state.offsets[self._payload.generation]:
                    self._tool.resume(min(own.steps))
                self._behind = False
            self._send(self._payload.generation, own)
        if last and self._behind:  # this attempt made no step
            self._catch_up(_ENDLESS)

    def _begin(self) -> None:
        self._state = _state(self._state_file)
        self._state.offsets.setdefault(self._payload.generation, 0)
        self._behind = any(generation < self._payload.generation for generation in self._state.offsets)
        self._begun = True

    def _catch_up(self, first_step: int) -> None:
        ends, end = {}, first_step
        for generation in sorted(self._state.offsets, reverse=True):
            if generation < self._payload.generation:
                ends[generation] = end
                spool = self._run_paths.attempt(generation).metrics
                end = min(end, spool_steps.first_step(spool, default=end))
        for generation, end in sorted(ends.items()):
            while (batch := self._read(generation)).length:
                batch.steps = {step: values for step, values in batch.steps.items() if step < end}
                self._send(generation, batch)

    def _read(self, generation: int) -> MetricBatch:
        """Return the next complete lines of an attempt."""
        offset = self._state.offsets[generation]
        stretch = read_on(self._run_paths.attempt(generation).metrics, offset, CHUNK_BYTES)
        if stretch is None:
            return MetricBatch()
        chunk = stretch.chunk
        batch = MetricBatch(length=len(chunk)) if stretch.endless else parse(chunk, offset + stretch.skipped)
        batch.length += stretch.skipped
        return batch

    def _send(self, generation: int, batch: MetricBatch) -> None:
        assert self._tool is not None
        steps = self._new(batch.steps) if self._tool.keeps_first else batch.steps
        if steps:
            self._tool.send(steps)
        for step, values in batch.steps.items():
            for name in values:
                self._state.marks[name] = max(step, self._state.marks.get(name, -1))
        self._state.offsets[generation] += batch.length
        self._save()

    def _save(self) -> None:
        make_below(self._run_paths.dir, self._state_file.parent, closed=True)
        write_atomically(self._state_file, json.dumps(asdict(self._state)))

    def _new(self, steps: Steps) -> Steps:
        marks = self._state.marks
        new = {
            step: {name: v for name, v in values.items() if name == "ts" or step > marks.get(name, -1)}
            for step, values in steps.items()
        }
        return {step: values for step, values in new.items() if values.keys() - {"ts"}}

    def _left_bytes(self) -> int:
        try:
            return self._paths.metrics.stat().st_size - self._state.offsets.get(self._payload.generation, 0)
        except FileNotFoundError:
            return 0

    def _superseded(self) -> bool:
        current = read_json(self._run_paths.current)
        return current is not None and current["generation"] > self._payload.generation

    def _close(self, how: str) -> None:
        assert self._tool is not None
        try:
            self._tool.close(how)
        except Exception as exc:  # noqa: BLE001 - as above
            self._failed(exc)

    def _record(self, opened: Opened) -> None:
        """Save the run's id before anything is sent to it."""
        self._state.run_id, self._state.where = opened.run_id, opened.where
        self._save()
        message = f"{self._title}: run {opened.run_id}, {opened.where}"
        self._tell("opened", message, run_id=opened.run_id, where=opened.where)
        if opened.trouble:
            self._tell("failed", f"{self._title}: {opened.trouble}")

    def _failed(self, exc: Exception) -> None:
        self._failures += 1
        trouble = f"{type(exc).__name__}: {exc}".partition("\n")[0]
        if trouble != self._trouble:
            self._tell("failed", f"{self._title} does not take the metrics, they wait in the spool: {trouble}")
        self._trouble, self._tool = trouble, None

    def _worked(self) -> None:
        if self._trouble:
            self._tell("recovered", f"{self._title} takes the metrics again")
        self._failures, self._trouble = 0, ""

    def _tell(self, event: str, message: str, **data: object) -> None:
        tell(self._paths, event, self._name, message, **data)


def _state(path: Path) -> State:
    """Return the tool's part of the run, nothing if the file is damaged.

    Raises:
        OSError: it cannot be read now. To begin anew would make a second run in the tool.
    """
    with suppress(ValueError):
        state: State = decode(State, load_json(path) or {})
        return state
    return State()
