"""What other tools kept of a run, read back from their own files with their own code."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Curve = list[tuple[int, float]]
"""(step, value), in the order in which the tool has them."""

_HEADER = 7
_BLOCK = 32768
_PIECE = struct.Struct("<IHB")


def tensorboard_curve(folder: Path, name: str) -> Curve:
    """A scalar as TensorBoard shows it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return [(point.step, point.value) for point in read.Scalars(name)]


def tensorboard_settings(folder: Path) -> dict[str, Any]:
    """The hyperparameters of the newest attempt."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    read = EventAccumulator(str(folder))
    read.Reload()
    content = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in found.items()}


def make_mlflow_tables(uri: str) -> None:
    """Makes a new database, which takes MLflow seconds."""
    from mlflow.tracking import MlflowClient

    MlflowClient(tracking_uri=uri).search_experiments()


def mlflow_run(uri: str, run_id: str) -> Any:
    """A run as MLflow's client sees it."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri).get_run(run_id)


def mlflow_curve(uri: str, run_id: str, name: str) -> Curve:
    """A metric's whole history."""
    from mlflow.tracking import MlflowClient

    return [(m.step, m.value) for m in MlflowClient(tracking_uri=uri).get_metric_history(run_id, name)]


def wandb_files(forward: Path) -> list[Path]:
    """The files of a run's attempts that W&B keeps, oldest first."""
    return sorted(forward.glob("wandb/*run-*/run-*.wandb"))


def wandb_rows(file: Path) -> list[dict[str, Any]]:
    """The steps that a file holds."""
    rows = []
    for record in _records(file):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def wandb_run(file: Path) -> Any:
    """The run that a file is of."""
    return next(record.run for record in _records(file) if record.WhichOneof("record_type") == "run")


def wandb_config(file: Path) -> dict[str, Any]:
    """What the run was told to be, as it is at the end of the file."""
    config: dict[str, Any] = {}
    for record in _records(file):
        kind = record.WhichOneof("record_type")
        update = record.config.update if kind == "config" else record.run.config.update if kind == "run" else ()
        config |= {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in update}
    return config


def wandb_curve(files: list[Path], name: str) -> Curve:
    """A metric over all attempts, as `wandb sync` sends them one after another."""
    return [(row["_step"], row[name]) for file in files for row in wandb_rows(file) if name in row]


def _records(file: Path) -> Iterator[Any]:
    """W&B's records: its messages in LevelDB's log format, behind a header of its own."""
    from wandb.proto import wandb_internal_pb2

    parts = b""
    for kind, piece in _pieces(file.read_bytes()):
        parts += piece
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = _HEADER
    while at + _PIECE.size <= len(data):
        if (left := _BLOCK - at % _BLOCK) < _PIECE.size:
            at += left
            continue
        _checksum, length, kind = _PIECE.unpack_from(data, at)
        at += _PIECE.size
        if kind == 0:  # the rest of a block that was reserved
            return
        yield kind, data[at : at + length]
        at += length
