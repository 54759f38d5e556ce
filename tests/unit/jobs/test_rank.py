"""A rank's script runs as Python would run it, and leaves a record of its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs import rank
from dscampaign.jobs.agent.evidence import RankEnd

SCRIPT = Path(rank.__file__)


class Place:
    """A folder with scripts, and the record of rank 3."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ranks").mkdir()

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def run(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Starts `rank.py ARGV`."""
        return self._start([str(SCRIPT), *argv], env)

    def python(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Starts `python ARGV`, the way the script should feel it."""
        return self._start(list(argv), {})

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "ranks" / "rank-3.json").read_text())
        return found

    def _start(self, argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        given = {**os.environ, "RANK": "3", "LOCAL_RANK": "1", "CAMPAIGN_ATTEMPT_DIR": str(self.folder), **env}
        command = [sys.executable, *argv]
        return subprocess.run(command, capture_output=True, text=True, env=given, cwd=self.folder, check=False)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


LOOK = "import json, os, sys; print(json.dumps([sys.argv, sys.path[0], __name__, os.path.abspath(__file__)]))\n"


def test_a_script_sees_what_python_would_show_it(place: Place) -> None:
    place.write("deep/neighbour.py", "")
    path = place.write("deep/train.py", f"import neighbour\n{LOOK}")
    for argv in ([path, "--a", "1"], ["deep/train.py"]):
        assert place.run(*argv).stdout == place.python(*argv).stdout != ""


@pytest.mark.parametrize(
    "text", ["x = = 1\n", "import sys\n\ndef f():\n    return 1 / 0\n\nf()\n", "raise SystemExit('no data')\n"]
)
def test_an_error_is_printed_as_python_prints_it(place: Place, text: str) -> None:
    path = place.write("train.py", text)
    ended, expected = place.run(path), place.python(path)
    assert ended.stderr == expected.stderr != ""
    assert ended.returncode == expected.returncode


def test_what_is_installed_from_a_copied_folder_is_imported_from_the_copy(place: Place) -> None:
    """As `pip install -e` leaves it: by a folder on the path, or by a finder of setuptools."""
    place.write("project/src/lib.py", "NAME = 'edited'")
    place.write("project/other/found.py", "NAME = 'edited'")
    place.write("copy/src/lib.py", "NAME = 'copied'")
    place.write("copy/other/found.py", "NAME = 'copied'")
    place.write("site/__editable___found_finder.py", f"MAPPING = {{'found': {str(place.folder / 'project/other')!r}}}")
    place.write("site/sitecustomize.py", "import __editable___found_finder")
    look = "print(lib.NAME, finder.MAPPING['found'])"
    script = place.write("train.py", f"import lib\nimport __editable___found_finder as finder\n{look}\n")
    path = os.pathsep.join(str(place.folder / name) for name in ("site", "project/src"))
    where = {"CAMPAIGN_CODE": str(place.folder / "copy"), "CAMPAIGN_CODE_ROOT": str(place.folder / "project")}
    assert place.run(script, PYTHONPATH=path).stdout == f"edited {place.folder}/project/other\n"
    assert place.run(script, PYTHONPATH=path, **where).stdout == f"copied {place.folder}/copy/other\n"


@pytest.mark.parametrize("folder", ["..", "../src", "{}/project/src", "{}/linked/src", ""])
def test_a_folder_that_the_script_puts_on_the_path_is_the_copy_s(place: Place, folder: str) -> None:
    for name in ("lib.py", "src/lib.py", "exp/lib.py"):
        place.write(f"project/{name}", "NAME = 'edited'")
        place.write(f"copy/{name}", "NAME = 'copied'")
    (place.folder / "linked").symlink_to(place.folder / "project")
    place.write("elsewhere/other.py", "NAME = 'other'")
    added = [folder.format(place.folder), str(place.folder / "elsewhere")]
    script = place.write("copy/run/train.py", f"import sys; sys.path += {added}\nimport lib, other; print(lib.NAME)\n")
    where = {"CAMPAIGN_CODE": str(place.folder / "copy"), "CAMPAIGN_CODE_ROOT": str(place.folder / "project")}
    done = place.run(script, CAMPAIGN_WORKDIR=str(place.folder / "project/exp"), **where)
    assert done.stdout == "copied\n", done.stderr


def test_a_script_starts_in_the_folder_that_was_recorded(place: Place) -> None:
    place.write("work/settings.txt", "five")
    script = place.write("train.py", "print(open('settings.txt').read())")
    assert place.run(script, CAMPAIGN_WORKDIR=str(place.folder / "work")).stdout == "five\n"


def test_a_module_sees_what_python_would_show_it(place: Place) -> None:
    place.write("pack/__init__.py", "")
    place.write("pack/__main__.py", LOOK)
    place.write("pack/train.py", LOOK)
    for argv in (["-m", "pack.train", "--a", "1"], ["-m", "pack"]):
        assert place.run(*argv).stdout == place.python(*argv).stdout != ""


def test_versions_of_loaded_libraries_are_recorded(place: Place) -> None:
    place.write("deepspeed.py", "__version__ = '0.19.5+local'\n")
    place.write("transformers.py", "")
    place.run(place.write("train.py", "import deepspeed, transformers; raise SystemExit(3)"))
    assert place.record["software"] == {"deepspeed": "0.19.5+local"}


def test_the_local_rank_may_be_an_argument(place: Place) -> None:
    path = place.write("train.py", "import sys; print(sys.argv[1:])\n")
    assert place.run(path, "--local_rank={local_rank}").stdout == "['--local_rank=1']\n"


@pytest.mark.parametrize(
    ("text", "code", "exit_code"),
    [
        ("pass", 0, 0),
        ("import sys; sys.exit()", 0, 0),
        ("import sys; sys.exit(85)", 85, 85),
        ("import argparse; argparse.ArgumentParser().parse_args(['--x'])", 2, 2),
    ],
)
def test_an_exit_is_recorded_without_an_error(place: Place, text: str, code: int, exit_code: int) -> None:
    assert place.run(place.write("train.py", text)).returncode == code
    record = place.record
    assert (record["exit"], record["state"], record["rank"]) == (exit_code, "ended", 3)
    assert "error" not in record
    assert record["started"] <= record["ended"]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("raise ValueError('no')", "builtins.ValueError", "no"),
        ("import sys; sys.exit('give a file')", "builtins.SystemExit", "give a file"),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError", "Expecting property name"),
        ("class Mine(Exception): pass\nraise Mine('x' * 9000)", "__main__.Mine", "x" * 4000),
        ("def f(:", "builtins.SyntaxError", "invalid syntax"),
        ("import nothing_like_this", "builtins.ModuleNotFoundError", "No module named"),
        ("raise KeyboardInterrupt", "builtins.KeyboardInterrupt", ""),
        ("bytearray(10**18)", "builtins.MemoryError", ""),
    ],
)
def test_an_exception_is_recorded_with_its_trace(place: Place, text: str, kind: str, message: str) -> None:
    assert place.run(place.write("train.py", text)).returncode != 0
    error = place.record["error"]
    assert error["type"] == kind
    assert error["message"].startswith(message)
    assert len(error["message"]) <= 4000
    assert len(error["trace"]) <= 30
    assert abs(error["ts"] - place.record["ended"]) < 5


def test_what_an_exception_was_raised_in_place_of_is_recorded(place: Place) -> None:
    text = """\
def deep(n):
    if n:
        return deep(n - 1)
    raise MemoryError("no more")
try:
    try:
        deep(40)
    finally:
        {}["key"]
except KeyError as exc:
    raise RuntimeError("gave up") from exc
"""
    place.run(place.write("train.py", text))
    assert place.record["error"]["type"] == "builtins.RuntimeError"
    memory, key = place.record["error"]["chain"]
    assert (memory["type"], key["type"]) == ("builtins.MemoryError", "builtins.KeyError")
    assert memory["frames"][-1][2:] == ["deep", 'raise MemoryError("no more")']
    assert len(memory["frames"]) == rank.OUTER_FRAMES + rank.INNER_FRAMES
    assert memory["frames"][0][2] == "<module>"


def test_what_and_where_an_exception_was_is_recorded(place: Place) -> None:
    text = """\
class MyError(FileNotFoundError):
    pass
def fetch():
    raise MyError(2, "no", "/data")
fetch()
"""
    path = place.write("train.py", text)
    place.run(path)
    error = place.record["error"]
    above = ("FileNotFoundError", "OSError", "Exception", "BaseException")
    assert error["bases"] == [f"builtins.{name}" for name in above]
    assert error["errno"] == 2
    expected = [[path, 5, "<module>", "fetch()"], [path, 4, "fetch", 'raise MyError(2, "no", "/data")']]
    assert error["frames"] == expected
    place.run(place.write("train.py", "class E(Exception):\n    errno = 'none'\nraise E"))
    assert place.record["error"]["errno"] is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("os._exit(0)", 0),
        ("os._exit(85)", 85),
        ("os.environ.clear(); os._exit(3)", 3),
        ("threading.Thread(target=os._exit, args=(4,)).start(); time.sleep(60)", 4),
        ("atexit.register(os._exit, 0); sys.exit(5)", 0),
    ],
)
def test_an_end_that_runs_nothing_else_is_recorded(place: Place, text: str, code: int) -> None:
    path = place.write("train.py", f"import atexit, os, sys, threading, time\n{text}\n")
    assert place.run(path).returncode == code
    assert (place.record["exit"], place.record["state"]) == (5 if "atexit." in text else code, "ended")


@pytest.mark.parametrize("leave", ["sys.exit(3)", "os._exit(3)", "raise ValueError", "pass"])
def test_the_end_of_a_process_that_the_script_forked_is_not_the_rank_s(place: Place, leave: str) -> None:
    script = f"""
        import os, sys
        if child := os.fork():
            os.waitpid(child, 0)
            os.abort()
        {leave}
    """
    place.run(place.write("train.py", textwrap.dedent(script)))
    assert place.record["state"] == "running"


TORCH = """
def init_process_group(backend=None, world_size=2):
    global size
    size = world_size
def get_world_size():
    return size
def destroy_process_group():
    global size
    size = -1
"""


@pytest.mark.parametrize(
    ("script", "group"),
    [
        ("import torch.distributed as d; d.init_process_group(); d.destroy_process_group()", 2),
        ("from torch.distributed.distributed_c10d import init_process_group as i; i('gloo', world_size=1)", 1),
        ("import torch.distributed", 0),
        ("import torch", 0),
        ("from dscampaign.jobs.report import report; report(1)", 0),
        ("import torch, mpi4py", None),
        ("import subprocess", None),
    ],
)
def test_a_rank_records_how_large_a_group_it_formed(place: Place, script: str, group: int | None) -> None:
    place.write("torch/__init__.py", "")
    place.write("torch/distributed/__init__.py", "from .distributed_c10d import *")
    place.write("torch/distributed/distributed_c10d.py", TORCH)
    place.write("mpi4py/__init__.py", "")
    done = place.run(place.write("train.py", script))
    assert (done.returncode, done.stderr, place.record["group"]) == (0, "", group)
    read = RankEnd.read(place.folder / "ranks" / "rank-3.json")
    assert read is not None
    assert read.group == group
