"""The section on a search: its trials, the history of the best, and the importance of parameters. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import altair as alt

from dscampaign.orchestrator.campaign.titles import value_text
from dscampaign.orchestrator.formatting import count, figure
from dscampaign.orchestrator.reconcile.search import SearchState
from dscampaign.orchestrator.spec.matrix import short_name
from dscampaign.orchestrator.spec.sampling import Trial, TrialOutcome, best_first, study_of, unbeaten
from dscampaign.orchestrator.spec.search_section import SearchConfig

from .charts import chart_of, data_of
from .elements import MOST_ROWS, Chart, Section, Table, TableCell, table
from .looks import COLOURS, GREY, Looks

_ENDS: Final = {
    TrialOutcome.OPEN: "under way",
    TrialOutcome.MEASURED: "completed",
    TrialOutcome.PRUNED: "pruned",
    TrialOutcome.INFEASIBLE: "infeasible",
    TrialOutcome.FAILED: "without a figure",
}


def search_found(state: SearchState, looks: Looks) -> Section:
    """Return the section; empty without a trial."""
    title, search = "What did the search find?", state.search
    if not state.trials:
        return Section(title)
    ranked = best_first(search, state.trials)
    ends = Counter(trial.outcome for trial in state.trials)
    parts = [f"{ends[outcome]} {word}" for outcome, word in _ENDS.items() if ends[outcome]]
    text = f"{count(len(state.trials), 'trial')} ({', '.join(parts)})."
    if ranked and len(search.objective) > 1:
        text += f" No other beats {count(len(unbeaten(search, ranked)), 'trial')} in {' and '.join(search.objective)}."
    elif ranked:
        text += f" Best {search.objective[0]}: {figure(ranked[0].values[0], 5)}, trial {ranked[0].number}."
    if ranked:
        text += " The best of many trials is best by chance, too: runs with other seeds confirm it, and comparisons"
        text += " count these alone."
    charts = (*_history(search, state.trials, looks), *_importance(search, state.trials, looks))
    return Section(title, text, charts, _table(state, ranked))


def _table(state: SearchState, ranked: Sequence[Trial]) -> tuple[Table, ...]:
    others = [trial for trial in state.trials if trial.outcome is not TrialOutcome.MEASURED]
    reasons = {run.number: run.row.reason for run in state.runs}
    header = [*state.search.objective, *map(short_name, state.search.parameters)]
    rows = []
    for trial in [*ranked, *others][:MOST_ROWS]:
        known = trial.values or tuple(trial.rungs[step] for step in sorted(trial.rungs)[-1:])
        values = [TableCell(figure(value, 5), value) for value in known]
        values += [TableCell("")] * (len(state.search.objective) - len(values))
        params = [value_text(trial.params[name]) if name in trial.params else "" for name in header[len(values) :]]
        end, steps = _ENDS[trial.outcome], str(max(trial.rungs, default=""))
        number = TableCell(f"trial {trial.number}", trial.number)
        rows.append((number, *values, *params, end, steps, reasons[trial.number]))
    more = max(0, len(state.trials) - MOST_ROWS)
    return (table(("trial", *header, "end", "steps", "because"), rows, main=len(header) + 2, more=more),)


def _history(search: SearchConfig, trials: Sequence[Trial], looks: Looks) -> Iterator[Chart]:
    """Yield the values of the trials in their order, and the best so far; or two objectives against each other."""
    measured = [trial for trial in trials if trial.outcome is TrialOutcome.MEASURED]
    if len(measured) < 2:
        return
    name, dots = alt.Tooltip("says:N", title="trial"), {"filled": True, "size": 60, "opacity": 0.8}
    if len(search.objective) > 1:
        front = unbeaten(search, measured)
        rows = [
            {**dict(zip("xy", trial.values, strict=False)), "says": _says(trial), "best": trial in front}
            for trial in measured
        ]
        first, second = search.objective[:2]
        points = data_of("rows").mark_point(**dots)
        colour = alt.Color("best:N", scale=alt.Scale(domain=[True, False], range=[COLOURS[0], GREY]), legend=None)
        near = alt.Scale(zero=False, nice=True)
        across, up = alt.X("x:Q", title=first, scale=near), alt.Y("y:Q", title=second, scale=near)
        title = f"{second} against {first}: no other trial beats the blue ones"
        yield chart_of("search_front", title, points.encode(across, up, colour, tooltip=[name]), looks, {"rows": rows})
        return
    best = accumulate((trial.values[0] for trial in measured), max if search.maximize[0] else min)
    history = [{"x": trial.number, "y": value} for trial, value in zip(measured, best, strict=True)]
    rows = [{"x": trial.number, "y": trial.values[0], "says": _says(trial)} for trial in measured]
    spread = [trial.values[0] for trial in measured]
    wide = min(spread) > 0 and max(spread) > 20 * min(spread)
    across = alt.X("x:Q", title="trial", axis=alt.Axis(tickMinStep=1))
    scale = alt.Scale(type="log", nice=False) if wide else alt.Scale(zero=False, nice=True)
    up = alt.Y("y:Q", title=search.objective[0], scale=scale)
    points = data_of("rows").mark_point(**dots, color=GREY).encode(across, up, tooltip=[name])
    line = data_of("best").mark_line(interpolate="step-after", strokeWidth=2, color=COLOURS[0]).encode(across, up)
    title = f"{search.objective[0]} of each whole trial, and the best so far"
    yield chart_of("search_history", title, alt.layer(points, line), looks, {"rows": rows, "best": history})


def _says(trial: Trial) -> str:
    return f"{trial.number}: " + ", ".join(f"{name} {value_text(value)}" for name, value in trial.params.items())


def _importance(search: SearchConfig, trials: Sequence[Trial], looks: Looks) -> Iterator[Chart]:
    """Yield the share of the variance of the first objective that each parameter explains, by fANOVA."""
    measured = [trial for trial in trials if trial.outcome is TrialOutcome.MEASURED]
    if len(measured) < 8 or len(search.parameters) < 2 or len({trial.values[0] for trial in measured}) < 2:
        return
    try:
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    except ImportError:  # the report needs it for this chart only
        return
    evaluator = FanovaImportanceEvaluator(seed=search.seed)
    study = study_of(search, measured)
    shares = get_param_importances(study, evaluator=evaluator, target=lambda trial: trial.values[0])
    rows = [{"name": name, "share": share} for name, share in shares.items()]
    across = alt.X("share:Q", title="share of the variance", axis=alt.Axis(format="%"))
    bars = data_of("rows").mark_bar(height={"band": 0.62}, cornerRadiusEnd=2, color=COLOURS[0])
    up = alt.Y("name:N", title=None, sort=None)
    tooltip = [alt.Tooltip("name:N"), alt.Tooltip("share:Q", format=".0%")]
    title = f"Importance of parameters for {search.objective[0]} (fANOVA, whole trials)"
    bars = bars.encode(across, up, tooltip=tooltip)
    yield chart_of("search_importance", title, bars, looks, {"rows": rows}, height=alt.Step(26))
