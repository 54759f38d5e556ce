"""Every attempt of a run has the same folder, code and variables, whoever submits it and whatever was edited since."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.db.records import CampaignRow
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign import desired
from dscampaign.orchestrator.campaign.plan import make_plan
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.pages.status import status_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.orchestrator.report.compare.answer import answer
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.difference import compare, verdict
from dscampaign.orchestrator.report.measure.flags import remarks_of
from dscampaign.orchestrator.report.measure.load import read_runs
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.support.campaigns import Observed, observe, open_store, submit
from dscampaign.tests.support.spec_files import load_spec
from dscampaign.tests.support.waiting import wait_until

STUB = REPOSITORY / "tests/support/stub_launcher.py"

DIES_FIRST = """
import json, os, signal, sys
from pathlib import Path
def saw(**what):
    file = Path(os.environ["CAMPAIGN_RUN_DIR"], "saw.jsonl")
    with file.open("a") as spool:
        spool.write(json.dumps({"cwd": os.getcwd(), **what}) + "\\n")
    if os.environ["CAMPAIGN_GENERATION"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""Says what it saw; the first attempt then dies as a node would let it die, so that another follows."""

SETTINGS = "from said import saw\nsaw(read=open('settings.txt').read())\n"
DATA = """
from pathlib import Path
from said import saw
beside = Path(__file__).resolve().parent / "data" / "tokens.bin"
saw(read=[Path("data/tokens.bin").read_text(), beside.read_text()])
"""
CODE = """
import sys
import helper
from said import saw
saw(read=["old", helper.VERSION, open(sys.argv[2]).read()])
"""


class Project:
    """A folder with training scripts, a campaign of them, and the shells that look after it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dir = folder / "project", folder / "shared"
        self.write("said.py", DIES_FIRST)
        self.write("settings.txt", "five")
        self.store: Store = open_store(f"sqlite:///{folder}/campaign.db")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def submit(self, *commands: str, **values: Any) -> CampaignRow:
        spec: dict[str, Any] = {"name": "same", "executor": "local", "python": str(STUB), "ranks_per_node": 1}
        spec |= {"local": {"parallel": 4}, "retry": {"backoff_s": 0}, "train": {"steps": 1}}
        spec |= {"matrix": {"command": [command.split() for command in commands]}, **values}
        return submit(self.write("spec.yaml", yaml.safe_dump(spec)), self.dir, self.store)

    def submission(self) -> Submission:
        """The same spec once more."""
        spec = self.folder / "spec.yaml"
        read = load_spec(spec)
        return Submission(read, spec.read_text(), expand(read), self.dir, spec)

    def settle(self, campaign: CampaignRow) -> Observed:
        reconciler = Reconciler(self.store, campaign)
        wait_until(lambda: reconciler.run_pass().settled, "a settled campaign")
        reconciler.close()
        return observe(self.store, campaign)

    def first_attempts(self, campaign: CampaignRow) -> None:
        """One pass, as `submit` does, and until its attempts have ended. Nobody has looked since."""
        reconciler = Reconciler(self.store, campaign)
        reconciler.run_pass()
        reconciler.close()
        attempts = [rows[-1] for rows in observe(self.store, campaign).attempts.values()]
        wait_until(
            lambda: all(Path(row.spool_path).with_name("outcome-0.json").exists() for row in attempts),
            "the first attempts to end",
        )

    def saw(self, run: str) -> list[dict[str, Any]]:
        lines = (self.dir / "same" / "runs" / run / "saw.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def all_saw(self, done: Observed) -> dict[str, list[Any]]:
        return {run.config["command"][-1].rpartition("/")[2]: self.saw(name) for name, run in done.runs.items()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    made = Project(tmp_path)
    monkeypatch.chdir(made.folder)
    yield made
    made.store.close()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


@pytest.mark.parametrize("git", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["git", "no-git"])
def test_ordinary_scripts_go_on_wherever_they_are_resubmitted(
    project: Project, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, *, git: bool
) -> None:
    project.write("settings.py", SETTINGS)
    project.write("data.py", DATA)
    project.write("data/tokens.bin", "1 2 3")
    project.write("pkg/__init__.py", "")
    project.write("pkg/train.py", "import pkg\n" + SETTINGS)
    if git:
        project.write(".gitignore", "data/\n")
        subprocess.run(["git", "init", "-q"], check=True)
    campaign = project.submit("settings.py", "data.py", "-m pkg.train")
    project.first_attempts(campaign)
    monkeypatch.chdir(elsewhere)
    done = project.settle(campaign)
    assert set(done.states().values()) == {RunState.COMPLETED}, [run.reason for run in done.runs.values()]
    here = str(project.folder)
    assert project.all_saw(done) == {
        "settings.py": [{"cwd": here, "read": "five"}] * 2,
        "data.py": [{"cwd": here, "read": ["1 2 3"] * 2}] * 2,
        "pkg.train": [{"cwd": here, "read": "five"}] * 2,
    }


def test_a_run_keeps_the_code_that_it_began_with_until_it_is_retried(project: Project) -> None:
    project.write("train.py", CODE)
    project.write("helper.py", "VERSION = 'old'\n")
    project.write("conf/a.yaml", "old")
    campaign = project.submit("train.py --config conf/a.yaml")
    project.first_attempts(campaign)
    project.write("train.py", CODE.replace('"old"', '"new"'))
    project.write("helper.py", "VERSION = 'newer'\n")
    (project.folder / "conf/a.yaml").unlink()
    done = project.settle(campaign)
    [run] = done.runs
    assert [line["read"] for line in project.saw(run)] == [["old"] * 3] * 2
    assert [attempt.code for attempt in done.attempts[run]] == [done.runs[run].code] * 2


def test_a_mistake_that_was_mended_is_mended_for_a_run_that_is_retried(project: Project) -> None:
    script = project.write("train.py", "undefined\n")
    project.write("other.py", "")
    campaign = project.submit("train.py", "other.py")
    failed = project.settle(campaign)
    [run] = [run for run in failed.runs.values() if run.state is RunState.FAILED]
    script.write_text("")
    notes = make_plan(project.store, project.submission()).notes
    assert any("2 runs keep older code" in note for note in notes), notes
    desired.record(project.store, project.submission())
    assert observe(project.store, campaign).runs[run.name].code == run.code
    desired.retry(project.store, campaign, None)
    done = project.settle(campaign)
    assert set(done.states().values()) == {RunState.COMPLETED}
    before, after = (attempt.code for attempt in done.attempts[run.name])
    assert (before, after) == (run.code, done.runs[run.name].code)
    assert before != after
    status = status_page(read_status(project.store, campaign), Page())
    assert f"{after} ({run.name})" in status
    [measured] = [one for one in read_runs(project.store, campaign) if one.name == run.name]
    assert remarks_of(measured)["different code"] == f"its attempts ran different code: {before} → {after}"


QUICK = """
import json, os
with open(os.environ["CAMPAIGN_METRICS_FILE"], "a") as spool:
    for step in (1, 2, 3):
        spool.write(json.dumps({"step": step, "ts": 1e9 + step, "loss": 1.0, "step_time": 0.1}) + "\\n")
"""


@pytest.mark.parametrize(
    ("shell", "differs"),
    [
        ({"OMP_NUM_THREADS": "1", "CUDA_LAUNCH_BLOCKING": "1"}, ["CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS"]),
        pytest.param({"WANDB_RUN_ID": "left over", "TRITON_CACHE_DIR": "/elsewhere"}, [], marks=pytest.mark.nightly),
    ],
)
def test_a_shell_that_differs_between_two_conditions_establishes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, shell: dict[str, str], differs: list[str]
) -> None:
    project.write("quick.py", QUICK)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    project.settle(project.submit("quick.py a", train={"steps": 3}))
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    campaign = project.submit("quick.py a", "quick.py b", train={"steps": 3})
    assert set(project.settle(campaign).states().values()) == {RunState.COMPLETED}
    conditions = conditions_of(read_runs(project.store, campaign))
    doubts = answer(compare_to_baseline(conditions, conditions[0])).doubts
    said = [*(doubt.text for doubt in doubts), *verdict(compare(*conditions))]
    remarks = [each for each in said if "obs inherited different values of" in each]
    assert len(remarks) == (2 if differs else 0)
    assert all(f"of {', '.join(differs)} from the shell" in each for each in remarks)


def test_a_set_up_that_fails_in_two_tries_is_a_mistake_and_trains_nothing(project: Project) -> None:
    project.write("train.py", "")
    setup = ["export SEEN=1", "test $SEEN = 1", "load-modules cuda/99.9", "true"]
    done = project.settle(project.submit("train.py", local={"parallel": 1, "setup": setup}))
    [run] = done.runs.values()
    assert run.state is RunState.FAILED
    assert "line 3 of `setup` ended with 127: load-modules cuda/99.9 (load-modules: command not found)" in run.reason
    assert [attempt.evidence["rule"] for attempt in done.attempts[run.name]] == ["set-up"] * 2
    assert [attempt.evidence["line"]["number"] for attempt in done.attempts[run.name]] == [3, 3]


def test_live_code_is_used_as_it_is(project: Project) -> None:
    project.write("train.py", CODE)
    project.write("helper.py", "VERSION = 'old'\n")
    campaign = project.submit("train.py --config settings.txt", code="live")
    project.first_attempts(campaign)
    project.write("helper.py", "VERSION = 'newer'\n")  # Python tells a file that changed within a second by its size
    done = project.settle(campaign)
    [run] = done.runs
    assert [line["read"][1] for line in project.saw(run)] == ["old", "newer"]
    assert [attempt.code for attempt in done.attempts[run]] == ["live"] * 2


def test_a_variable_that_is_missing_holds_the_run_until_it_is_there(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        "train.py", "import os\nfrom said import saw\nsaw(read=[os.environ['STORAGE'], os.getenv('GREETING')])"
    )
    monkeypatch.setenv("STORAGE", "s3")
    monkeypatch.setenv("GREETING", "hello")
    monkeypatch.setenv("LS_COLORS", "many")
    campaign = project.submit("train.py")
    project.first_attempts(campaign)
    for name in ("STORAGE", "LS_COLORS"):
        monkeypatch.delenv(name)
    held = project.settle(campaign)
    [run] = held.runs.values()
    assert run.state is RunState.HELD
    assert "STORAGE was set" in run.reason
    assert len(held.attempts[run.name]) == 1
    monkeypatch.setenv("STORAGE", "s4")
    assert project.settle(campaign).states() == {run.name: RunState.COMPLETED}
    assert [line["read"] for line in project.saw(run.name)] == [["s3", "hello"], ["s4", "hello"]]


@pytest.mark.nightly
def test_a_run_that_is_retried_goes_on_without_a_variable(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("train.py", "from said import saw\nsaw()\n")
    monkeypatch.setenv("HF_HOME", "/hub")
    campaign = project.submit("train.py")
    project.first_attempts(campaign)
    monkeypatch.delenv("HF_HOME")
    assert set(project.settle(campaign).states().values()) == {RunState.HELD}
    desired.retry(project.store, campaign, None)
    assert set(project.settle(campaign).states().values()) == {RunState.COMPLETED}


@pytest.mark.parametrize(
    "python",
    [
        pytest.param(str(STUB), id="stand-in"),
        pytest.param(sys.executable, id="launcher", marks=[pytest.mark.training, pytest.mark.nightly]),
    ],
)
def test_modules_in_the_folder_shadow_nothing_of_the_program_s_own(project: Project, python: str) -> None:
    """Every night with the real launcher, which starts a second process of its own before the ranks."""
    for name in ("random.py", "json.py", "dscampaign/__init__.py", "dscampaign/jobs/__init__.py", "deepspeed.py"):
        project.write(name, "raise SystemExit('hijacked')")
    project.write("train/train.py", "import json, random\njson.dumps(random.random())\n")
    done = project.settle(project.submit("train/train.py", python=python))
    assert set(done.states().values()) == {RunState.COMPLETED}


@pytest.mark.parametrize("harm", ["edited", pytest.param("gone", marks=pytest.mark.nightly)])
def test_a_damaged_copy_is_not_used_and_a_retry_makes_it_anew(project: Project, harm: str) -> None:
    project.write("train.py", "from said import saw\nsaw()\n")
    campaign = project.submit("train.py")
    project.first_attempts(campaign)
    [row] = observe(project.store, campaign).runs.values()
    copied = project.dir / "code" / row.code / "said.py"
    copied.unlink()
    (copied.parent / "results.csv").touch()  # as a script leaves it beside itself
    if harm == "edited":
        copied.write_text(f"{DIES_FIRST}\nimport nothing_of_that_name")
    held = project.settle(campaign)
    assert held.states() == {row.name: RunState.HELD}
    assert str(copied) in held.runs[row.name].reason
    assert len(project.saw(row.name)) == 1
    desired.retry(project.store, campaign, None)
    assert project.settle(campaign).states() == {row.name: RunState.COMPLETED}
    assert list(project.dir.glob("code/*/results.csv"))
