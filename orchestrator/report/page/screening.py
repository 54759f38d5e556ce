"""Which points were screened, with what result. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dscampaign.db.states import RunState
from dscampaign.orchestrator.formatting import short_number
from dscampaign.orchestrator.reconcile.screening import ScreeningRule
from dscampaign.orchestrator.report.compare.conditions import key_of
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.run_names import SCREENS

from .elements import Section, Table

_HEADER = ("condition", "steps", "tokens/s", "step ms", "memory", "loss", "then", "because")


def screening(results: Results) -> Iterator[Section]:
    """The section of a campaign that screened its points; none of another."""
    rule = ScreeningRule.of(results.campaign.provenance)
    if rule is None or not results.screening:
        return
    full: dict[str, list[MeasuredRun]] = {}
    for run in results.runs:
        full.setdefault(key_of(run.params), []).append(run)
    rows = tuple(_row(run, full.get(key_of(run.params), [])) for run in results.screening)
    text = (
        f"Each point ran for a few steps; in full ran {rule.text}. A screening run counts in no comparison and in no "
        "estimate: one short run shows who cannot win, not who wins."
    )
    yield Section("Screening", (text,), (Table(_HEADER, rows, "-rrrrr--"),))


def _row(run: MeasuredRun, full: list[MeasuredRun]) -> tuple[str, ...]:
    timing, memory = run.timing, run.memory
    held = memory.reserved if memory.reserved is not None else memory.host
    loss = run.loss.held_out if run.loss.held_out is not None else run.loss.final
    out = next((each for each in full if each.state is RunState.SCREENED), None)
    return (
        run.name.removesuffix(SCREENS),
        "" if run.step is None else f"{run.step:,}",
        short_number(timing.tokens_per_s) if timing else "",
        f"{1000 * timing.step_s:,.1f}" if timing else "",
        METRICS["mem_reserved_gb"].text(held),
        METRICS["held_out"].number(loss),
        *(("left out", out.reason) if out else (_then(full), "")),
    )


def _then(full: list[MeasuredRun]) -> str:
    if any(run.tries for run in full):
        return "ran in full"
    return str(full[0].state) if full else ""
