"""Metrics of scripts that report none."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.collect import collector
from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.collect.formats import Line, metric_name
from dscampaign.jobs.collect.printed import CommonForms, Patterns, Printed
from dscampaign.tests.support.attempt import Attempt, make_payload
from dscampaign.tests.unit.jobs.test_event_files import WRITTEN_BY_TENSORBOARD, framed, record, scalar

TRAINER = (
    "Map: 100%|████| 7/7 [00:00<00:00]\r\r  0%|     | 0/20 [00:00<?, ?it/s]\r 15%|█   | 3/20 [00:01<00:01]"
    "\r        \r{'loss': '3.762', 'grad_norm': '1.5', 'learning_rate': '0.008', 'epoch': '0.07'}\n"
    "\r 25%|█▌  | 5/20 [00:10<00:27,  1.83s/it]\r 45%|███ | 9/20 [00:11<00:01]\n"
    "\r100%|████| 8/8 [00:03<00:00,  1.67it/s]\x1b[A\r     \r\x1b[A{'eval_loss': '3.235', 'epoch': '0.1562'}\n"
    "\r100%|████| 8/8 [00:04<00:00,  1.67it/s]\x1b[A\n"
    "\r 50%|██  | 10/20 [00:24<00:17,  1.75s/it]\r 55%|██▌ | 11/20 [00:27<00:33]"
    "\r{'train_runtime': '41.02', 'train_loss': '3.362', 'epoch': '0.3'}\r100%|████| 20/20 [00:41<00:00]"
    "\r100%|████| 20/20 [00:41<00:00]\n"
)
"""As the Trainer of Transformers 5 prints it."""


def read(text: str, form: CommonForms | Patterns, folder: Path) -> list[Line]:
    """The lines of a text, read in one piece."""
    (folder / "1_rank0.log").write_text(text)
    return Printed(folder, form).read(last=True)[0]


@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
def test_the_trainers_lines_have_the_step_of_the_bar_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("dscampaign.jobs.collect.printed.CHUNK_BYTES", piece)
    (tmp_path / "1_rank0.log").write_text(TRAINER)
    output, found, more = Printed(tmp_path, CommonForms()), list[Line](), True
    while more:
        lines, more = output.read(last=True)
        found += lines
    assert found == [
        {"step": 5, "loss": 3.762, "grad_norm": 1.5, "lr": 0.008, "epoch": 0.07},
        {"step": 10, "eval_loss": 3.235, "epoch": 0.1562},
        {"step": 20, "train_runtime": 41.02, "train_loss": 3.362, "epoch": 0.3},
    ]


def test_patterns_find_values_of_the_step_of_their_line_or_before(tmp_path: Path) -> None:
    form = Patterns({"step": r"^it (\d+)", "loss": r"L=(\S+)", "step_time_ms": r"(\d+) ms"})
    found = read("L=9\nit 1 L=2.5 (40 ms)\nL=2.25\nit 2\nL=oops\nL=-inf\n", form, tmp_path)
    inf = float("-inf")
    assert found == [{"step": 1, "loss": 2.5, "step_time": 0.04}, {"step": 1, "loss": 2.25}, {"step": 2, "loss": inf}]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("train/loss", "loss"),
        ("Loss/val", "eval_loss"),
        ("train/learning_rate", "lr"),
        ("eval/runtime", "eval/runtime"),
        ("train/train_loss", "train/train_loss"),
        ("step_loss", "loss"),
        ("train_loss_epoch", "train_loss_epoch"),  # a mean over the epoch
        ("val_loss", "eval_loss"),
        ("val_loss_step", "val_loss_step"),  # of one batch
    ],
)
def test_names(said: str, name: str) -> None:
    assert metric_name(said) == name


class Looked:
    """An attempt whose script writes, and the collector beside it."""

    def __init__(self, tmp_path: Path, **payload: Any) -> None:
        self.attempt = Attempt(tmp_path, make_payload(tmp_path, workdir=str(tmp_path / "work"), **payload))
        self.workdir = tmp_path / "work"
        self.attempt.prepare()
        self.attempt.paths.logs.mkdir(exist_ok=True)
        self.workdir.mkdir(exist_ok=True)

    def collector(self) -> Collector:
        return Collector(self.attempt.payload, self.attempt.paths, lambda: 4711)

    def print(self, text: str) -> None:
        with (self.attempt.paths.logs / "1_rank0.log").open("a") as log:
            log.write(text)

    def report(self, **line: Any) -> None:
        with self.attempt.paths.metrics.open("a") as spool:
            spool.write(json.dumps(line) + "\n")

    def reported(self) -> list[Any]:
        """Step and loss of each line, and the message of each event."""
        lines = map(json.loads, self.attempt.paths.metrics.read_text().splitlines())
        return [line["message"] if "event" in line else (line["step"], line["loss"]) for line in lines]

    def kinds(self) -> list[str]:
        """What each event calls its source."""
        lines = map(json.loads, self.attempt.paths.metrics.read_text().splitlines())
        return [line["source"] for line in lines if "event" in line]

    def events(self, folder: Path, pid: int = 4711) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.1795401873.some.host.{pid}.0"
        path.write_bytes(WRITTEN_BY_TENSORBOARD)
        return path


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "HOLD_S", 0.0)
    monkeypatch.setattr("dscampaign.jobs.collect.sources.SEARCH_S", 0.0)


@pytest.mark.parametrize("well", [True, False])
def test_what_is_printed_is_reported_once_and_a_fragment_never(tmp_path: Path, well: bool) -> None:
    looked = Looked(tmp_path)
    collect = looked.collector()
    for step in (1, 2):
        looked.print(f"step {step} loss {step}.5\n")
        collect.look()
        collect.look()
    looked.print("step 2 loss 9\nstep 3 loss 3.5\n\rstep 4 loss 4.5")
    collect.finish(well=well)
    said, *lines = looked.reported()
    assert said.endswith('"step 1 loss 1.5"')
    assert lines == [(1, 1.5), (2, 2.5), (3, 3.5), (4, 4.5)][: 3 + well]


def test_what_a_full_disk_refused_is_written_by_the_next_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(tmp_path)
    collect = looked.collector()
    looked.print("step 1 loss 1.5\n")
    with monkeypatch.context() as full:
        full.setattr(collector, "open_private", lambda *_: os.open("/dev/full", os.O_WRONLY))
        collect.look()
        with pytest.raises(OSError, match="No space left"):
            collect.finish(well=True)
    collect.finish(well=True)
    assert looked.reported()[1:] == [(1, 1.5)]


NOISE = ("debug " * 40 + "\n") * 10_000


def test_what_there_was_no_time_to_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AT_ONCE_S", "FINISH_S"):
        monkeypatch.setattr(collector, name, 0.0)
    looked = Looked(tmp_path)
    collect = looked.collector()
    looked.print(f"step 1 loss 1.5\n{NOISE}step 2 loss 2.5\n")
    collect.look()
    collect.finish()
    assert looked.reported()[1:] == [(1, 1.5), collector.UNREAD]


def test_a_script_that_begins_to_report_is_left_alone_from_then_on(tmp_path: Path) -> None:
    looked = Looked(tmp_path)
    collect = looked.collector()
    looked.print("step 1 loss 7\n")
    collect.look()
    looked.report(event="script", message="no step")
    looked.print("step 2 loss 7\n")
    collect.look()
    looked.report(step=3, loss=1.0)
    looked.print("step 3 loss 7\n")
    collect.look()
    collect.finish()
    assert [line for line in looked.reported() if isinstance(line, tuple)] == [(1, 7.0), (2, 7.0), (3, 1.0)]


def test_output_without_metrics_is_noticed_while_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Looked(tmp_path)
    collect = looked.collector()
    collect.look()
    looked.print("Epoch 7 - loss: 2.5\n")
    for silent_s in (60.0, 0.0, 0.0):
        monkeypatch.setattr(collector, "SILENT_S", silent_s)
        collect.look()
    assert (looked.reported(), looked.kinds()) == ([collector.NO_METRICS], ["none"])
    looked.print("step 1 loss 1.5\n")
    collect.look()
    assert looked.kinds() == ["none", "printed"]


def test_what_says_most_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dscampaign.jobs.collect.collector.time.time", lambda: 0.0)
    looked = Looked(tmp_path)
    collect = looked.collector()
    path = looked.events(looked.workdir / "runs")
    looked.print("step 2 loss 7\n")
    collect.finish()
    lines = [json.loads(line) for line in looked.attempt.paths.metrics.read_text().splitlines()]
    assert lines[0]["message"].endswith(str(path.parent))
    assert [{name: line[name] for name in line} for line in lines[1:]] == [
        {"step": 1, "ts": 1001.5, "loss": 2.5, "lr": 0.25},
        {"step": 2, "ts": 1002.5, "loss": 1.5},
        {"step": 300, "ts": 1300.5, "eval_loss": 1.25},
        {"step": 301, "ts": 1301.5, "one": 3.0},
    ]


def test_event_files_of_an_earlier_attempt_are_not_read(tmp_path: Path) -> None:
    looked = Looked(tmp_path)
    path = looked.events(Path(looked.attempt.payload.run_dir) / "tb")
    os.utime(path, (time.time() + 60, time.time() + 60))  # it is written on, and its values are old
    looked.collector().finish()
    assert not looked.attempt.paths.metrics.exists()


@pytest.mark.parametrize("step", [b"\xff" * 9000 + b"\x01", b"\xff" * 9 + b"\x01", b"\x80" * 8 + b"\x20"])
def test_no_step_of_an_event_file_ends_a_training_or_hides_what_follows(tmp_path: Path, step: bytes) -> None:
    """A number without end, a negative one, and one beyond what a float counts."""
    looked = Looked(tmp_path)
    collect = looked.collector()
    path = looked.events(Path(looked.attempt.payload.run_dir) / "tb")
    loss = scalar("train/loss", 2.5)
    damaged = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + step + b"\x2a" + bytes([len(loss)]) + loss
    path.write_bytes(framed(damaged) + record(1, loss))
    collect.finish()
    assert looked.reported()[1:] == [(1, 2.5)]


def test_collecting_ends_in_place_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("Exceeds the limit")

    looked = Looked(tmp_path)
    collect = looked.collector()
    monkeypatch.setattr("dscampaign.jobs.collect.sources.TensorBoard.read", fails)
    looked.print("step 2 loss 3\n")
    collect.follow(0.01)
    collect.finish()
    assert "not read any more: ValueError" in str(looked.reported()[-1])
