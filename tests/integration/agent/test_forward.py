"""What other tools get of a run: read back from the tools' own files."""

from __future__ import annotations

import errno
import json
import math
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.summary.writer import event_file_writer

from dscampaign.files.atomic_files import load_json, write_atomically
from dscampaign.jobs.forward import loop
from dscampaign.jobs.forward.loop import Forwarding
from dscampaign.jobs.forward.tool import tell
from dscampaign.jobs.shared.layout import AttemptPaths, RunPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.tests.support import curves
from dscampaign.tests.support.attempt import make_payload
from dscampaign.tests.support.waiting import wait_until

FIRST, SECOND = range(1, 8), range(5, 10)
"""Steps of two attempts: the second one goes on from step 4."""


@dataclass
class Run:
    """A run whose attempts are written and forwarded by the test."""

    folder: Path
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        server = f"sqlite:///{self.folder}/mlflow.db"
        self.options = {"wandb": {"mode": "offline"}, "tensorboard": {}, "mlflow": {"tracking_uri": server}}
        self.values = {"params": {"lr": 1e-3, "schedule": "cosine"}}

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.folder / "c" / "runs" / "r")

    @property
    def server(self) -> str:
        return str(self.options["mlflow"]["tracking_uri"])

    def attempt(self, generation: int) -> AttemptPaths:
        return self.paths.attempt(generation)

    def payload(self, generation: int) -> Payload:
        attempt_dir = str(self.attempt(generation).dir)
        made = make_payload(self.folder, forward=self.options, attempt_dir=attempt_dir, **self.values)
        return replace(made, generation=generation, micro_batch=4 // generation, accumulation=generation)

    def begin(self, generation: int) -> None:
        self.attempt(generation).dir.mkdir(parents=True, exist_ok=True)
        write_atomically(self.paths.current, json.dumps({"generation": generation}))

    def report(self, generation: int, steps: Iterable[int], name: str = "loss", value: float | None = None) -> None:
        """Each step's value says which attempt made it."""
        with self.attempt(generation).metrics.open("a") as spool:
            for step in steps:
                given = 100.0 * generation + step if value is None else value
                spool.write(json.dumps({"step": step, "ts": 1.7e9 + step, name: given}) + "\n")

    def train(self, tool: str, generation: int, steps: Iterable[int], how: str = "finished") -> None:
        """An attempt that has ended before the tool's process begins."""
        self.begin(generation)
        self.report(generation, steps)
        self.forward(tool, generation, how)

    def forward(self, tool: str, generation: int, how: str = "finished") -> None:
        over = threading.Event()
        over.set()
        Forwarding(self.payload(generation), tool).run(over, lambda: how)

    def state(self, tool: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.paths.forward_state("hash", tool).read_text())
        return found

    def said(self, generation: int) -> list[dict[str, Any]]:
        spool = self.attempt(generation).forward_spool
        return [json.loads(line) for line in spool.read_text().splitlines()] if spool.exists() else []

    def curve(self, tool: str, name: str = "loss") -> curves.Curve:
        if tool == "wandb":
            return curves.wandb_curve(curves.wandb_files(self.paths.forward), name)
        if tool == "mlflow":
            return curves.mlflow_curve(self.server, self.state(tool)["run_id"], name)
        return curves.tensorboard_curve(Path(self.state(tool)["where"]), name)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow, which takes it seconds to make."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    curves.make_mlflow_tables(f"sqlite:///{file}")
    return file


@pytest.fixture
def run(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run, on a machine where nobody has logged in to anything."""
    shutil.copy(database, tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    # A process numbers its files, and TensorBoard sorts them by name: a test that comes tenth must not differ.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Run(tmp_path)


# -- one curve --------------------------------------------------------------------------------------------------


def once(first: range, second: range) -> curves.Curve:
    """Each step once, as the attempt made it that came to it first."""
    return [(step, 100.0 + step) for step in first] + [(s, 200.0 + s) for s in second if s not in first]


def anew(first: range, second: range) -> curves.Curve:
    """Each step once, as the attempt made it that came to it last."""
    return [(step, 100.0 + step) for step in first if step < second[0]] + [(s, 200.0 + s) for s in second]


@pytest.mark.parametrize(("tool", "expected"), [("wandb", once), ("mlflow", once), ("tensorboard", anew)])
def test_two_attempts_are_one_curve(run: Run, tool: str, expected: Any) -> None:
    run.train(tool, 1, FIRST, "failed")
    before = run.state(tool)
    run.train(tool, 2, SECOND)
    assert run.curve(tool) == expected(FIRST, SECOND)
    assert run.state(tool)["run_id"] == before["run_id"]


@pytest.mark.parametrize("tool", ["wandb", "mlflow", "tensorboard"])
def test_what_is_no_number_gets_through(run: Run, tool: str) -> None:
    run.begin(1)
    run.report(1, [1], value=math.nan)
    run.report(1, [2], value=math.inf)
    run.report(1, [3])
    run.forward(tool, 1)
    [(_, nan), (_, infinite), last] = run.curve(tool)
    assert math.isnan(nan)
    assert infinite > 1e300  # a database of MLflow keeps the largest number that it has
    assert last == (3, 103.0)


@pytest.mark.parametrize("tool", ["wandb", "mlflow", "tensorboard"])
def test_lines_of_one_step_complete_each_other(run: Run, tool: str) -> None:
    run.begin(1)
    run.report(1, [1, 2])
    run.report(1, [2], name="eval/loss", value=7.5)
    run.report(1, [3])
    run.forward(tool, 1)
    assert run.curve(tool) == [(1, 101.0), (2, 102.0), (3, 103.0)]
    assert run.curve(tool, "eval/loss") == [(2, 7.5)]


@pytest.mark.parametrize(("tool", "first_anew"), [("mlflow", 1205), ("tensorboard", 1201)])
def test_what_a_tool_missed_comes_with_the_next_attempt(
    run: Run, tool: str, first_anew: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one request takes, and than one read."""
    monkeypatch.setattr(loop, "CHUNK_BYTES", 2000)
    missed, second = range(1, 1205), range(1201, 1210)
    run.train(tool, 1, [])
    run.report(1, missed)
    run.train(tool, 2, second)
    anew = [(step, 200.0 + step) for step in range(first_anew, 1210)]
    assert run.curve(tool) == [(step, 100.0 + step) for step in range(1, first_anew)] + anew


# -- what the run is --------------------------------------------------------------------------------------------


def test_wandb_knows_what_the_run_is(run: Run) -> None:
    run.options["wandb"] |= {"project": "p", "entity": "team", "group": "g", "tags": ["mine"]}
    run.train("wandb", 1, FIRST)
    [file] = curves.wandb_files(run.paths.forward)
    found = curves.wandb_run(file)
    assert (found.project, found.entity, found.run_group, found.display_name) == ("p", "team", "g", "r")
    assert (found.run_id, list(found.tags)) == (run.state("wandb")["run_id"], ["c", "mine"])
    config = curves.wandb_config(file)
    assert (config["lr"], config["schedule"], config["attempt"], config["micro_batch"]) == (1e-3, "cosine", 1, 4)
    assert curves.wandb_rows(file)[0]["_timestamp"] == 1.7e9 + 1  # when the step ended


def test_mlflow_knows_what_the_run_is_and_how_it_goes(run: Run) -> None:
    run.options["mlflow"]["experiment"] = "e"
    run.train("mlflow", 1, FIRST, "failed")
    found = curves.mlflow_run(run.server, run.state("mlflow")["run_id"])
    assert (found.info.status, found.info.run_name) == ("FAILED", "r")
    assert found.data.params.items() >= {"lr": "0.001", "schedule": "cosine", "campaign": "c"}.items()
    assert found.data.tags.items() >= {"attempt": "1", "micro_batch": "4", "run": "r"}.items()
    run.train("mlflow", 2, SECOND)
    found = curves.mlflow_run(run.server, run.state("mlflow")["run_id"])
    assert (found.info.status, found.data.tags["attempt"], found.data.tags["micro_batch"]) == ("FINISHED", "2", "2")


def test_a_state_that_cannot_be_read_for_a_moment_begins_no_second_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.train("mlflow", 1, FIRST, "failed")
    first = run.state("mlflow")
    failures = [2]

    def stale(path: Path) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return load_json(path)

    monkeypatch.setattr(loop, "load_json", stale)
    monkeypatch.setattr(loop, "POLL_S", 0.01)
    run.begin(2)
    run.report(2, SECOND)
    over = threading.Event()
    threading.Timer(1.0, over.set).start()
    Forwarding(run.payload(2), "mlflow").run(over, lambda: "finished")
    assert run.state("mlflow")["run_id"] == first["run_id"]
    assert [step for step, _ in run.curve("mlflow")] == list(range(1, 10))


def test_tensorboard_knows_what_the_run_is(run: Run, tmp_path: Path) -> None:
    run.options["tensorboard"]["dir"] = str(tmp_path / "board")
    run.train("tensorboard", 1, FIRST, "failed")
    run.train("tensorboard", 2, SECOND)
    folder = tmp_path / "board" / "c" / "r"
    assert curves.tensorboard_settings(folder).items() >= {"lr": 1e-3, "schedule": "cosine", "campaign": "c"}.items()
    assert curves.tensorboard_curve(folder, "attempt/micro_batch") == [(1, 4.0), (5, 2.0)]
    assert curves.tensorboard_curve(folder, "attempt/attempt") == [(1, 1.0), (5, 2.0)]


# -- as it goes, and when it does not ---------------------------------------------------------------------------


def test_lines_arrive_while_the_attempt_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POLL_S", 0.01)
    run.begin(1)
    over = threading.Event()
    thread = threading.Thread(target=Forwarding(run.payload(1), "tensorboard").run, args=(over, lambda: "finished"))
    thread.start()
    try:
        run.report(1, [1, 2])
        with run.attempt(1).metrics.open("a") as spool:
            spool.write('{"step": 3, "lo')
        wait_until(lambda: _marks(run).get("loss") == 2, "the second step")
        assert run.curve("tensorboard") == [(1, 101.0), (2, 102.0)]
        with run.attempt(1).metrics.open("a") as spool:
            spool.write('ss": 103.0}\n')
        wait_until(lambda: _marks(run).get("loss") == 3, "the third step")
    finally:
        over.set()
        thread.join()
    assert run.curve("tensorboard") == [(1, 101.0), (2, 102.0), (3, 103.0)]


def _marks(run: Run) -> dict[str, int]:
    path = run.paths.forward_state("hash", "tensorboard")
    marks: dict[str, int] = json.loads(path.read_text())["marks"] if path.exists() else {}
    return marks


def test_wandb_without_a_key_is_kept_offline(run: Run) -> None:
    run.options["wandb"] = {}
    run.train("wandb", 1, FIRST)
    assert run.curve("wandb") == once(FIRST, range(0))
    [_, said] = run.said(1)
    assert said["event"] == "failed"
    assert "API key" in said["message"]
    assert f"`wandb sync {run.state('wandb')['where']}` sends it" in said["message"]


def test_a_server_that_does_not_answer_is_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POLL_S", 0.01)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = run.server
    run.options["mlflow"] = {}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hidden@127.0.0.1:9")
    run.begin(1)
    run.report(1, FIRST)
    over = threading.Event()
    thread = threading.Thread(target=Forwarding(run.payload(1), "mlflow").run, args=(over, lambda: "finished"))
    thread.start()
    try:
        wait_until(lambda: bool(run.said(1)), "the failure")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
        wait_until(lambda: [said["event"] for said in run.said(1)] == ["failed", "opened", "recovered"], "recovery")
    finally:
        over.set()
        thread.join()
    assert curves.mlflow_curve(server, run.state("mlflow")["run_id"], "loss") == once(FIRST, range(0))
    assert "hidden" not in run.attempt(1).forward_spool.read_text()


@pytest.mark.parametrize("user", ["me:hid@den", "me:p@ss/hidden", "hidden", "me:hidden"])
def test_no_part_of_a_password_reaches_an_event(run: Run, user: str) -> None:
    run.begin(1)
    said = f"no response from https://{user}@host:5000/api, nor from http://host:5000/a?x=b@c"
    tell(run.attempt(1), "failed", "mlflow", said)
    [event] = run.said(1)
    assert event["message"] == "no response from https://host:5000/api, nor from http://host:5000/a?x=b@c"
