"""Scripts that know nothing of campaigns: their losses are in the store and in the report all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support.campaigns import Observed, open_store, run_to_end, submit

pytestmark = pytest.mark.training

SCRIPTS = Path(__file__).parent / "unchanged"

SPEC = """\
name: unchanged
executor: local
local: {{parallel: 2}}
python: {launcher}
env: {{DS_ACCELERATOR: cpu}}
command: "{scripts}/{{script}} {{lr}}"
matrix:
  case:
    - {{label: trainer, script: hf_trainer.py, lr: 1e-2}}
    - {{label: nano, script: nano.py, lr: 1e-2}}
    - {{label: patterns, script: nano.py, lr: 2e-2, metrics: {{step: 'iter (\\d+)', loss: 'loss ([\\d.]+)'}}}}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("unchanged")
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(launcher=stand_in(folder), scripts=SCRIPTS))
    store = open_store(f"sqlite:///{folder}/campaign.db")
    yield run_to_end(store, submit(spec, folder, store))
    store.close()


def test_losses_are_found_in_what_the_scripts_print(done: Observed) -> None:
    assert set(done.states().values()) == {RunState.COMPLETED}
    steps = {name: [row.step for row in done.metrics(name) if row.loss] for name in done.runs}
    every_fifth = list(range(5, 41, 5))
    assert steps == {"case-trainer": [5, 10, 15, 20], "case-nano": every_fifth, "case-patterns": every_fifth}
    assert [row.step for row in done.metrics("case-trainer") if row.eval_loss] == [10, 20]


def test_an_event_says_where_they_come_from(done: Observed) -> None:
    messages = sorted(event.message for event in done.events() if event.kind == "script.metrics_source")
    begin = "the script does not report metrics; they are read from "
    sources = [message.removeprefix(begin).partition(", for example")[0] for message in messages]
    assert sources == ["lines of the output", "the Trainer's output", "the script's output, by the spec's patterns"]


def test_the_report_shows_their_losses(done: Observed, tmp_path: Path) -> None:
    where = ["--dir", str(Path(done.campaign.dir)), "--store", done.store.url_without_password]
    assert main(["report", "unchanged", "--output", str(tmp_path / "report"), *where]) == 0
    runs = json.loads((tmp_path / "report" / "report.json").read_text())["runs"]
    assert any("they are read from the Trainer's output" in remark for run in runs for remark in run["remarks"])
    assert all(0 < run["loss"]["final"] < 4.2 for run in runs)
    assert {run["software"].get("transformers") for run in runs} == {None, version("transformers")}
