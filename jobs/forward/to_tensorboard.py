"""A run as a folder of TensorBoard event files, written with TensorBoard's own writer: neither torch nor TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dscampaign.files.private_files import make_below, make_private
from dscampaign.jobs.shared.layout import RunPaths
from dscampaign.jobs.shared.payload import Payload

from .tool import Opened, State, Steps, Tool, flat, metrics_of, settings_of, sizes_of

HASH_DIGITS = 6


class ToTensorBoard(Tool):
    """One folder of event files."""

    keeps_first = False  # TensorBoard drops the steps that a restart makes anew

    def __init__(self, payload: Payload, state: State) -> None:
        super().__init__(payload, state)
        self._writer: Any = None
        self._sizes_sent = False

    def open(self) -> Opened:
        """Begin a file in the run's folder."""
        folder = self._state.where or str(self._new_folder())
        if Path(folder).is_relative_to(self._campaign):
            make_below(self._campaign, Path(folder), closed=True)
        else:
            make_private(Path(folder))
        self._writer = EventFileWriter(folder)
        if not self._state.where:
            settings = flat(settings_of(self._payload))
            self._write(summary=hparams.hparams_pb({name: _plain(value) for name, value in settings.items()}))
        return Opened(Path(folder).name, folder)

    def resume(self, step: int) -> None:
        """Mark steps from here on as made anew: TensorBoard drops those of the attempt before."""
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def send(self, steps: Steps) -> None:
        """Write each step, before the first step the sizes of this attempt."""
        if not self._sizes_sent:
            sizes = {f"attempt/{name}": value for name, value in sizes_of(self._payload).items()}
            self._write(step=min(steps), summary=Summary(value=[*_scalars(sizes)]))
            self._sizes_sent = True
        for step, values in steps.items():
            summary = Summary(value=[*_scalars(metrics_of(values))])
            self._write(step=step, wall_time=values.get("ts"), summary=summary)
        self._writer.flush()

    def close(self, how: str) -> None:  # noqa: ARG002 - the protocol's
        """Close the file."""
        self._writer.close()

    def _write(self, *, wall_time: float | None = None, **event: Any) -> None:
        self._writer.add_event(Event(wall_time=time.time() if wall_time is None else wall_time, **event))

    @property
    def _campaign(self) -> Path:
        return RunPaths(Path(self._payload.run_dir)).dir.parents[1]

    def _new_folder(self) -> Path:
        """Return a folder of this experiment's own, also if another experiment had the run's name before."""
        run, folder = self._payload.run, self._payload.forward["tensorboard"].get("dir")
        logs = Path(folder).expanduser() / self._payload.campaign if folder else self._campaign / "tensorboard"
        exists = any((logs / run).glob("events.out.tfevents.*"))
        return logs / (f"{run}-{self._payload.config_hash[:HASH_DIGITS]}" if exists else run)


def _scalars(values: dict[str, float]) -> Iterator[Any]:
    return (Summary.Value(tag=name, simple_value=value) for name, value in values.items())


def _plain(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)
