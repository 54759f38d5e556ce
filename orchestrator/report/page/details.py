"""The folded details: what each condition trains, on which software and machines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, TypeVar

from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import flat_fields, short_number, some
from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.compare.wording import field_text
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.effects import COMPARES_ALIKE

from .elements import MOST_ROWS, Section, table, table_of

T = TypeVar("T")
Columns = dict[str, Callable[[T], str]]

ALL: Final = 99
"""A table of details shows all its columns."""


def details(results: Results) -> Iterator[Section]:
    """Yield the sections that a page folds."""
    yield setup(results)
    spec = results.campaign.spec.strip()
    yield Section("Spec", code=((f"{results.campaign.name}.yaml", spec),) if spec else (), folded=True)
    yield environment(results)


def setup(results: Results) -> Section:
    """The fields in which conditions differ, a row a condition, and the fields that all have in common."""
    each = [(condition.title, dict(_fields(condition))) for condition in results.conditions]
    names = dict.fromkeys(chain(*(fields for _, fields in each)))
    columns = {name: {fields.get(name, "") for _, fields in each} for name in names}
    common = [(name, *values) for name, values in columns.items() if len(values) == 1 and values != {""}]
    varying = [name for name, values in columns.items() if len(values) > 1]
    rows = [(title, *(fields.get(name, "") for name in varying)) for title, fields in each[:MOST_ROWS]]
    more = max(0, len(each) - MOST_ROWS)
    differ = (table(("condition", *varying), rows, main=ALL, more=more, file="conditions.csv"),) if varying else ()
    heading = "in all conditions" if len(each) > 1 else "field"
    alike = (table((heading, "value"), common),) if common else ()
    return Section("Set-up", tables=(*differ, *alike), folded=True)


def _fields(condition: Condition) -> Iterator[tuple[str, str]]:
    """All fields of a condition's configuration by name, and what follows from them.

    Which of the trainer's fields a user's script heeds is unknown: of it, its command and the matrix count.
    """
    run = condition.runs[0]
    command = run.config.get("command")
    own = {name: value for name, value in condition.params.items() if name != "label"}
    sections = {"": {"command": command, **own} if command else run.train}
    place = () if run.config.get("executor") == "local" else ("slurm",)
    sections |= {f"{name}.": run.config.get(name) or {} for name in ("deepspeed", "env", *place)}
    for prefix, fields in sections.items():
        for name, value in flat_fields(fields, prefix):
            if name.partition(".")[0] not in COMPARES_ALIKE and name not in _SCHEDULING:
                yield name, field_text(value)
    batch, steps = condition.field("global_batch"), run.target_step
    yield "parameters", short_number(run.start.get("parameters"))
    yield "ranks", str(run.world_size)
    yield "tokens a step", field_text(run.tokens_per_step)
    yield "samples", f"{batch * steps:,}" if batch and steps else ""


_SCHEDULING: Final = frozenset(("slurm.time", "slurm.array_parallelism", "slurm.signal_delay_s", "slurm.setup"))


def environment(results: Results) -> Section:
    """The campaign, its software and its nodes."""
    facts = {**results.campaign.provenance, "executor": results.campaign.executor, "folder": results.campaign.dir}
    tables = [table(("campaign", "value"), [(name, field_text(value)) for name, value in facts.items() if value])]
    software = alike((run for run in results.runs if run.software), lambda run: tuple(run.software.items()))
    tables += [table((some([run.name for run in same], 4), "value"), same[0].software.items()) for same in software]
    nodes: dict[str, list[MeasuredRun]] = {}
    for run in results.runs:
        for name in dict.fromkeys((*run.hosts, *run.machines)):
            nodes.setdefault(name, []).append(run)
    return Section("Environment", tables=(*tables, *table_of(_NODES, list(nodes.items()), main=ALL)), folded=True)


_Node = tuple[str, list[MeasuredRun]]


def _machine(name: str) -> Callable[[_Node], str]:
    """Return a column of facts about the machine: a node may have had another system later."""
    return lambda node: ", ".join(
        dict.fromkeys(str(run.machines[node[0]][name]) for run in node[1] if run.machines.get(node[0], {}).get(name))
    )


_NODES: Final[Columns[_Node]] = {
    "node": lambda node: node[0],
    "GPU": lambda node: ", ".join(dict.fromkeys(name for run in node[1] for name in run.gpus.names)),
    "CPU": _machine("cpu"),
    "cores": _machine("cores"),
    "system": _machine("system"),
    "kernel": _machine("kernel"),
    "runs": lambda node: some([run.name for run in node[1]], 4),
}
