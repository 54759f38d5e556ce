"""The lines of `setup` in a real shell: all run in one, and the one that fails ends the job and is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dscampaign.jobs.shared.payload import SETUP_PYTHON
from dscampaign.orchestrator.executors.base import JobArray
from dscampaign.orchestrator.executors.setup_lines import SetUpFailure, guarded, record_of
from dscampaign.orchestrator.executors.slurm import SCRIPT, SlurmExecutor
from dscampaign.tests.support.fake_slurm import FakeSlurm

ACTIVATE = 'activate() { false; export ENV="$1"; }'
"""A function that is at odds with `set -e`, as conda's are."""


def shell(folder: Path, lines: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
    """The lines, and the Python that they chose, in a shell that is no login shell."""
    home = folder / "home"
    (home / "bin").mkdir(parents=True)
    (home / ".bash_profile").write_text("module() { export LOADED=$2; [ $2 != none ]; }\nPATH=/usr/bin:/bin\nfalse\n")
    (home / "bin/conda").write_text("#!/bin/sh\necho 'conda() { [ $2 = llm ] && PATH=$HOME/llm:$PATH; }'\n")
    (home / "bin/conda").chmod(0o700)
    (home / "llm").mkdir()
    (home / "llm/python").symlink_to("/bin/true")
    script = "\n".join([*guarded(lines, folder, "0"), f'echo "${{LOADED-}} ${{{SETUP_PYTHON}-}}"'])
    env = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}", **env}
    return subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["module load cuda"], "cuda "),
        (["A=1 module load cuda || true", "module load gcc"], "gcc "),
        (["set -eu", "module load cuda", "conda activate llm"], "cuda HOME/llm/python"),
        (["true", "echo none"], "none\n "),
        (["PATH=$HOME/llm:$PATH"], " HOME/llm/python"),
        (
            ["source env/bin/activate", "python -c 'import sys; assert sys.prefix.endswith(\"env\")'"],
            " HERE/env/bin/python",
        ),
    ],
)
def test_commands_of_a_login_shell_and_the_python_that_results(tmp_path: Path, lines: list[str], said: str) -> None:
    if "env/bin" in lines[0]:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    done = shell(tmp_path, lines)
    expected = said.replace("HOME", f"{tmp_path}/home").replace("HERE", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr


def run(folder: Path, *lines: str) -> tuple[int, str, SetUpFailure | None]:
    """The exit status, what was printed after the set-up, and the record."""
    script = "\n".join([*guarded(lines, folder, "0"), 'echo "A=${A:-} ENV=${ENV:-}"'])
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()[-1] if done.stdout else "", SetUpFailure.read(record_of(folder, 0))


@pytest.mark.parametrize(
    "lines",
    [
        ["source ./env.sh"],
        [ACTIVATE, "activate x", "A=1"],
        ["if true; then", "  A=1", "fi"],
        ["case x in", "  x) A=1 ;;", "esac"],
        ["cat > made.sh <<EOF", "A=1", "EOF", ". ./made.sh"],
        ["A=$(echo \\", "  1)"],
        ["A='", "'1"],
        ["f() {", "  A=1", "}", "f"],
        ["A=1", "false || true", "[ -f none ] && source none", "if false; then :; fi", "! true"],
        ["set -euo pipefail", "A=1", "# a comment", "", "shopt -s extglob", "ls !(none) >/dev/null"],
        ["A=1; export B='a \"b\" \\ c'"],
        ["trap 'true' EXIT", "A=1"],
        ["set -x", "A=1"],
        ["mkdir below; cd below", "[ $(basename $PWD) = below ] && A=1"],
    ],
)
def test_working_lines_work_as_in_one_shell(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "env.sh").write_text("[ -n '' ]\nA=1\n")
    status, said, record = run(tmp_path, *lines)
    assert (status, record) == (0, None)
    assert "1" in said


@pytest.mark.parametrize(
    ("lines", "line", "text", "status"),
    [
        (["module load cuda/99.9", "A=1"], 1, "module load cuda/99.9", 127),
        (["A=1", "source ./none.sh"], 2, "source ./none.sh", 1),
        (["set -u", "A=$NONE/x"], 2, "A=$NONE/x", 127),
        (["cd none || exit 3"], 1, "cd none || exit 3", 3),
        (["set -e", "if true; then", " false", "fi", "A=1"], 2, "if true; then\n false\nfi", 1),
        (["exit 0"], 1, "exit 0", 0),
        ([ACTIVATE, "false 'a \"b\" %d \\'"], 2, "false 'a \"b\" %d \\'", 1),
        (["kill -9 $BASHPID & wait $!"], 1, "kill -9 $BASHPID & wait $!", 137),
    ],
)
def test_a_line_that_fails_ends_the_job_and_is_recorded(
    tmp_path: Path, lines: list[str], line: int, text: str, status: int
) -> None:
    ended, said, record = run(tmp_path, *lines)
    assert (ended, said) == (status, "")
    assert record
    assert (record.line, record.text, record.status) == (line, text, status)
    assert record.host


def test_a_trace_shows_the_lines_alone_and_ends_with_the_message(tmp_path: Path) -> None:
    done = shell(tmp_path, ["set -x", "A=1", "modul load cuda"])
    trace = done.stderr.splitlines()
    assert trace[:2] == ["+ A=1", "+ modul load cuda"]
    assert trace[-1].endswith("modul: command not found")
    assert "dscampaign" not in done.stderr


def test_a_batch_script_ends_before_any_node_starts_its_agent(slurm: FakeSlurm, tmp_path: Path) -> None:
    made = JobArray("abc", tmp_path, 4, {"setup": ["export A=1", "load-modules"]})
    SlurmExecutor().submit(made)
    env = {"PATH": f"{slurm.folder}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(["bash", str(made.folder / SCRIPT)], env=env, capture_output=True, check=False)
    assert done.returncode == 127
    record = SetUpFailure.load(record_of(made.folder, 3))
    assert record
    assert (record.line, record.text) == (2, "load-modules")
    assert [call.name for call in slurm.calls] == ["sbatch"]
