"""`campaign top`: campaigns, runs and events on the whole terminal, read again every two seconds. Only reads."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Footer, Input, Static
from textual.worker import Worker, get_current_worker

from dscampaign.db.errors import StoreError
from dscampaign.db.records import EventRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.activity import event_text
from dscampaign.orchestrator.campaign.selection import campaigns_of, find
from dscampaign.orchestrator.campaign.status import CampaignOverview, CampaignStatus, badness
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean, moment
from dscampaign.orchestrator.pages.rows import FIGURES, OVERVIEW, ShownRun
from dscampaign.orchestrator.pages.status import summary
from dscampaign.orchestrator.pages.text import Page

from .model import LiveStore
from .rows import Column, Rows
from .top_run import RunScreen, coloured

POLL_S: Final = 2.0
CAMPAIGNS_S: Final = 10.0
"""The list of campaigns is read less often: it counts the runs of all."""


@dataclass
class ScreenData:
    """The campaign on the screen as it was last read; the list of all is None until it is read again."""

    name: str | None
    status: CampaignStatus | None = None
    runs: Sequence[ShownRun] = ()
    curves: Mapping[str, list[float]] = field(default_factory=dict)  # of runs that were in sight, by name
    events: Sequence[tuple[EventRow, str]] = ()  # with the names of their runs
    campaigns: Sequence[CampaignOverview] | None = None


class Looked(Message):
    """A look at the store is over: its result, or why it failed."""

    def __init__(self, result: ScreenData | str) -> None:
        super().__init__()
        self.result = result


def _figure(name: str, width: int, needed: int, *, most: bool = True) -> Column:
    """Return a column that sorts the highest figures first, or the lowest; unknown and infinite figures come last."""
    shown = FIGURES[name]

    def key(row: ShownRun) -> float:
        value = shown.value(row)
        return math.inf if value is None or not math.isfinite(value) else -value if most else value

    return Column(name, width, shown.text, key, needed, right=True)


CAMPAIGNS: Final = (
    Column("campaign", 16, OVERVIEW["campaign"], grows=True),
    Column("runs", 6, OVERVIEW["runs"], needed=1, right=True),
    Column("hours", 8, OVERVIEW["device-hours"], needed=3, right=True),
    Column("active", 15, OVERVIEW["last activity"], needed=2, right=True),
    Column("states", 20, lambda row: (OVERVIEW["states"](row), "dim" if row.settled else "cyan"), needed=1, grows=True),
)
COLUMNS: Final = (
    Column("run", 10, lambda row: row.label, grows=True),
    Column("state", 13, ShownRun.look, lambda row: badness(row.run.shown), 1, grows=True),
    _figure("step", 12, 2),
    _figure("loss", 7, 3, most=False),
    _figure("tok/s", 6, 5),
    _figure("memory", 8, 6),
    _figure("left", 11, 7, most=False),
    _figure("tries", 5, 8),
    Column("why", 16, lambda row: (row.why, "yellow"), lambda row: (not row.why, row.why), 9, grows=True),
)
"""The columns of runs but the curve; those that sort put the most interesting run first."""


class Top(App[None]):
    """The view of a store."""

    TITLE = "campaign top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { height: auto; max-height: 3; padding: 0 1; background: $surface; }
    #campaigns { height: auto; max-height: 6; }
    #runs { height: 1fr; min-height: 4; }
    #filter { height: 1; border: none; padding: 0 1; display: none; background: $surface-lighten-1; }
    #detail { height: 2; padding: 0 1; background: $surface; text-wrap: nowrap; text-overflow: ellipsis; }
    #events { height: 20%; min-height: 3; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("escape", "clear", show=False),
    ]

    def __init__(self, live: LiveStore, campaign: str | None) -> None:
        super().__init__()
        self.live, self.seen = live, ScreenData(campaign)
        self._campaigns_at_s = -math.inf
        self._looking: Worker[None] | None = None
        curve = Column("loss curve", 10, lambda row: self.seen.curves.get(row.name, []), needed=4)
        self.columns = (*COLUMNS[:4], curve, *COLUMNS[4:])
        self.table, self.campaigns = Rows(self.columns, id="runs"), Rows(CAMPAIGNS, id="campaigns")
        self.table.sorted_by = COLUMNS[0].label
        self.input = Input(placeholder="filter: parts of names, states, reasons", id="filter")
        self.headline, self.detail, self.events = (Static(id=part) for part in ("headline", "detail", "events"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Leave the keys of runs to the first screen."""
        return len(self.screen_stack) == 1 or action not in ("filter", "sort", "clear")

    def compose(self) -> ComposeResult:
        yield from (self.headline, self.campaigns, self.table, self.input, self.detail, self.events, Footer())

    def on_mount(self) -> None:
        self.campaigns.display = False
        self.table.focus()
        self.headline.update("reading the store …")
        self.set_interval(POLL_S, self.look)
        self.look()

    def look(self) -> Worker[None]:
        """Read the campaign, and the curves of the runs in sight, on a thread of its own, unless it does so already."""
        if self._looking is None or self._looking.is_finished:
            in_sight = [row.name for row in self.table.in_sight]
            self._looking = self.run_worker(partial(self._look, self.seen, in_sight), thread=True)
        return self._looking

    def _look(self, seen: ScreenData, in_sight: list[str]) -> None:
        worker = get_current_worker()
        try:
            result: ScreenData | str = self._read(seen, in_sight)
        except (StoreError, UserError) as error:
            result = f"{error.message}{f' ({error.hint})' if error.hint else ''}"
        if not worker.is_cancelled and seen is self.seen:
            self.post_message(Looked(result))

    def _read(self, seen: ScreenData, in_sight: list[str]) -> ScreenData:
        campaigns = None
        if seen.name is None or time.monotonic() - self._campaigns_at_s > CAMPAIGNS_S:
            self._campaigns_at_s, campaigns = time.monotonic(), self.live.campaigns()
        found = self.live.runs(seen.name or (campaigns[0].name if campaigns else None))
        name = found.status.campaign.name
        curves = self.live.curves(name, in_sight or [row.name for row in found.runs[: self.size.height]])
        losses = {run: [loss for loss in curve.loss if loss is not None] for run, curve in curves.items()}
        return ScreenData(name, found.status, found.runs, {**seen.curves, **losses}, self.live.events(name), campaigns)

    def on_looked(self, looked: Looked) -> None:
        if isinstance(looked.result, str):
            self.headline.update(Text(clean(looked.result), "red"))
            return
        if self.seen.name not in (None, looked.result.name):
            return  # another was chosen meanwhile
        before, self.seen = self.seen, looked.result
        assert self.seen.status
        self.headline.update(coloured(summary(self.seen.status, Page(colour=True))))
        if self.seen.campaigns is not None:
            self.campaigns.display = len(self.seen.campaigns) > 1
            self.campaigns.show(self.seen.campaigns)
        if (before.runs, before.curves) != (self.seen.runs, self.seen.curves):
            self.arrange()
        self._show_events()

    def arrange(self) -> None:
        def matches(row: ShownRun, word: str) -> bool:
            return word in f"{row.name} {row.label} {row.run.shown} {row.doing} {row.why} {row.run.job_id}".lower()

        words = self.input.value.lower().split()
        runs = [row for row in self.seen.runs if all(matches(row, word) for word in words)]
        column = next(column for column in self.columns if column.label == self.table.sorted_by)
        self.table.show(sorted(runs, key=column.key) if column.key else runs)
        self._show_run()

    def _show_run(self) -> None:
        row, text = self.table.row, Text()
        if row is None:
            text.append("no run matches" if self.seen.runs else "no run")
        else:
            run = row.run
            facts = {"job": run.job_id, "on": run.node_list}
            facts |= {name: FIGURES[name].text(row) for name in ("memory", "micro-batch")}
            facts["attempt"] = run.generation if run.generation > 1 else ""
            text.append(clean(run.name), "bold")
            text.append("".join(f" · {name} {clean(str(value))}" for name, value in facts.items() if value))
            text.append(f"\n{row.why or row.doing}", "yellow" if row.why else "")
        self.detail.update(text)

    def _show_events(self) -> None:
        text = Text()
        for event, run in self.seen.events[-max(1, self.events.size.height) :]:
            text.append(f"{moment(event.ts_s)[-8:]}  ", "dim")
            text.append(f"{clean(run)}  " if run else "", "bold")
            text.append(f"{event_text(event)}\n")
        text.rstrip()
        self.events.update(text)

    def on_rows_moved(self) -> None:
        self._show_run()
        self.set_timer(0.2, self._look_for_curves)

    def _look_for_curves(self) -> None:
        known = self.seen.curves
        if self.table.is_attached and any(row.run.step and row.name not in known for row in self.table.in_sight):
            self.look()

    def on_rows_chosen(self, chosen: Rows.Chosen) -> None:
        if isinstance(chosen.row, ShownRun):
            self.push_screen(RunScreen(self.live.store, self.seen.name or "", chosen.row.name))
        elif chosen.row.name != self.seen.name:
            self.seen, self._looking = ScreenData(chosen.row.name), None
            self.table.show([])
            self.table.focus()
            self.look()

    def on_input_changed(self) -> None:
        self.arrange()

    def on_input_submitted(self) -> None:
        self.input.display = bool(self.input.value)
        self.table.focus()

    def action_filter(self) -> None:
        self.input.display = True
        self.input.focus()

    def action_clear(self) -> None:
        self.input.value = ""
        self.on_input_submitted()

    def action_sort(self) -> None:
        labels = [column.label for column in self.columns if column.key or column is self.columns[0]]
        self.table.sorted_by = labels[(labels.index(self.table.sorted_by) + 1) % len(labels)]
        self.arrange()


def view_of(store: Store, name: str | None) -> Top:
    """Return the view of a store; raises UserError without a campaign, or if it has none of that name."""
    campaigns = campaigns_of(store, name) or [find(store, None)]
    return Top(LiveStore(store), campaigns[0].name if len(campaigns) == 1 else None)
