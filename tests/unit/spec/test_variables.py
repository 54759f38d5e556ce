"""`${NAME}` is filled in; what only a shell would expand is an error, and a dollar that is meant can be written."""

from pathlib import Path

import pytest

from dscampaign.tests.unit.spec.test_mistakes import BUILT_IN, problems

OWN = "name: x\nexecutor: local\n"
NVME = BUILT_IN.replace("steps: 4", "steps: 4, strategy: zero-infinity, nvme_path: DISK")


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.delenv("NOPE", raising=False)


@pytest.mark.parametrize(
    ("text", "field", "form", "hint"),
    [
        ("dir: $HOME/x", "dir", "$HOME", "write ${HOME}"),
        ("env: {A: $HOME/x}", "env.A", "$HOME", "write ${HOME}, or $$HOME if the dollar is meant"),
        ('env: {A: "${NOPE:-3}"}', "env.A", "${NOPE:-3}", "write ${NOPE}, or $${NOPE:-3} if"),
        ("env: {A: $(hostname)}", "env.A", "$(", "write the value, or $$( if the dollar is meant"),
        ("env: {A: ~/x}", "env.A", "~", "write ${HOME}"),
        ("slurm: {partition: $PART}", "slurm.partition", "$PART", "write ${PART}, or $$PART if the dollar is meant"),
        ("forward: {wandb: {tags: [a, $USER]}}", "forward.wandb.tags[1]", "$USER", "write ${USER}, or $$USER"),
        ("matrix: {env.A: [$HOME/x, b]}", "matrix.env.A[0]", "$HOME", "write ${HOME}, or $$HOME"),
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
