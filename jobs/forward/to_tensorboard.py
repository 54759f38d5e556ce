"""A run as a folder of TensorBoard event files, written with TensorBoard's own writer: neither torch nor TensorFlow."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from dscampaign.files.private_files import make_below, make_private

from .tool import Steps, Tool, flat, metrics_of, settings_of, sizes_of

HASH_DIGITS = 6


class ToTensorBoard(Tool):
    """One folder of event files."""

    keeps_first = False  # TensorBoard drops the steps that a restart makes anew

    _writer: Any
    _sizes_sent = False

    def open(self) -> str:
        """Begin a file in the run's folder."""
        campaign, run, given = self._payload.run_paths.dir.parents[1], self._payload.run, self._options.get("dir")
        logs = Path(given).expanduser() / self._payload.campaign if given else campaign / "tensorboard"
        if any((logs / run).glob("events.out.tfevents.*")):  # another experiment had the run's name before
            run += f"-{self._payload.config_hash[:HASH_DIGITS]}"
        folder = Path(self._state.where or logs / run)
        if folder.is_relative_to(campaign):
            make_below(campaign, folder, closed=True)
        else:
            make_private(folder)
        self._writer = EventFileWriter(str(folder))
        if not self._state.where:
            plain = (bool, int, float, str)
            settings = flat(settings_of(self._payload)).items()
            texts = {name: value if isinstance(value, plain) else json.dumps(value) for name, value in settings}
            self._write(summary=hparams.hparams_pb(texts))
        self._state.run_id, self._state.where = folder.name, str(folder)
        return ""

    def resume(self, step: int) -> None:
        """Mark steps from here on as made anew: TensorBoard drops the earlier attempt's steps."""
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def send(self, steps: Steps) -> None:
        """Write each step, before the first step the sizes of this attempt."""
        if not self._sizes_sent:
            sizes = {f"attempt/{name}": value for name, value in sizes_of(self._payload).items()}
            self._write(step=min(steps), summary=_summary(sizes))
            self._sizes_sent = True
        for step, values in steps.items():
            self._write(step=step, wall_time=values.get("ts"), summary=_summary(metrics_of(values)))
        self._writer.flush()

    def close(self, how: str) -> None:  # noqa: ARG002 - the protocol's
        """Close the file."""
        self._writer.close()

    def _write(self, *, wall_time: float | None = None, **event: Any) -> None:
        self._writer.add_event(Event(wall_time=time.time() if wall_time is None else wall_time, **event))


def _summary(values: dict[str, float]) -> Any:
    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
