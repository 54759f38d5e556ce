"""`campaign init --from-sbatch`: scripts of the kinds that people publish, and the specs expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.spec.from_sbatch import spec_of
from dscampaign.orchestrator.spec.sbatch_draft import yaml_of

CASES = Path(__file__).parents[2] / "cases" / "sbatch"
SCRIPTS = sorted(CASES.glob("*.sbatch"))
ONLY_A_SHELL = ("defaults", "heredoc", "loop_of_files", "megatron_deepspeed")
"""Their commands name a variable whose value only a shell finds, and the error says so."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("PWD", "/home/me")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_becomes_the_spec_expected(script: Path) -> None:
    assert main(["init", "--from-sbatch", str(script)]) == 0
    text = Path("campaign.yaml").read_text()
    assert text == script.with_suffix(".yaml").read_text()
    stages = "".join(text.replace("{stage}", stage) for stage in "123")
    for name in re.findall(r"[\w/.-]+\.(?:py|json|yaml|sif)\b", stages):
        for file in (Path(name), Path("experiments", name), Path("src", name)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    Path("pkg").mkdir(exist_ok=True)
    Path("pkg/train.py").touch()
    assert main(["validate", "campaign.yaml"]) == (2 if script.stem in ONLY_A_SHELL else 0)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_each_line_is_accounted_for(script: Path) -> None:
    made = spec_of(script.read_text(), script.stem, {"HOME": "/home/me"})
    places = [*made.taken, *(place for place, _ in (*made.needless, *made.unclear)), "0"]
    spans = [tuple(map(int, place.split("-"))) for place in places if place[0].isdigit()]
    known = {line for span in spans for line in range(span[0], span[-1] + 1)}
    lines = enumerate(script.read_text().splitlines(), 1)
    assert {at for at, line in lines if line.strip() and not re.match(r"#(?!SBATCH)", line)} <= known


def test_the_page_shows_a_script_and_its_spec() -> None:
    page = (CASES.parents[2] / "docs" / "from-sbatch.md").read_text()
    script, spec = re.findall(r"```(?:bash|yaml)\n(.*?)```", page, re.DOTALL)
    assert yaml_of(spec_of(script, "train", {}), "train.sbatch") == spec


def test_an_existing_spec_is_not_overwritten() -> None:
    Path("campaign.yaml").write_text("name: mine\n")
    assert main(["init", "--from-sbatch", str(SCRIPTS[0])]) != 0
    assert Path("campaign.yaml").read_text() == "name: mine\n"


def test_nothing_is_executed_and_no_secret_is_copied() -> None:
    token = "hf_" + 20 * "a"
    lines = (
        f"export A=$(touch ran)\nB=`touch ran`\nhuggingface-cli login --token {token}\nHF_TOKEN={token} torchrun t.py\n"
    )
    text = yaml_of(spec_of(lines, "x", {"HF_TOKEN": token}), "x.sbatch")
    assert not Path("ran").exists()
    assert token not in text
    assert "B=`touch ran`: only a shell finds its value" in text


def made_of(lines: str) -> str:
    return yaml_of(spec_of(f"#SBATCH --gpus=1 -t 20\n{lines}", "x", {}), "x.sbatch")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("python t.py > a.log 2>&1 &\nwait\n", "#   2: > a.log 2>&1 &: `campaign logs` shows"),
        ("for a in 1 2; do python t.py $a; done 2>&1 | tee log", "#   2: 2>&1 | tee log: `campaign logs` shows"),
        ("srun bash -c 'python t.py |& tee log'", "#   2: |& tee log: `campaign logs` shows"),
        ("python t.py || exit 1", "#   2: || exit 1: `campaign logs` shows"),
        ("apptainer exec -B $DATA:/data a.sif python t.py", "DATA is not set here: write its value"),
        ("source activate $1\npython t.py", "#   2: source activate $1: a job has no arguments"),
        ("[ -d c ] && R=c\npython t.py $R", "#   2: [ -d c ] && R=c: only a shell understands it"),
        ("python data.py\npython train.py\npython eval.py", "#   2: data.py: run it before `submit`"),
        ("#SBATCH -N 1-2\npython t.py", "  nodes: 2\n"),
        ("conda run --no-capture-output -n e python t.py", "- conda activate e\n"),
        ("#SBATCH -a 0-2\nD=(8 8 9)\npython t.py --d ${D[$SLURM_ARRAY_TASK_ID]}\n", "  d: [8, 9]\n"),
        ("uv run -p 3.11 t.py -n 5", "- source .venv/bin/activate\n"),
        ("P=$PWD:$P python t.py", '- export P=".:$P"\n'),
        ('L="accelerate launch --role \\$(id): t.py"\nsrun bash -c "$L"', "launcher: accelerate\ncommand: t.py\n"),
        ("tune run --nnodes 2 full", "if it starts the training, write its script"),
    ],
)
def test_the_rest_of_a_line_is_accounted_for(lines: str, words: str) -> None:
    assert words in made_of(lines)


def test_a_file_that_is_no_batch_script(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text('"""\npython train.py\n"""\n')
    Path("notes.txt").write_text("hello\n")
    for name in ("train.py", "notes.txt"):
        assert main(["init", "--from-sbatch", name]) == 2
        assert f"{name} is not a batch script" in capsys.readouterr().err
    assert not Path("campaign.yaml").exists()


def test_nodes_follow_from_tasks_and_an_array_that_nothing_uses_is_noted() -> None:
    lines = "#SBATCH -n8 --ntasks-per-node=4\n#SBATCH --gpus-per-task=h100:1\n#SBATCH -a 0-3\nsrun python t.py\n"
    made = spec_of(lines, "x", {})
    assert made.slurm == {"nodes": "2", "gpus_per_node": "h100:4"}
    assert made.unclear == [("end", "the runs of the array, or loop, do not differ: write an axis, or `repeats`")]


@pytest.mark.parametrize(
    "text",
    ["", "'", "srun", "#SBATCH -N", "#SBATCH '", "srun bash -c", "apptainer exec", "for", "cd", "a(", "x=(", "\\\n#"],
)
def test_odd_scripts_are_read_too(text: str) -> None:
    assert "no line starts a training script" in yaml_of(spec_of(text, "x", {}), "x.sbatch")
