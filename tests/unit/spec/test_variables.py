"""`${NAME}` is filled in, a form for a shell is an error, a placeholder stands for text."""

from pathlib import Path

import pytest

from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support.spec_files import load_spec
from dscampaign.tests.unit.spec.test_mistakes import BUILT_IN, OWN, problems

NVME = BUILT_IN.replace("steps: 4", "steps: 4, strategy: zero-infinity, nvme_path: DISK")


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.delenv("NOPE", raising=False)


@pytest.mark.parametrize(
    ("text", "field", "form", "hint"),
    [
        ("dir: $HOME/x", "dir", "$HOME", "write ${NAME}, or $$HOME if"),
        ("env: {A: $HOME/x}", "env.A", "$HOME", "write ${NAME}, or $$HOME if the dollar is meant"),
        ('env: {A: "${NOPE:-3}"}', "env.A", "${NOPE:-3}", "write ${NAME}, or $${NOPE:-3} if"),
        ("env: {A: $(hostname)}", "env.A", "$(", "write ${NAME}, or $$( if the dollar is meant"),
        ("env: {A: ~/x}", "env.A", "~", "write ${HOME}"),
        ("slurm: {partition: $PART}", "slurm.partition", "$PART", "write ${NAME}, or $$PART if the dollar is meant"),
        ("forward: {wandb: {tags: [a, $USER]}}", "forward.wandb.tags[1]", "$USER", "write ${NAME}, or $$USER"),
        ("matrix: {env.A: [$HOME/x, b]}", "matrix.env.A[0]", "$HOME", "write ${NAME}, or $$HOME"),
    ],
)
def test_what_only_a_shell_expands_is_refused(tmp_path: Path, text: str, field: str, form: str, hint: str) -> None:
    (problem,) = problems(tmp_path, f"{BUILT_IN}{text}\n")
    assert (problem.field, problem.line) == (field, 3)
    assert problem.message == f"{form} is not expanded: no shell reads it"
    assert (problem.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("command", "form"),
    [
        ("train.py --out $SCRATCH/x", "$SCRATCH"),
        ('train.py --out "$SCRATCH/x"', "$SCRATCH"),
        ('train.py --out="${SCRATCH}/x"', "${SCRATCH}"),
        ('train.py --lr "${lr}"', "${lr}"),
        ("train.py --host $(hostname)", "$("),
        ("train.py --stage $2", "$2"),
        ("[train.py, --out, $SCRATCH/x]", "$SCRATCH"),
        ('[train.py, --out, "${SCRATCH}/x"]', "${SCRATCH}"),
    ],
)
def test_a_command_is_read_by_no_shell(tmp_path: Path, command: str, form: str) -> None:
    (problem,) = problems(tmp_path, f"{OWN}command: {command}\n")
    assert (problem.field, problem.line) == ("command", 3)
    assert problem.message == f"{form} is not expanded: no shell reads it"
    assert (problem.hint or "").startswith("write the value itself, or read the variable in the script; ")


@pytest.mark.parametrize(
    ("disk", "message"),
    [
        ("scratch/nv", "scratch/nv is not an absolute path"),
        ("~/nv", "~/nv is not an absolute path"),
        ("$TMPDIR/nv", "$TMPDIR is not expanded: no shell reads it"),
    ],
)
def test_a_disk_of_the_nodes_is_named_by_its_whole_path(tmp_path: Path, disk: str, message: str) -> None:
    (problem,) = problems(tmp_path, NVME.replace("DISK", disk))
    assert (problem.field, problem.message) == ("train.nvme_path", message)


@pytest.mark.parametrize("value", ["null", "[1, 2]"])
@pytest.mark.parametrize("use", ["command: [-m, t, '{size}']", "command: [-m, t]\nenv: {SIZE: '{size}'}"])
def test_a_value_without_text_fills_in_nothing(tmp_path: Path, value: str, use: str) -> None:
    (problem,) = problems(tmp_path, f"{OWN}{use}\nmatrix: {{size: [3, {value}]}}\n")
    assert problem.field == "matrix.size[1]"
    assert problem.message == "is not text for {size} in `command` or `env`"


@pytest.mark.parametrize("value", ["null", "[1, 2]"])
def test_the_same_holds_where_a_value_is_included(tmp_path: Path, value: str) -> None:
    text = f"{OWN}command: [-m, t, '{{size}}']\nmatrix: {{lr: [1], include: [{{lr: 1, size: {value}}}]}}\n"
    (problem,) = problems(tmp_path, text)
    assert problem.field == "matrix.include[0].size"


def test_a_label_is_text(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"{OWN}command: [-m, t, '{{size}}']\nmatrix: {{size: [{{label: big, lr: 1}}]}}\n")
    assert [run.config.command for run in expand(load_spec(path))] == [("-m", "t", "big")]
