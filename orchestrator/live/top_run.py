"""A run in the terminal view: its explanation, configuration and log. Only reads."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from io import IncrementalNewlineDecoder
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Log, Static, TabbedContent, TabPane
from textual.worker import get_current_worker

from dscampaign.db.errors import StoreError
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.documents import run_details
from dscampaign.orchestrator.campaign.logs import Wanted, follow_log
from dscampaign.orchestrator.campaign.selection import find_run
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean, printable
from dscampaign.orchestrator.pages.describe import run_page
from dscampaign.orchestrator.pages.text import Page, fold
from dscampaign.orchestrator.spec.yaml_source import written

EXPLAIN_S = 5.0
LOG_LINES = 2000
"""Lines of a log that are kept on the screen."""


def coloured(text: str) -> Text:
    """Text for Textual that obeys no sequence but colours, and no markup."""
    return Text.from_ansi(printable(text, colours=True))


class Loaded(Message):
    """Text for a part of the screen."""

    def __init__(self, part: str, text: str) -> None:
        super().__init__()
        self.part, self.text = part, text


class _Left(Exception):
    """The user has left the screen."""


class RunScreen(Screen[None]):
    """A run."""

    CSS = """
    #title { padding: 0 1; background: $surface; text-style: bold; }
    RunScreen TabbedContent, RunScreen ContentSwitcher { height: 1fr; }
    RunScreen TabPane { padding: 0 1; height: 1fr; }
    RunScreen VerticalScroll, RunScreen Log { scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar = [
        Binding("escape,q", "dismiss", "back", key_display="q"),
        Binding("e", "show('explanation')", "explanation"),
        Binding("c", "show('configuration')", "configuration"),
        Binding("l", "show('log')", "log"),
    ]

    def __init__(self, store: Store, campaign: str, run: str) -> None:
        super().__init__()
        self._store, self._campaign, self._run = store, campaign, run

    def compose(self) -> ComposeResult:
        yield Static(Text(clean(f"{self._run} of {self._campaign}")), id="title")
        with TabbedContent():
            for part in ("explanation", "configuration"):
                with TabPane(part, id=part), VerticalScroll():
                    yield Static("reading …", id=f"{part}-text")
            with TabPane("log", id="log"):
                yield Log(max_lines=LOG_LINES, id="lines")
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(EXPLAIN_S, self.explain)
        self.explain()
        self.configure()
        self.follow()

    def action_show(self, part: str) -> None:
        self.query_one(TabbedContent).active = part
        self.query_one(f"#{part}").query("VerticalScroll, Log").first().focus()

    @work(thread=True, exclusive=True, group="explanation")
    def explain(self) -> None:
        page = Page(colour=True, width=max(40, self.size.width - 5))
        self._load("explanation", lambda: fold(run_page(run_details(self._store, *self._found()), page), page.width))

    @work(thread=True, group="configuration")
    def configure(self) -> None:
        self._load("configuration", lambda: written(dict(self._found()[1].config)))

    def _found(self) -> tuple[CampaignRow, RunRow]:
        return find_run(self._store, [self._campaign, self._run])

    def _load(self, part: str, read: Callable[[], str]) -> None:
        worker = get_current_worker()
        try:
            text = read()
        except (StoreError, UserError) as error:
            text = error.message
        if not worker.is_cancelled:
            self.post_message(Loaded(part, text))

    @work(thread=True, group="log")
    def follow(self) -> None:
        """Copy the log of the newest attempt to the screen as it grows."""
        worker = get_current_worker()

        def sleep(seconds: float) -> None:
            if worker.is_cancelled:
                raise _Left
            time.sleep(seconds)

        try:
            wanted = Wanted.of(self._store, *self._found(), rank=0, launcher=False, generation=None)
            follow_log(wanted, LOG_LINES, _Lines(self), sleep=sleep)
        except (StoreError, UserError) as error:
            self.post_message(Loaded("log", f"{error.message}\n"))
        except _Left:
            return

    def on_loaded(self, loaded: Loaded) -> None:
        if loaded.part == "log":
            self.query_one("#lines", Log).write(loaded.text)
        else:
            self.query_one(f"#{loaded.part}-text", Static).update(coloured(loaded.text))


class _Lines:
    """Hands the bytes of a log to the screen as text: of a progress bar each state is a line."""

    def __init__(self, screen: RunScreen) -> None:
        self._screen = screen
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder = IncrementalNewlineDecoder(decoder, translate=True)

    def write(self, data: bytes) -> None:
        self._screen.post_message(Loaded("log", printable(self._decoder.decode(data))))

    def flush(self) -> None:
        """Do nothing: all is shown."""
