"""The command as its user meets it: errors, exit codes, streams, start-up, and its own page of documentation."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import click
import pytest

from dscampaign.db import queries
from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.desired import record
from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.campaign.plan import Plan, PlannedRun, Sign
from dscampaign.orchestrator.cli import __main__ as entry
from dscampaign.orchestrator.cli import main as cli
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.spec import read_submission
from dscampaign.orchestrator.pages.plan import plan_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.yaml_source import load
from dscampaign.tests.support.cli_world import make_world
from dscampaign.tests.support.fake_slurm import FakeSlurm
from dscampaign.tests.support.spec_files import load_spec

Output = pytest.CaptureFixture[str]

SPEC = """\
name: sweep
command: train.py --depth {depth}
slurm:
  {partition: gpu, gpus_per_node: 4, nodes: 2, time: "4:00:00", nice: 10, exclusive: true, setup: ["export A='b c'"]}
env: {QUOTED: "it's $$HOME"}
train: {global_batch: 64, micro_batch: 4, steps: 300}
matrix:
  depth: [1, 2]
  zero_stage: [1, 2]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("# reads CAMPAIGN_DS_CONFIG\nprint('trained')\n")
    path = tmp_path / "sweep.yaml"
    path.write_text(SPEC)
    return path


def process(*words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dscampaign.orchestrator.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        (["stauts"], 2, "no command named stauts", 'did you mean "status"?'),
        (["db", "upgrad"], 2, "no command named upgrad", 'did you mean "upgrade"?'),
        (["plan"], 2, "missing argument 'SPEC'", "`campaign plan --help`"),
        (["plan", "no.yaml"], 2, "no.yaml: No such file or directory", "`campaign init` writes a spec to start from"),
        (["status"], 2, "there is no store at", "`campaign submit SPEC` creates one"),
        (["status", "--store", "postgresql://nobody@127.0.0.1:1/x"], 3, "postgresql", "nothing is lost: try again"),
        (["status", "--store", "mysql://x"], 2, "mysql is not a store", "use sqlite:///FILE"),
        (["init", "--from", "nothing"], 2, "no template named nothing", "one of: "),
        (["init", "--from", __file__], 2, f"no template named {__file__}", f"`campaign init --from-sbatch {__file__}`"),
        (["init", "no/x.yaml"], 2, "no such folder: no", "`mkdir -p no` creates it"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(
    words: list[str], code: int, error: str, hint: str, capsys: Output
) -> None:
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert error in err
    assert f"hint: {hint}" in err


@pytest.mark.timeout(60)
def test_a_pipe_is_read_if_it_is_open_and_refused_by_name(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for words in (["validate"], ["init", "--from-sbatch"]):
        assert main([*words, "pipe"]) != 0
        assert capsys.readouterr().err.startswith("error: pipe: Not a regular file\n")
    assert main(["init", "own.yaml"]) == 0
    spec, script = Path("own.yaml").read_text(), "#SBATCH -N1\nsrun python t.py\n"
    for words, text in ((["validate"], spec), (["init", "--from-sbatch"], script)):
        reads, writes = os.pipe()
        os.write(writes, text.encode())
        os.close(writes)
        assert main([*words, f"/dev/fd/{reads}"]) == 0
        os.close(reads)
        capsys.readouterr()


def test_errors_of_a_spec_as_a_document(spec: Path, capsys: Output) -> None:
    spec.write_text(SPEC.replace("partition", "partitoin").replace("\n  zero_stage:", "\n  zero_stagee:"))
    assert main(["validate", str(spec), "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["valid"], err) == (False, "")
    assert [(e["path"], e["line"], e["field"]) for e in found["errors"]] == [
        (str(spec), 4, "slurm.partitoin"),
        (str(spec), 9, "matrix.zero_stagee"),
    ]
    assert 'did you mean "partition"?' in found["errors"][0]["hint"]


def test_unknown_names_get_a_guess(capsys: Output, tmp_path: Path) -> None:
    make_world(tmp_path)
    assert main(["explain", "smalll"]) == 2
    assert "error: no run named smalll in sweep\nhint: `campaign status sweep" in capsys.readouterr().err
    assert main(["explain", "size small"]) == 2
    assert "error: no run named size small in sweep\nhint: one of: done, " in capsys.readouterr().err
    assert main(["logs", "sweep"]) == 2
    assert "which run of sweep?" in capsys.readouterr().err
    assert main(["status", "swep"]) == 2
    assert "no run named swep in sweep\nhint: " in capsys.readouterr().err
    assert main(["status", "no.yaml"]) == 2
    assert "no campaign named no.yaml\nhint: one of: sweep" in capsys.readouterr().err
    assert main(["export", "--output", "no/x.csv"]) == 2
    assert "no such folder: no" in capsys.readouterr().err
    assert main(["export", "--output", "x.xlsx"]) == 2
    assert "no format for x.xlsx\nhint: end its name in .csv, .json or .parquet, or" in capsys.readouterr().err
    assert main(["export", "--output", "."]) == 2
    assert ". is a folder" in capsys.readouterr().err


def test_a_bug_has_an_exit_code_that_no_script_takes_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("never thought of")

    monkeypatch.setattr("dscampaign.orchestrator.campaign.location.Location.open", bug)
    assert main(["status"]) == 70
    assert "RuntimeError: never thought of" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    make_world(tmp_path)
    words = shlex.join([sys.executable, "-m", "dscampaign.orchestrator.cli", "describe", "--json"])
    done = subprocess.run(["bash", "-c", f"{words} | true"], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_colour_is_for_terminals_or_on_request(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    make_world(tmp_path)
    main(["status"])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["status"])
    assert "\x1b[32m✓ completed\x1b[0m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["status"])
    assert "\x1b" not in capsys.readouterr().out


# -- specs -------------------------------------------------------------------------------------------------------------


def test_plan_shows_the_arithmetic_and_makes_nothing(spec: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["plan", str(spec)]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = "+  depth-1_zero_stage-1  64 = 4 × 2 × 8 ranks  2 nodes × 4 GPUs  4:00:00    300"
    assert lines[3] == first
    assert lines[-1] == "Plan: 4 to submit, 0 kept, 0 to cancel · 1 sbatch array · at most 128 GPU-hours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.yaml", "train.py"]


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("depth-2_zero_stage-1", ""),
        ("2 layers · ZeRO 1", ""),
        ("*2*1", ""),
        ("depth-2", "depth-2 may mean 2 runs\nhint: one of: depth-2_zero_stage-1, depth-2_zero_stage-2"),
        ("depth-2*", "a single run at a time\nhint: there are: depth-2_zero_stage-1, depth-2_zero_stage-2"),
        ("depth-3", "no run named depth-3\nhint: there are: depth-1_zero_stage-1, depth-1_zero_stage-2, "),
    ],
)
def test_a_run_of_a_spec_is_found_as_one_of_the_store(spec: Path, capsys: Output, word: str, error: str) -> None:
    for verb in ("plan", "render"):
        assert main([verb, str(spec), word]) == (2 if error else 0)
        shown = capsys.readouterr()
        assert error in shown.err
        assert ('"stage": 1' in shown.out or "--depth 2" in shown.out) is not bool(error)


def test_plan_refuses_what_submit_would(spec: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeSlurm(spec.parent / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    fake.answers("sinfo", "main*|up|1-00:00:00|3|idle|gpu:h100:8|1000000|96|ib\n")
    fake.answers("sbatch", err="sbatch: error: invalid partition specified: gpu\n", code=1)
    assert main(["plan", str(spec)]) != 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].startswith("Plan: 4 to submit")
    assert "`submit` would be refused: no partition named gpu" in shown.err


def test_repeats_that_are_planned_alike_share_a_row(spec: Path) -> None:
    runs = expand(load_spec(spec, ["repeats=3"]))
    kept = PlannedRun(Sign.KEEP, runs[0].name, "completed", runs[0], runs[0].micro_batch)
    new = [PlannedRun(Sign.CREATE, run.name, "", run, run.micro_batch) for run in runs[1:]]
    lines = plan_page(Plan("sweep", "slurm", (kept, *new)), Page()).splitlines()
    assert [line.split("  ")[1] for line in lines[3 : lines.index("", 2)]] == [
        "depth-1_zero_stage-1",
        "depth-1_zero_stage-1-r1 × 2",
        "depth-1_zero_stage-2 × 3",
        "depth-2_zero_stage-1 × 3",
        "depth-2_zero_stage-2 × 3",
    ]
    assert lines[-1].startswith("Plan: 11 to submit, 1 kept")


def test_plan_says_which_settings_change_from_what_to_what(spec: Path, capsys: Output) -> None:
    sets = ("executor=local", "slurm=null", "limits.running=2", "train.lr=0.001")
    submission, where = read_submission(spec, sets, PlaceOptions())
    store = where.open(create=True)
    record(store, submission)
    with store.write() as conn:
        queries.update_run(conn, 1, state=RunState.COMPLETED)
    again = [f"--set={one}" for one in (*sets[:2], "limits.running=5", "train.lr=0.003", "matrix.depth=[2]")]
    assert main(["plan", str(spec), *again]) == 0
    out = capsys.readouterr().out
    assert "~ depth-2_zero_stage-1 and 1 more run: train.lr: 0.001 → 0.003\n" in out
    assert "limits.running: 2 → 5\n" in out
    assert main(["plan", str(spec), *[f"--set={one}" for one in sets], "--set=retry.crash=7", "--json"]) == 0
    found = {run["name"]: run["differing"] for run in json.loads(capsys.readouterr().out)["runs"]}
    assert found.pop("depth-1_zero_stage-1") == []  # completed: nothing follows from it
    assert list(found.values()) == [["retry.crash: 3 → 7"]] * 3
    store.close()


def test_comments_of_a_spec_are_not_stored(spec: Path) -> None:
    """They are its user's own, and a colleague who may read the store may read all of it."""
    text = spec.read_text()
    spec.write_text(f"# export HF_TOKEN=hf_abcdefghijklmnop\n{text}\n  # curl -u me:pw\n")
    submission, where = read_submission(spec, ("train.lr=0.001",), PlaceOptions())
    store = where.open(create=True)
    stored = record(store, submission).spec
    store.close()
    assert "hf_" not in stored
    assert "curl" not in stored
    assert stored.endswith("# --set train.lr=0.001\n")
    assert load(stored, "").data == load(text, "").data


def test_plan_as_a_document_holds_the_deepspeed_configuration(spec: Path, capsys: Output) -> None:
    assert main(["plan", str(spec), "--set", "train.micro_batch=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["to_submit"], found["gpu_hours"], found["arrays"]) == (4, 128.0, 1)
    config = found["runs"][1]["ds_config"]
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (2, 4)
    assert config["zero_optimization"]["stage"] == 2


def test_a_large_submission_needs_a_yes_and_what_a_search_may_add_counts(spec: Path, capsys: Output) -> None:
    search = "search: {parameters: {depth: {int: [1, 90]}}, sampler: random, trials: 20, confirm: {top: 1}}\n"
    spec.write_text(re.sub("(?ms)^(matrix|repeats):.*?(?=^[a-z]|\\Z)", "", spec.read_text()) + search)
    assert main(["plan", str(spec)]) == 0
    shown = capsys.readouterr().out
    assert "search: at most 20 trials, 8 at a time; then the best 1 again, 3 runs each" in shown
    assert "· at most 22 more runs of the search · 1 sbatch array · at most 736 GPU-hours" in shown
    done = process("submit", str(spec), stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "23 runs exceed ask_above_runs = 20, and there is no terminal to confirm on\nhint: add --yes" in done.stderr
    assert not (spec.parent / "campaign").exists()


def test_init_overwrites_nothing(tmp_path: Path, capsys: Output) -> None:
    assert main(["init"]) == 0
    assert (tmp_path / "campaign.yaml").read_text()
    (tmp_path / "campaign.yaml").write_text("mine")
    assert main(["init"]) == 2
    assert "campaign.yaml already exists" in capsys.readouterr().err
    assert (tmp_path / "campaign.yaml").read_text() == "mine"


def test_a_rendered_script_holds_the_whole_run(spec: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sbatch"
    assert main(["render", str(spec), "depth-2_zero_stage-1", "--output", str(script)]) == 0
    text = script.read_text()
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert {"--nodes=2", "--partition=gpu", "--time=4:00:00", "--nice=10", "--exclusive"} <= set(options)
    assert "--signal=USR2@120" in options
    assert shlex.join([str(tmp_path / "train.py"), "--depth", "2"]) in text
    before_launch = text.partition("# Each node starts")[0]
    shown = 'printf "%s\\n" "$A" "$QUOTED" "$CAMPAIGN_MICRO_BATCH"; cat "$CAMPAIGN_DS_CONFIG"'
    loose = f"umask 002\n{before_launch}{shown}"
    done = subprocess.run(["bash", "-c", loose], capture_output=True, text=True, check=True)
    a, quoted, micro_batch, config = done.stdout.split("\n", 3)
    assert (a, quoted, micro_batch) == ("b c", "it's $HOME", "4")
    assert json.loads(config)["zero_optimization"]["stage"] == 1
    [run] = tmp_path.glob("campaign/*/by-hand/*")
    assert {path.stat().st_mode & 0o777 for path in (run, *run.rglob("*")) if path.is_dir()} == {0o700}


# -- itself ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "also"), [("status", ()), ("--help", ("sqlalchemy",))])
def test_a_command_loads_nothing_that_is_slow(tmp_path: Path, word: str, also: tuple[str, ...]) -> None:
    make_world(tmp_path)
    slow = {"pydantic", "submitit", "torch", "yaml", "alembic", "numpy", *also}
    code = (
        f"import sys; from dscampaign.orchestrator.cli.main import main; code = main(['{word}']);"
        f"print(sorted({slow} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (0, ["[]"])
    assert {"status": "sweep", "--help": "reconcile"}[word] in done.stdout


def _verbs(ctx: click.Context) -> Iterator[click.Context]:
    assert isinstance(ctx.command, click.Group)
    for name, command in ctx.command.commands.items():
        verb = click.Context(command, parent=ctx, info_name=name)
        yield from _verbs(verb) if isinstance(command, click.Group) else (verb,)


def test_every_command_has_an_example_of_itself() -> None:
    with click.Context(cli.campaign, info_name="campaign") as ctx:
        for verb in _verbs(ctx):
            help_text = verb.command.help or ""
            examples = help_text.partition("\b\nExamples:\n")[2]
            assert verb.command_path in examples, f"{verb.command_path} has no example"


def test_ctrl_c_while_the_command_loads_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupts(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name.endswith("cli.main"):
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "dscampaign.orchestrator.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    assert entry.main() == 130
