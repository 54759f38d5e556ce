"""`campaign serve`: who may look, and the page in a real browser while its campaign goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from dscampaign.db import queries, schema
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.browser import Browser, browser, click, until
from dscampaign.tests.support.planted import Planted, Try, plant

HOSTILE = "</script><img src=x onerror=alert(1)>\"'\u202e$"
SHOWN = "</script><img src=x onerror=alert(1)>\"'$"
CONDITIONS = (
    Planted("base", (0.1, 0.101), gpu="NVIDIA H100"),
    Planted("going", (0.05,), held_out=(None,), tries=(Try(0, 60, None),), state=RunState.RUNNING, floor=2.5),
    Planted(
        "broken", (0.1,), held_out=(None,), tries=(Try(0, 70, "diverged"),), nan_from=60,
        state=RunState.FAILED, reason=f"no {HOSTILE}",
    ),
    Planted(HOSTILE, (0.1,), held_out=(None,), tries=(), state=RunState.PENDING),
)  # fmt: skip
ROWS = "[...document.querySelectorAll('#rows a')].map((one) => one.textContent)"


class Served(NamedTuple):
    """A store that is served: its address, its folder, the link with the token."""

    url: str
    folder: Path
    link: str

    @property
    def host(self) -> str:
        return urlsplit(self.link).netloc

    @property
    def page(self) -> str:
        return f"http://{self.host}/"

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and body."""
        connection = HTTPConnection(self.host)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
        connection.close()
        return found

    def cookie(self) -> str:
        return self.get(self.link.removeprefix(f"http://{self.host}"))[1]["set-cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    url = f"sqlite:///{folder}/campaign.db"
    store = Store.open(url, create=True)
    plant(store, folder, CONDITIONS)
    store.close()
    words = [sys.executable, "-m", "dscampaign.orchestrator.cli", "serve", "--store", url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield Served(url, folder, process.stdout.readline().strip())
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, served: Served) -> Iterator[Browser]:
    """A browser that has opened the link."""
    with browser(tmp_path_factory.mktemp("profile")) as found:
        found.open(served.link)
        until(found, "document.getElementById('rows')?.children.length")
        yield found


def load(opened: Browser, page: Path | str, width: int = 1400, **media: Any) -> None:
    opened.errors.clear()
    opened.open(page, width, **media)
    until(opened, "document.documentElement.dataset.drawn")


def alter(served: Served, name: str, **values: Any) -> None:
    """Changes a run, or its newest attempt."""
    store = Store.open(served.url)
    with store.write() as conn:
        campaign = queries.list_campaigns(conn)[0]
        run = queries.run_by_name(conn, campaign.id, name)
        assert run
        if "ended_s" in values:
            queries.update_attempt(conn, queries.attempts(conn, campaign.id, run.id)[-1].id, **values)
        else:
            queries.update_run(conn, run.id, **values)
    store.close()


def test_only_the_link_opens_it_and_it_only_shows(served: Served) -> None:
    status, headers, _ = served.get(served.link.removeprefix(f"http://{served.host}"))
    assert status == 200
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(headers["set-cookie"].split("; "))
    cookie = served.cookie()
    for path in ("/", "/run?run=1", "/log?run=1", "/draw", "/stream", "/verdict", "/?token=x", "/run?token="):
        assert served.get(path)[0] == 403, path
        assert served.get(path, Cookie=cookie.partition("=")[0] + "=x")[0] == 403, path
    status, headers, body = served.get("/", Cookie=cookie)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "<img src=x" not in body
    assert served.get("/", Cookie=cookie, Host="evil.example")[0] == 400
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert served.get("/", method, Cookie=cookie)[0] == 405


def test_a_request_names_runs_and_no_files(served: Served) -> None:
    cookie = served.cookie()
    assert served.get("/run?run=999", Cookie=cookie)[::2] == (404, "no run 999 in sweep")
    assert served.get("/log?run=x", Cookie=cookie)[0] == 400
    assert served.get("/log?run=1&file=/etc/passwd&at=0", Cookie=cookie)[0] == 200
    assert "root:" not in served.get("/log?run=1&file=../../../etc/passwd", Cookie=cookie)[2]
    assert served.get("/draw?campaign=other", Cookie=cookie)[0] == 404
    assert served.get("/draw?rows=../x", Cookie=cookie)[0] == 400
    assert served.get("/templates/live.js", Cookie=cookie)[0] == 404
    assert served.get(f"/log?run={10**22}", Cookie=cookie)[0] == 400


def test_a_log_whose_last_line_is_long_shows_its_end(served: Served) -> None:
    log = CampaignPaths(served.folder, "sweep").run("base").attempt(1).logs / "20260101_rank0.log"
    log.parent.mkdir(parents=True)
    log.write_text("begun\n" + "x" * (1 << 19) + "\n")
    found = json.loads(served.get("/log?run=1", Cookie=served.cookie())[2])
    assert found["cut"]
    assert found["text"].endswith("xxx\n")
    log.unlink()


def test_the_page_follows_without_being_loaded_again(opened: Browser, served: Served) -> None:
    load(opened, served.page)
    opened.evaluate("window.kept = true")
    assert opened.evaluate(ROWS)[:4] == ["base", "base · repeat 2", "going", "broken"]
    store = Store.open(served.url)
    with store.write() as conn:
        campaign = queries.list_campaigns(conn)[0]
        run = queries.run_by_name(conn, campaign.id, "going")
        assert run
        attempt = queries.attempts(conn, campaign.id, run.id)[-1]
        line = {"attempt_id": attempt.id, "step": 90, "ts_s": 0.0, "loss": 2.25, "nonfinite": 0}
        conn.execute(schema.step_metric.insert().values(line))
        conn.execute(schema.run_latest.update().where(schema.run_latest.c.run_id == run.id).values(step=90, loss=2.25))
        queries.add_event(conn, campaign.id, "note", f"hello {HOSTILE}", run_id=run.id)
    store.close()
    alter(served, "going", state=RunState.HELD, reason="the budget is used up")
    row = "document.querySelector('#rows tr.held')?.innerText"
    until(opened, f"{row}?.includes('90/100') && {row}.includes('2.25') && {row}.includes('the budget is used up')")
    until(opened, f"document.querySelector('#events li').innerText.includes({json.dumps(f'hello {SHOWN}')})")
    until(opened, "document.getElementById('states').innerText.includes('1 held')")
    alter(served, "going", state=RunState.RUNNING, reason="")
    assert opened.evaluate("window.kept")
    assert opened.errors == []


def test_the_table_filters_and_sorts_by_text_and_state(opened: Browser, served: Served) -> None:
    load(opened, served.page)
    typed = (
        "(text) => {const f = document.getElementById('filter'); f.value = text; f.dispatchEvent(new Event('input'))}"
    )
    opened.evaluate(f"({typed})('repeat base')")
    assert opened.evaluate(ROWS) == ["base · repeat 2"]
    assert opened.evaluate("document.getElementById('shown').textContent") == "1 of 5 runs"
    opened.evaluate(f"({typed})('')")
    click(opened, "document.querySelector('#states button[data-state=completed]')")
    assert opened.evaluate(ROWS) == ["base", "base · repeat 2"]
    click(opened, "document.querySelector('#states button[data-state=completed]')")
    click(opened, "document.querySelectorAll('#heads button')[0]")
    assert opened.evaluate(ROWS)[1:] == ["base", "base · repeat 2", "broken", "going"]
    assert opened.evaluate("document.querySelector('#heads th').getAttribute('aria-sort')") == "ascending"
    assert opened.errors == []


def test_hostile_names_are_text(opened: Browser, served: Served) -> None:
    load(opened, served.page)
    assert any(name.startswith("</script><im") for name in opened.evaluate(ROWS))
    assert SHOWN in opened.evaluate("[...document.querySelectorAll('#rows a')].map((one) => one.title)")
    assert f"no {SHOWN}" in opened.evaluate("document.querySelector('#rows tr.failed').innerText")
    click(opened, "[...document.querySelectorAll('#rows a')].find((one) => one.textContent.startsWith('</script'))")
    until(opened, f"document.getElementById('facts').innerText.includes({json.dumps(SHOWN)})")
    assert opened.evaluate("document.images.length") == 0
    assert opened.errors == []


def test_a_run_has_its_explanation_its_gpus_and_a_log_that_grows(opened: Browser, served: Served) -> None:
    alter(served, "going", ended_s=None)
    log = CampaignPaths(served.folder, "sweep").run("going").attempt(1).logs / "20260101_rank0.log"
    log.parent.mkdir(parents=True)
    log.write_text("begun\x1b[31m\n10%\r20%\r30%\n" + "".join(f"line {number}\n" for number in range(100)))
    load(opened, served.page)
    click(opened, "[...document.querySelectorAll('#rows a')].find((one) => one.textContent === 'base')")
    until(opened, "document.getElementById('gpus').innerText.includes('NVIDIA H100')")
    assert "1  ✓ completed" in opened.evaluate("document.getElementById('attempts').innerText")
    assert '"seq_len": 128' in opened.evaluate("document.getElementById('config').textContent")
    until(opened, "document.querySelector('#chart-run-loss .mark-line path')?.getAttribute('d').length > 100")
    opened.evaluate("history.back()")
    until(opened, "!document.getElementById('campaign').hidden")
    click(opened, "document.querySelector('#rows tr.running a')")
    until(opened, "document.getElementById('log').textContent.includes('line 99')")
    assert opened.evaluate("document.getElementById('log').textContent").startswith("begun\n30%\nline 0\n")
    with log.open("a") as stream:
        stream.write("the newest line\n")
    until(opened, "document.getElementById('log').textContent.endsWith('line 99\\nthe newest line\\n')")
    assert opened.errors == []


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1400, "light"),
        (390, "dark"),
        pytest.param(1400, "dark", marks=pytest.mark.nightly),
        pytest.param(390, "light", marks=pytest.mark.nightly),
    ],
)
def test_anybody_can_use_it(opened: Browser, served: Served, width: int, scheme: str) -> None:
    load(opened, served.page, width, prefers_color_scheme=scheme)
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    opened.evaluate(f"{axe}; true")
    until(opened, "document.querySelector('.spark') !== null")
    assert serious(opened) == []
    opened.evaluate("location.hash = document.querySelector('#rows a').hash")
    until(opened, "document.getElementById('config').textContent")
    assert serious(opened) == []
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


def serious(opened: Browser) -> list[str]:
    """The findings of axe that keep somebody out."""
    found = opened.evaluate("axe.run(document, {resultTypes: ['violations']}).then(({ violations }) => violations)")
    return [
        f"{one['id']}: {each['html']}"
        for one in found
        for each in one["nodes"]
        if one["impact"] in ("serious", "critical")
    ]


def test_files_need_no_server(
    opened: Browser, served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--store", served.url, "--export", str(tmp_path / "out")]
    assert [main(words), main(words)] == [0, 0]
    load(opened, tmp_path / "out" / "index.html")
    assert opened.evaluate(ROWS)[0] == "base"
    until(opened, "document.querySelectorAll('.spark').length === 4")
    click(opened, "document.querySelector('#rows a')")
    until(opened, "document.getElementById('config').textContent")
    assert "NVIDIA H100" in opened.evaluate("document.getElementById('gpus').innerText")
    assert opened.evaluate("performance.getEntriesByType('resource').length") == 0
    assert opened.errors == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    (tmp_path / "mine" / ".campaign-serve").symlink_to("thesis.txt")
    assert main(["serve", "--store", served.url, "--export", str(tmp_path / "mine")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["serve", "--store", served.url, "--export", str(tmp_path / "mine" / "thesis.txt")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_several_campaigns_have_a_list(opened: Browser, served: Served, tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)
    for name in ("index", "two"):
        plant(store, tmp_path, CONDITIONS[:1], name)
    store.close()
    assert main(["serve", "--store", f"sqlite:///{tmp_path}/campaign.db", "--export", str(tmp_path / "out")]) == 0
    opened.open(tmp_path / "out" / "index.html")
    names = "[...document.querySelectorAll('#campaigns a')].map((one) => one.textContent)"
    assert set(opened.evaluate(names)) == {"index", "two"}
    click(opened, "document.querySelector('#campaigns a')")
    until(opened, "document.documentElement?.dataset.drawn")
    assert opened.evaluate(ROWS) == ["base", "base · repeat 2"]
    (tmp_path / "out" / "mine.html").write_text("x")
    assert len(list((tmp_path / "out").glob("*.html"))) == 4
    words = ["serve", "index", "--store", f"sqlite:///{tmp_path}/campaign.db", "--export", str(tmp_path / "out")]
    assert main(words) == 0
    assert (tmp_path / "out" / "mine.html").read_text() == "x"
    assert '"two"' not in (tmp_path / "out" / "index.html").read_text()
    words[-1] = str(tmp_path / "one")
    assert main(words) == 0
    (tmp_path / "one" / "two.html").write_text("x")
    assert main([words[0], *words[2:]]) == 2
    assert (tmp_path / "one" / "two.html").read_text() == "x"
