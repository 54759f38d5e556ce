"""The documents of the page as JSON: campaigns, rows of runs, charts, a run, its log.

Figures are text, with a value to sort by. A page shows every text as text: nothing here is markup.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from dscampaign.db import queries
from dscampaign.db.gpu_records import AttemptGpus
from dscampaign.db.records import EventRow
from dscampaign.orchestrator.campaign.activity import event_text
from dscampaign.orchestrator.campaign.documents import finite, run_details
from dscampaign.orchestrator.campaign.logs import Wanted, newest_log, print_log
from dscampaign.orchestrator.campaign.status import CampaignOverview, CampaignStatus
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean, count, figure, moment, printable
from dscampaign.orchestrator.pages.describe import run_text
from dscampaign.orchestrator.pages.rows import FIGURES, OVERVIEW, ShownRun
from dscampaign.orchestrator.pages.status import notes
from dscampaign.orchestrator.report.page import charts
from dscampaign.orchestrator.report.page.curves import POINTS, Curves, short
from dscampaign.orchestrator.report.page.looks import COLOURS, GREY, OTHERS, REST, Look, looks_of
from dscampaign.orchestrator.report.page.render import CONFIG, page_from, template

from .model import CHART, LATEST, Changes, LiveStore

MOST_CURVES: Final = 60
"""Curves of a chart."""

_MOST_POINTS: Final = 160
_LOG_BYTES: Final = 1 << 18
_CONFIG: Final = {**CONFIG, "legend": {"disable": True}}


def dumps(document: Any) -> str:
    """Return JSON in a line, without NaN."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False, default=str)


def campaigns_document(campaigns: Iterable[CampaignOverview]) -> list[dict[str, Any]]:
    """Return the list of campaigns."""
    return [
        {
            "name": one.name,
            "counts": one.totals.shown,
            "settled": one.settled,
            "cells": [
                clean(one.user),
                one.campaign.executor,
                *(OVERVIEW[name](one) for name in ("device-hours", "last activity")),
            ],
        }
        for one in campaigns
    ]


def head_document(status: CampaignStatus) -> dict[str, Any]:
    """Return the counts of a campaign and the lines about it."""
    done = sum(min(run.step or 0, run.target_step or 0) for run in status.runs)
    return {
        "counts": {str(state): number for state, number in status.shown_counts.items() if number},
        "early": status.counts.early,
        "steps": f"{count(len(status.runs), 'run')} · {done:,} steps completed",
        "lines": notes(status),
        "settled": status.settled,
    }


def changes_document(changes: Changes, events: Sequence[tuple[EventRow, str]]) -> dict[str, Any]:
    """Return rows and events that changed."""
    return {
        "version": changes.version,
        "whole": changes.whole,
        "rows": [_row(row) for row in changes.runs],
        "events": [[event.id, moment(event.ts_s), clean(run), event_text(event)] for event, run in events],
    }


_CELLS: Final = ("step", "left", "loss", "tok/s", "memory", "micro-batch", "GPUs", "tries")


def _row(row: ShownRun) -> dict[str, Any]:
    run, job = row.run, (row.run.job_id, row.run.node_list)
    return {
        "id": run.run_id,
        "name": clean(run.name),
        "title": row.label,
        "state": run.shown,
        "early": run.early,
        "doing": row.doing,
        "why": row.why,
        "share": row.share,
        "cells": [*(FIGURES[name].text(row) for name in _CELLS), clean(" on ".join(filter(None, job)))],
        "values": [finite(FIGURES[name].value(row)) for name in _CELLS],
    }


def draw_document(live: LiveStore, campaign: str | None, ids: Sequence[int], drawn: Sequence[int]) -> dict[str, Any]:
    """Return the losses of some runs for sparklines, and the data of the chart of losses for others, by run id."""
    rows = {row.run.run_id: row for row in live.runs(campaign).runs}
    titles = list(dict.fromkeys(row.title for row in rows.values()))
    colours = {title: place for place, title in enumerate(titles)} if len(titles) <= REST else {}
    names = {rows[one].name: one for one in ids if one in rows}
    sparks = live.curves(campaign, names)
    chosen = [rows[one] for one in drawn if one in rows]
    return {
        "sparks": {str(names[name]): [*map(_short, curve.loss)] for name, curve in sparks.items()},
        "chart": curves_document(live, campaign, chosen, colours),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else short(value)


def curves_document(
    live: LiveStore,
    campaign: str | None,
    runs: Sequence[ShownRun],
    colours: Mapping[str, int],
    most: int = _MOST_POINTS,
) -> dict[str, Any]:
    """Return the data of `curve_specs` for these runs: of more than eight conditions, the first have a colour."""
    with_curve = [row for row in runs if row.run.step is not None][:MOST_CURVES]
    points = min(most, max(12, POINTS // max(1, len(with_curve))))
    found = live.curves(campaign, [run.name for run in with_curve], points)
    own = colours or {title: place for place, title in enumerate(dict.fromkeys(run.title for run in with_curve))}
    rows: list[dict[str, Any]] = []
    held_out: list[dict[str, Any]] = []
    slots = [min(REST, own[run.title]) for run in with_curve]
    grey_first = sorted(enumerate(with_curve), key=lambda each: slots[each[0]] != REST)
    for number, run in grey_first:
        curve = found.get(run.name)
        for step, loss, other, speed in zip(*curve[1:], strict=True) if curve else ():
            rows.append({"c": number, "step": step, "loss": _short(loss), "speed": _short(speed)})
            if other is not None:
                held_out.append({"c": number, "step": step, "loss": _short(other)})
    drawn = Curves(rows, held_out, {}, 0)
    return {
        "rows": {name: [row[name] for row in rows] for name in ("c", "step", "loss", "speed")},
        "held_out": {name: [row[name] for row in held_out] for name in ("c", "step", "loss")},
        "titles": [row.label for row in with_curve],
        "groups": [OTHERS if slot == REST else str(slot) for slot in slots],
        "ends": {"loss": drawn.domain("loss"), "pace": drawn.domain("speed")},
        "colours": {row.run.run_id: slot for row, slot in zip(with_curve, slots, strict=True)},
        "legend": [*map(list, dict(zip([row.title for row in with_curve], slots, strict=True)).items())],
    }


@cache
def curve_specs() -> Mapping[str, Any]:
    """Return Vega-Lite of the losses and the speeds along the steps, whose data and colours are set by the page."""
    looks = {str(slot): Look(slot, str(slot), str(slot), slot) for slot in range(REST + 1)}
    rows = [{"c": slot, "step": 1, "loss": 1.0, "speed": 1.0} for slot in range(len(COLOURS) + 1)]
    curves = Curves(rows, rows[:1], {}, 0)
    specs = {}
    for chart in filter(None, (charts.losses(curves, looks, ""), charts.paces(curves, looks))):
        spec = {**chart.spec, "config": _CONFIG, "datasets": {}}
        spec["params"] = [*spec["params"], {"name": "lowest", "value": 0}, {"name": "highest", "value": 1}]
        for layer in spec["layer"]:
            if "scale" in (up := layer["encoding"].get("y", {})):
                ends = {"domainMin": {"expr": "lowest"}, "domainMax": {"expr": "highest"}}
                up["scale"] = {"zero": False, "nice": False, **ends}
        specs[chart.name] = spec
    return specs


def verdict_document(live: LiveStore, campaign: str | None) -> dict[str, Any]:
    """Return the sentence of `campaign recommend` for each workload that compares conditions, and a chart.

    The chart is the report's of speed against memory. Takes as long as `LiveStore.results`.
    """
    found, chart = live.results(campaign), None
    several = [one for one in found.workloads if len(one.comparisons) > 1] if found else []
    sentences = [(clean(one.workload.name), clean(one.answer.sentence)) for one in several]
    if found and several:
        looks = looks_of(found)
        chart = charts.trade_off(several[0], looks)
    return {
        "sentence": " ".join(f"{name}: {text}" if name and len(several) > 1 else text for name, text in sentences),
        "effort": found.effort if found else "",
        "chart": {**chart.spec, "config": _CONFIG} if chart else None,
        "caption": chart.title if chart else "",
    }


def run_document(live: LiveStore, campaign: str | None, run_id: int) -> dict[str, Any]:
    """Return the page of a run; raises UserError if it does not exist."""
    changes = live.runs(campaign)
    shown = next((row for row in changes.runs if row.run.run_id == run_id), None)
    if shown is None:
        raise UserError(f"no run {run_id} in {changes.status.campaign.name}")
    with live.store.read() as conn:
        row = queries.run_by_id(conn, run_id)
    details = run_details(live.store, changes.status.campaign, row, changes.status)
    text = run_text(details)
    newest, ds_config = details.attempts[-1] if details.attempts else None, ""
    if newest:
        with suppress(OSError, UnicodeDecodeError):
            ds_config = details.paths.attempt(newest.generation).ds_config.read_text(encoding="utf-8")
    return {
        "facts": [[name, value] for name, value in text.facts.items() if value],
        "attempts": list(text.attempts),
        "events": list(text.events),
        "next": text.next,
        "config": json.dumps(dict(row.config), indent=2, default=str, ensure_ascii=False),
        "ds_config": ds_config,
        "gpus": _gpus(details.gpus.get(newest.id)) if newest else [],
        "tries": [attempt.generation for attempt in details.attempts],
        "ranks": newest.world_size if newest else 0,
        "curves": curves_document(live, campaign, [shown], {shown.title: 0}, CHART),
    }


def _gpus(used: AttemptGpus | None) -> list[list[str]]:
    """Return the GPUs of an attempt, a row each, below the names of the columns."""
    gpus = used.gpus if used else ()
    rows = [
        [
            clean(one.node), str(one.gpu), clean(one.name), figure(one.util_pct, 3), figure(one.power_w, 3),
            figure(one.temperature_max_c, 3), figure(one.mem_used_max_gb, 3),
            "" if one.energy_j is None else figure(one.energy_j / 1e3),
        ]
        for one in gpus
    ]  # fmt: skip
    return [["node", "GPU", "name", "busy (%)", "power (W)", "hottest (°C)", "memory (GB)", "energy (kJ)"], *rows]


def log_document(
    live: LiveStore, campaign: str | None, run_id: int, *, rank: int = 0, launcher: bool = False,
    attempt: int | None = None, file: str = "", at: int = 0, most: int = _LOG_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """Return what a log has from the byte `at` on if it is still the same `file`, else the newest `most` bytes.

    Without a log, `file` is the reason.
    """
    row = live.runs(campaign, LATEST).status.campaign
    with live.store.read() as conn:
        run = next((run for run in [queries.run_by_id(conn, run_id)] if run.campaign_id == row.id), None)
    if run is None:
        raise UserError(f"no run {run_id} in {row.name}")
    try:
        wanted = Wanted.of(live.store, row, run, rank=rank, launcher=launcher, generation=attempt)
        ended, path = wanted.ended, newest_log(wanted)
    except UserError as error:
        return {"file": str(error), "at": 0, "text": "", "cut": False, "ended": False}
    size, stream = path.stat().st_size, io.BytesIO()
    first = at if path.name == file and 0 <= at <= size <= at + most else max(0, size - most)
    end = print_log(path, None, stream, first)
    text = stream.getvalue().decode(errors="replace")
    cut = first > 0 and first != at
    text = (text.partition("\n")[2] or text) if cut else text  # or a line longer than it
    redrawn = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return {"file": path.name, "at": end, "text": printable(redrawn), "cut": cut, "ended": ended}


def page_of(title: str, data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the page of a campaign, or of all, and the content security policy that it needs.

    For `data` see `live.js`. With `live` it follows the server, else it has all that it shows.
    """
    connects = "connect-src 'self'; " if data["live"] else ""
    colours = "".join(f".spark .k{n} {{ stroke: {paint}; }}" for n, paint in enumerate((*COLOURS, GREY)))
    style, script = f"{template('report.css')}{template('live.css')}{colours}", template("live.js")
    values: dict[str, Any] = {"title": title, "data": {**data, "specs": curve_specs()}}
    return page_from("live.html", style, script, connects, **values)
