"""`campaign top`: campaigns, runs and events on the whole terminal, read again every two seconds. Only reads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, NamedTuple

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Footer, Input, Static
from textual.worker import Worker, get_current_worker

from dscampaign.db.errors import StoreError
from dscampaign.orchestrator.campaign.activity import LOOKS, step_text
from dscampaign.orchestrator.campaign.status import WORST_FIRST, CampaignStatus
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean, duration, figure, moment, short_number

from .model import Changes, LiveCampaign, LiveEvent, LiveRun, LiveStore
from .rows import Column, Rows
from .top_run import Help, RunScreen, coloured

POLL_S: Final = 2.0
CAMPAIGNS_S: Final = 10.0
"""The list of campaigns is read less often: it counts the runs of all."""


class CommandTexts(NamedTuple):
    """Texts of other commands, with colours as escape sequences: a campaign in a line; a run of a campaign, explained.

    `explain` gets campaign, run and the width in characters; it may take long, and raises as `LiveStore` does.
    """

    headline: Callable[[CampaignStatus], str]
    explain: Callable[[str, str, int], str]


@dataclass
class OnScreen:
    """All that is known of the campaign on the screen."""

    name: str | None
    version: int = 0
    runs: dict[int, LiveRun] = field(default_factory=dict)
    curves: dict[str, tuple[str, list[tuple[int, float]]]] = field(default_factory=dict)
    events: list[LiveEvent] = field(default_factory=list)


class Read(NamedTuple):
    """The result of a look at the store; the campaigns only now and then."""

    campaigns: list[LiveCampaign] | None
    changes: Changes
    curves: dict[str, tuple[str, list[tuple[int, float]]]]
    events: list[LiveEvent]


class Looked(Message):
    """A look at the store is over: its result, or why it failed."""

    def __init__(self, result: Read | str) -> None:
        super().__init__()
        self.result = result


def _title(run: LiveRun) -> str:
    return f"{run.title} r{run.repeat}" if run.repeat else run.title


def _state(run: LiveRun) -> tuple[str, str]:
    sign, colour = LOOKS[run.state]
    if run.state == "running" and run.doing:
        return f"{sign} {run.doing}", colour
    return (f"{sign} {run.state} early", "yellow") if run.early else (f"{sign} {run.state}", colour)


def _number(value: float | None, most: bool = True) -> float:
    """Sort by a figure: the highest first, or the lowest, unknown and infinite values last."""
    return math.inf if value is None or not math.isfinite(value) else -value if most else value


def _counts(campaign: LiveCampaign) -> str:
    return ", ".join(f"{campaign.counts[state]:,} {state}" for state in map(str, LOOKS) if campaign.counts.get(state))


def _worst(run: LiveRun) -> int:
    return next((place for place, state in enumerate(WORST_FIRST) if state == run.state), len(WORST_FIRST))


def _memory(run: LiveRun) -> str:
    return "" if run.mem_gb is None else f"{run.mem_gb:.1f} GB"


def _left(run: LiveRun) -> str:
    return "" if run.left_s is None else duration(run.left_s)


def _tries(run: LiveRun) -> tuple[str, str]:
    return str(run.attempt) if run.attempt > 1 else "", "yellow"


CAMPAIGNS: Final = (
    Column("campaign", 16, lambda one: one.name, grows=True),
    Column("runs", 6, lambda one: f"{sum(one.counts.values()):,}", needed=1, right=True),
    Column("hours", 8, lambda one: f"{one.device_hours:,.1f}", needed=3, right=True),
    Column("active", 15, lambda one: f"{duration(one.quiet_s)} ago", needed=2, right=True),
    Column("states", 20, lambda one: (_counts(one), "dim" if one.settled else "cyan"), needed=1, grows=True),
)
COLUMNS: Final = (
    Column("run", 10, _title, grows=True),
    Column("state", 13, _state, _worst, 1, grows=True),
    Column("step", 12, lambda run: step_text(run.step, run.target_step), lambda run: -(run.step or 0), 2, True),
    Column("loss", 7, lambda run: figure(run.loss), lambda run: _number(run.loss, most=False), 3, True),
    Column("tok/s", 6, lambda run: short_number(run.tokens_per_s), lambda run: _number(run.tokens_per_s), 5, True),
    Column("memory", 8, _memory, lambda run: _number(run.mem_gb), 6, True),
    Column("left", 11, _left, lambda run: _number(run.left_s, most=False), 7, True),
    Column("tries", 5, _tries, lambda run: -run.attempt, 8, True),
    Column("why", 16, lambda run: (run.why, "yellow"), lambda run: (not run.why, run.why), 9, grows=True),
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
        Binding("r", "reverse", "reverse"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("escape", "clear", show=False),
    ]

    def __init__(self, live: LiveStore, campaign: str | None, texts: CommandTexts) -> None:
        super().__init__()
        self.live, self.texts, self.seen = live, texts, OnScreen(campaign)
        self._campaigns_at_s = -math.inf
        self._looking: Worker[None] | None = None
        curve = Column("loss curve", 10, self._curve, needed=4)
        self.columns = (*COLUMNS[:4], curve, *COLUMNS[4:])
        self.table, self.campaigns = Rows(self.columns, id="runs"), Rows(CAMPAIGNS, id="campaigns")
        self.table.sorted_by = COLUMNS[0].label
        self.input = Input(placeholder="filter: parts of names, states, reasons", id="filter")
        self.headline, self.detail, self.events = (Static(id=part) for part in ("headline", "detail", "events"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Leave the keys of runs to the first screen."""
        return len(self.screen_stack) == 1 or action not in ("filter", "sort", "reverse", "clear", "help")

    def compose(self) -> ComposeResult:
        """Place the parts from top to bottom."""
        yield from (self.headline, self.campaigns, self.table, self.input, self.detail, self.events, Footer())

    def on_mount(self) -> None:
        """Begin to read."""
        self.campaigns.display = False
        self.table.focus()
        self.headline.update("reading the store …")
        self.set_interval(POLL_S, self.look)
        self.look()

    def look(self) -> Worker[None]:
        """Read what changed, and the curves of the runs in sight, on a thread of its own, unless it does so already."""
        if self._looking is None or self._looking.is_finished:
            in_sight = [run.name for run in self.table.in_sight]
            self._looking = self.run_worker(partial(self._look, self.seen, in_sight), thread=True)
        return self._looking

    def _look(self, seen: OnScreen, in_sight: list[str]) -> None:
        worker = get_current_worker()
        try:
            campaigns = None
            if seen.name is None or time.monotonic() - self._campaigns_at_s > CAMPAIGNS_S:
                self._campaigns_at_s, campaigns = time.monotonic(), self.live.campaigns()
            name = seen.name or (campaigns[0].name if campaigns else None)
            changes = self.live.runs(name, seen.version)
            name = changes.status.campaign.name
            in_sight = in_sight or [run.name for run in changes.runs[: self.size.height]]
            events = self.live.events(name, seen.events[-1].id if seen.events else 0)
            result: Read | str = Read(campaigns, changes, self._curves_of(name, in_sight, seen), events)
        except (StoreError, UserError) as error:
            result = f"{error.message}{f' ({error.hint})' if error.hint else ''}"
        if not worker.is_cancelled and seen is self.seen:
            self.post_message(Looked(result))

    def _curves_of(
        self, name: str, runs: Iterable[str], seen: OnScreen
    ) -> dict[str, tuple[str, list[tuple[int, float]]]]:
        """Return the losses of these runs with the point to go on from: what was read before, and what is new."""
        curves = {}
        since = {run: seen.curves[run][0] for run in runs if run in seen.curves}
        for run, got in self.live.curves(name, list(runs), since=since).items():
            new = [(step, loss) for step, loss in zip(got.curve.steps, got.curve.loss, strict=True) if loss is not None]
            first = got.curve.steps[0] if got.curve.steps else math.inf
            old = [] if got.whole else [point for point in seen.curves[run][1] if point[0] < first]
            curves[run] = got.next, old + new
        return curves

    def on_looked(self, looked: Looked) -> None:
        """Show the result; after a failure the next look tries again."""
        read, seen = looked.result, self.seen
        if isinstance(read, str):
            self.headline.update(Text(clean(read), "red"))
            return
        changes = read.changes
        seen.name, seen.version = changes.status.campaign.name, changes.version
        if changes.whole:
            seen.runs.clear()
        seen.runs.update((run.run_id, run) for run in changes.runs)
        seen.curves.update(read.curves)
        seen.events = [*seen.events, *read.events][-100:]
        self.headline.update(coloured(self.texts.headline(changes.status)))
        if read.campaigns is not None:
            self.campaigns.display = len(read.campaigns) > 1
            self.campaigns.show(read.campaigns)
        if changes.runs or read.curves:
            self.arrange()
        self._show_events()

    def arrange(self) -> None:
        """Filter and sort the runs, and show them."""
        words = self.input.value.lower().split()
        runs: Iterable[LiveRun] = self.seen.runs.values()
        if words:
            runs = [run for run in runs if all(word in _searched(run) for word in words)]
        column = next(column for column in self.columns if column.label == self.table.sorted_by)
        shown = sorted(runs, key=column.key) if column.key else list(runs)
        self.table.show(shown[::-1] if self.table.reverse else shown)
        self._show_run()

    def _curve(self, run: LiveRun) -> list[float]:
        return [loss for _, loss in self.seen.curves.get(run.name, ("", []))[1]]

    def _show_run(self) -> None:
        run, text = self.table.row, Text()
        if run is None:
            text.append("no run matches" if self.seen.runs else "no run")
        else:
            facts = {"job": run.job, "on": run.nodes, "memory": _memory(run), "micro-batch": run.micro_batch or ""}
            if run.attempt > 1:
                facts["attempt"] = run.attempt
            if run.first_micro_batch not in (None, run.micro_batch):
                facts["micro-batch"] = f"{run.first_micro_batch} → {run.micro_batch}"
            text.append(clean(run.name), "bold")
            text.append("".join(f" · {name} {value}" for name, value in facts.items() if value))
            text.append(f"\n{run.why or run.doing}", "yellow" if run.why else "")
        self.detail.update(text)

    def _show_events(self) -> None:
        text = Text()
        for event in self.seen.events[-max(1, self.events.size.height) :]:
            text.append(f"{moment(event.ts_s)[-8:]}  ", "dim")
            text.append(f"{clean(event.run)}  " if event.run else "", "bold")
            text.append(f"{event.text}\n")
        text.rstrip()
        self.events.update(text)

    def on_rows_moved(self) -> None:
        """Describe the run under the cursor, and read the curves that came into sight."""
        self._show_run()
        self.set_timer(0.2, self._look_for_curves)

    def _look_for_curves(self) -> None:
        known = self.seen.curves
        if self.table.is_attached and any(run.step and run.name not in known for run in self.table.in_sight):
            self.look()

    def on_rows_chosen(self, chosen: Rows.Chosen) -> None:
        """Open the run, or show the campaign."""
        if isinstance(chosen.row, LiveRun):
            self.push_screen(RunScreen(self.live.store, self.seen.name or "", chosen.row.name, self.texts.explain))
        elif chosen.row.name != self.seen.name:
            self.seen, self._looking = OnScreen(chosen.row.name), None
            self.table.show([])
            self.table.focus()
            self.look()

    def on_input_changed(self) -> None:
        """Filter as the user types."""
        self.arrange()

    def on_input_submitted(self) -> None:
        """Go back to the runs."""
        self.input.display = bool(self.input.value)
        self.table.focus()

    def action_filter(self) -> None:
        """Let the user type a filter."""
        self.input.display = True
        self.input.focus()

    def action_clear(self) -> None:
        """Show all runs."""
        self.input.value = ""
        self.on_input_submitted()

    def action_sort(self) -> None:
        """Sort by the next column."""
        labels = [column.label for column in self.columns if column.key or column is self.columns[0]]
        self.table.sorted_by = labels[(labels.index(self.table.sorted_by) + 1) % len(labels)]
        self.table.reverse = False
        self.arrange()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.table.reverse = not self.table.reverse
        self.arrange()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())


def _searched(run: LiveRun) -> str:
    return f"{run.name} {_title(run)} {run.state} {run.doing} {run.why} {run.job}".lower()
