"""Slurm's commands as scripts on PATH: each writes down how it was called and prints what the test wants."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

_SCRIPT = """\
#!{python} -IS
import json, os, sys
here = {folder!r}
name = os.path.basename(sys.argv[0])
script = open(sys.argv[-1]).read() if name == "sbatch" else ""
with open(f"{{here}}/calls.jsonl", "a") as log:
    log.write(json.dumps({{"name": name, "args": sys.argv[1:], "env": dict(os.environ), "script": script}}) + "\\n")
answer = json.load(open(f"{{here}}/{{name}}.json"))
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["code"])
"""


class Call:
    """One call of a command: its name, arguments, its environment, and the batch script."""

    def __init__(self, line: str) -> None:
        found = json.loads(line)
        self.name: str = found["name"]
        self.args: list[str] = found["args"]
        self.env: dict[str, str] = found["env"]
        self.script: str = found["script"]

    @property
    def options(self) -> set[str]:
        """The lines of the batch script that are for sbatch."""
        return {line.removeprefix("#SBATCH ") for line in self.script.splitlines() if line.startswith("#SBATCH")}


class FakeSlurm:
    """A cluster that answers as it is told, by commands in `folder`, which belongs on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun"):
            command = folder / name
            command.write_text(_SCRIPT.format(python=sys.executable, folder=str(folder)))
            command.chmod(stat.S_IRWXU)
            self.answers(name)
        self.answers("sbatch", "Submitted batch job 12\n")

    def answers(self, name: str, out: str = "", err: str = "", code: int = 0) -> None:
        """What the command does from now on."""
        (self.folder / f"{name}.json").write_text(json.dumps({"out": out, "err": err, "code": code}))

    @property
    def calls(self) -> list[Call]:
        """All calls so far, oldest first."""
        log = self.folder / "calls.jsonl"
        return [Call(line) for line in log.read_text().splitlines()] if log.exists() else []

    def names(self) -> list[str]:
        """The commands that were called."""
        return [call.name for call in self.calls]
