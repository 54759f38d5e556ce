"""What a shell offers: names from the store, templates, fields; nothing, and no message, where something fails."""

from __future__ import annotations

import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from dscampaign.db import queries
from dscampaign.db.completion_names import read_names
from dscampaign.db.errors import StoreError
from dscampaign.db.records import NewRun
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.completion import SHELLS
from dscampaign.orchestrator.cli.main import campaign, main
from dscampaign.tests.support.cli_world import make_world
from dscampaign.tests.support.waiting import HANGS_S

HEAVY = ("sqlalchemy", "pydantic", "psycopg", "submitit", "alembic", "numpy", "asyncio")
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    make_world(tmp_path)
    (tmp_path / "other.yaml").touch()


def offered(*words: str) -> list[str]:
    shell = ShellComplete(campaign, {}, "campaign", "_CAMPAIGN_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("status", "s"), ["sweep"]),
        (("status", "o"), ["other.yaml"]),
        (("explain", "sweep", "b"), ["bad"]),
        (("weights", "sweep", "b"), ["bad"]),
        (("explain", "b"), ["bad"]),  # the only campaign need not be named
        (("cancel", "sweep", "bad", "b"), []),  # once is enough
        (("explain", "nowhere", "b"), []),
        (("compare", "sweep", "sma"), ["small"]),
        (("recommend", "sweep", "--baseline", "do"), ["done"]),
        (("init", "--from", "five-strategies-"), ["five-strategies-next"]),
        (
            ("plan", "x.yaml", "--set", "train.prec"),
            [f"train.precision={word}" for word in ["fp32", "tf32", "bf16", "fp16"]],
        ),
        (("plan", "x.yaml", "--set", "train.precision=b"), ["train.precision=bf16"]),
        (("plan", "x.yaml", "--set", "train.compile="), ["train.compile=true", "train.compile=false"]),
        (("plan", "x.yaml", "--set", "retry.hang"), ["retry.hang_factor=", "retry.hang_min_s="]),
    ],
)
def test_what_is_offered(words: tuple[str, ...], names: list[str]) -> None:
    assert offered(*words) == names


HOSTILE = (
    *("sweep;id>x;:", "sweep$(id)", "sweep`id`", "sweep two", "sweep\nid", "sweep'", "sweep*", "sw\u00e9e"),
    *("--store=x", "-y", "~root"),
)


@pytest.mark.parametrize("word", ["", "s"])
def test_no_name_is_offered_that_a_shell_may_run(word: str, tmp_path: Path) -> None:
    """Not of a campaign, not of a run, not of a file."""
    store = Store.open(f"sqlite:///{tmp_path}/campaign/campaign.db")
    for ordinal, name in enumerate(HOSTILE):
        (tmp_path / f"{name.replace('/', '')}.yaml").touch()
        with store.write() as conn:
            key = queries.insert_campaign(conn, name=name, spec="", spec_hash="", dir="/d", executor="local")
            sweep = queries.campaign_by_name(conn, "sweep")
            assert sweep is not None
            for campaign_id in (key, sweep.id):
                queries.insert_runs(conn, campaign_id, [NewRun(name, {}, {}, name, 10 + ordinal)])
    store.close()
    words = [("status", word), ("explain", "sweep", word), ("explain", word), ("compare", word)]
    for given in [*words, ("recommend", "sweep", "--baseline", word)]:
        assert not {name for name in offered(*given) if any(bad in name for bad in HOSTILE)}, given
    assert "sweep" in offered("status", "s")


def test_nothing_is_offered_of_a_store_that_others_may_have_written(tmp_path: Path) -> None:
    assert offered("explain", "sweep", "b") == ["bad"]
    folder = tmp_path / "campaign"
    folder.chmod(0o777)
    assert offered("status", "s") == offered("explain", "sweep", "b") == []
    folder.chmod(0o700)
    spec = tmp_path / "mine.yaml"
    spec.write_text(f"name: sweep\ndir: {folder}\n")
    assert offered("explain", "mine.yaml", "b") == ["bad"]
    spec.chmod(0o666)
    assert offered("explain", "mine.yaml", "b") == []


def test_nothing_is_offered_or_said_where_the_store_cannot_be_read(capfd: pytest.CaptureFixture[str]) -> None:
    Path("broken").mkdir()
    Path("broken/campaign.db").write_text("no database")
    assert offered("explain", "--dir", "broken", "sweep", "b") == []
    assert offered("status", "--store", "postgresql://me@127.0.0.1:1/x", "s") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_and_help_says_how_to_install_it(shell: str, capsys: Output) -> None:
    assert main(["completion", shell]) == 0
    assert "_CAMPAIGN_COMPLETE" in capsys.readouterr().out
    assert main(["completion", "--help"]) == 0
    assert f"campaign completion {shell}" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "campaign completion" in capsys.readouterr().out


# -- as a process, of which a shell starts one for each key -----------------------------------------------------------


def by_shell(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What bash starts; standard error ends with the heavy modules that were loaded for it."""
    code = (
        "import atexit, sys; from dscampaign.orchestrator.cli.main import main;"
        f"atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr));"
        "sys.exit(main([]))"
    )
    env = os.environ | {"_CAMPAIGN_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("campaign", *words))}
    env["COMP_CWORD"] = str(len(words))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env, cwd=cwd)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("sta",), "plain,status"),
        (("status", "--sta"), "plain,--state"),
        (("status", "s"), "plain,sweep"),
        (("explain", "sweep", "b"), "plain,bad"),
        (("compare", "sweep", "sma"), "plain,small"),
        (("recommend", "sweep", "--baseline", "do"), "plain,done"),
        (("init", "--from", "five-strategies-"), "plain,five-strategies-next"),
        (("plan", "x.yaml", "--set", "train.precision"), "plain,fp32"),
    ],
)
def test_what_takes_long_to_load_is_not_loaded(words: tuple[str, ...], first: str) -> None:
    done = by_shell(*words)
    assert done.stdout.splitlines()[0].replace("train.precision=", "") == first
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_a_line_that_is_wrong_gets_no_message_in_it(tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").write_text("dir = [")
    (tmp_path / "wrong.yaml").write_text("a: [")
    for words in (("nosuch", "x"), ("status", "--nosuch", "s"), ("status", "s"), ("explain", "wrong.yaml", "b")):
        done = by_shell(*words)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "[]\n"), words


def test_nothing_is_written_where_names_are_read(tmp_path: Path) -> None:
    def times() -> dict[Path, int]:
        """Of all files but the memory in which SQLite keeps the locks of readers."""
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if not path.name.endswith("-shm")}

    before = times()
    assert by_shell("explain", "sweep", "b").stdout == "plain,bad\n"
    assert times() == before


def test_the_names_are_those_that_the_store_tells(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/campaign/campaign.db"
    with closing(Store.open(url)) as store, store.write() as conn:
        queries.insert_campaign(conn, name="empty", spec="", spec_hash="", dir="/d", executor="local")
        # what a writer has not committed yet is nobody's business, and keeps nobody waiting
        assert read_names(url, with_runs=True) == {"sweep": ["done", "small", "bad", "new"]}
    with closing(Store.open(url)) as store, store.read() as conn:
        told = {row.name: queries.run_names(conn, row.id) for row in queries.list_campaigns(conn)}
    assert read_names(url, with_runs=True) == told
    assert read_names(url, "empty", with_runs=True) == {"empty": []}
    assert read_names(url, with_runs=False) == {"sweep": [], "empty": []}


@pytest.mark.parametrize("file", ["missing.db", "campaign/sweep"])
def test_a_store_that_is_none_is_an_error(tmp_path: Path, file: str) -> None:
    with pytest.raises(StoreError):
        read_names(f"sqlite:///{tmp_path}/{file}", with_runs=True)


def test_a_server_that_never_answers_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"postgresql+psycopg://me@127.0.0.1:{deaf.getsockname()[1]}/x"
        with pytest.raises(StoreError):
            read_names(url, with_runs=True)


# -- as people meet it -------------------------------------------------------------------------------------------------


class Bash:
    """An interactive bash on a terminal of its own, with the completion of this `campaign`."""

    def __init__(self, terminal: int) -> None:
        self._terminal, self._seen = terminal, ""

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def shows(self, text: str) -> str:
        """Waits for a text; returns what came before it since the last one."""
        while text not in self._seen:
            ready, _, _ = select.select([self._terminal], [], [], HANGS_S)
            assert ready, f"{text!r} never came: {self._seen!r}"
            self._seen += os.read(self._terminal, 4096).decode(errors="replace")
        before, _, self._seen = self._seen.partition(text)
        return before


@contextmanager
def interactive(folder: Path) -> Iterator[Bash]:
    shim = folder / "bin" / "campaign"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m dscampaign.orchestrator.cli "$@"\n')
    shim.chmod(0o755)
    process, terminal = pty.fork()
    if not process:
        path = f"{shim.parent}:{os.environ['PATH']}"
        env = os.environ | {"PATH": path, "PS1": "", "TERM": "dumb", "COLUMNS": "200", "INPUTRC": os.devnull}
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
    try:
        bash = Bash(terminal)
        bash.type('eval "$(campaign completion bash)"; echo "is ""ready"\n')
        bash.shows("is ready")
        yield bash
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("campaign expl\t", "explain"),
        ("campaign explain sweep sma\t", "explain sweep small"),
        ("campaign init --from five-strategies-n\t", "init --from five-strategies-next"),
        ("campaign plan x.yaml --set train.warm\t3", "plan x.yaml --set train.warmup_steps=3"),
        ("campaign plan x.yaml --set train.precision=b\t", "plan x.yaml --set train.precision=bf16"),
        ("campaign plan x.yaml --set train.preci\tt\t", "plan x.yaml --set train.precision=tf32"),
        ("campaign nosuch x\t", "nosuch x"),
    ],
)
def test_a_key_completes_the_line(tmp_path: Path, typed: str, line: str) -> None:
    with interactive(tmp_path) as bash:
        bash.type('campaign() { echo "<$*>"; }\n')  # what is started shows its words
        bash.type(typed)
        bash.type("\n")
        bash.shows(f"<{line}>")
