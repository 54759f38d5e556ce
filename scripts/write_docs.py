"""Writes what is made from the code: `python scripts/write_docs.py`.

  docs/architecture.md  the table of packages, from their docstrings
  docs/cli.md       all of it, from the help of every command
  docs/schemas/     the schemas of JSON documents, from scripts/documents.py
  docs/spec.md      the reference of all fields, from their docstrings
  docs/failures.md  budgets and nodes in the table of failure classes, from their policies

`--check` writes nothing, and fails where a page says something else than the code; `make lint` runs it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dscampaign.orchestrator.cli.console import ALIASES
from dscampaign.orchestrator.cli.main import campaign
from dscampaign.orchestrator.errors import ExitCode
from dscampaign.orchestrator.failures.policy import FailureClass, Policy
from dscampaign.orchestrator.spec.model import (
    DatasetConfig,
    LimitsConfig,
    LocalConfig,
    RunConfig,
    Spec,
    StageConfig,
    TrainConfig,
)
from dscampaign.orchestrator.spec.search_section import ConfirmConfig, HalvingConfig, SearchConfig
from dscampaign.orchestrator.spec.sections import (
    ContainerConfig,
    ForwardConfig,
    MlflowConfig,
    NotifyConfig,
    PruneConfig,
    ReconcilerConfig,
    RetentionConfig,
    RetryConfig,
    RetryRule,
    TensorBoardConfig,
    WandbConfig,
)
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig
from dscampaign.scripts.documents import documents

BEGIN: Final = "<!-- Made by `python scripts/write_docs.py`, down to the next mark. -->\n"
END: Final = "<!-- end -->\n"

_ROOT: Final = Path(__file__).resolve().parents[1]
_COMMON: Final = 3
"""Commands that share an option: it is described once."""

_PACKAGES: Final = [
    *("orchestrator/cli", "orchestrator/live", "orchestrator/api", "orchestrator/pages"),
    *("orchestrator/report", "orchestrator/report/page", "orchestrator/report/compare", "orchestrator/report/measure"),
    *("orchestrator/export", "orchestrator/doctor", "orchestrator/campaign", "orchestrator/reconcile"),
    *("orchestrator/memory", "orchestrator/failures", "orchestrator/executors", "orchestrator/spec"),
    *("jobs/probe", "jobs/agent", "jobs/collect", "jobs/forward", "jobs/trainer", "jobs/shared"),
    *("db/ingest", "db/migrations", "db", "files"),
]
"""Each imports only those below it."""

_INTRODUCTION = """\
# The command line

<!-- Made by `python scripts/write_docs.py`. -->

`NAME` is a campaign or its spec file; leave it out if the store has only one campaign. `RUN` may be a pattern. Data
goes to standard output, everything else to standard error. `--debug` shows tracebacks. `NO_COLOR`, `FORCE_COLOR` and
`TERM=dumb` are respected.

## Settings

The first source counts: command line, variable, spec, the nearest `campaign.toml` in this folder or above,
`$XDG_CONFIG_HOME/dscampaign/campaign.toml`, default. `campaign explain --config` shows the source of each.

| setting | option | variable | default |
|---|---|---|---|
| `dir` | `--dir` | `CAMPAIGN_DIR` | `./campaign` |
| `store` | `--store` | `CAMPAIGN_STORE` | `sqlite:///{dir}/campaign.db` |
| `ask_above_runs` | | `CAMPAIGN_ASK_ABOVE_RUNS` | `20` |
| `ask_above_gpu_hours` | | `CAMPAIGN_ASK_ABOVE_GPU_HOURS` | `100` |
| `detach` | `--detach` | `CAMPAIGN_DETACH` | `yes` |

`submit` and `retry --all` ask for confirmation above these limits, `submit` also before it ends a run; without a
terminal they need `--yes`. With `detach`, [a job keeps retrying](watching.md#keeping-a-reconciler-running).
"""

_DOCUMENTS = """\
Fields keep their meaning within a `schema_version`; new fields may come. Numbers that are not finite are the texts
`"NaN"`, `"Infinity"` and `"-Infinity"`. `counts` has the number of runs in each state, `completed_early` that of runs
that ended before their target step. An attempt that another followed is `failed`.
"""


def command_line() -> str:
    """docs/cli.md."""
    codes = [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    printed = ", ".join(f"[`{each.commands}`](schemas/{name}.json)" for name, each in documents().items())
    aliases = ", ".join(f"`{alias}` for `{name}`" for alias, name in ALIASES.items())
    lines = [
        _INTRODUCTION,
        f"Other names of commands: {aliases}.",
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *codes,
        "",
        "## JSON documents",
        "",
        _DOCUMENTS,
        f"Schemas: {printed}.",
    ]
    with click.Context(campaign, info_name="campaign") as ctx:
        verbs = list(documented(ctx))
        count = Counter(option for verb in verbs for option in _documented_options(verb))
        common = [option for option, commands in count.most_common() if commands >= _COMMON]
        lines += ["", "## Common options", "", "`campaign COMMAND --help` shows its options.", ""]
        lines += common
        for verb in verbs:
            lines += ["", *_section(verb, common)]
    return "\n".join(lines) + "\n"


def _documented_options(ctx: click.Context) -> list[str]:
    options = (param for param in ctx.command.params if isinstance(param, click.Option))
    records = (record for option in options if (record := option.get_help_record(ctx)))
    return [f"- `{name}`: {' '.join(text.split())}" for name, text in records]


def documented(ctx: click.Context) -> Iterator[click.Context]:
    """Every command that is no group, with the words that lead to it."""
    assert isinstance(ctx.command, click.Group)
    for name, command in ctx.command.commands.items():
        verb = click.Context(command, parent=ctx, info_name=name)
        if isinstance(command, click.Group):
            yield from documented(verb)
        else:
            yield verb


def _section(ctx: click.Context, common: list[str]) -> Iterator[str]:
    prose, _, examples = (ctx.command.help or "").partition("\b\nExamples:\n")
    yield f"## {' '.join([ctx.command_path, *_arguments(ctx)])}"
    yield ""
    yield prose.strip()
    if options := [option for option in _documented_options(ctx) if option not in common]:
        yield ""
        yield from options
    if examples:
        yield ""
        yield "```sh"
        yield from (line.strip() for line in examples.strip().splitlines())
        yield "```"


def _arguments(ctx: click.Context) -> list[str]:
    return [word for word in ctx.command.collect_usage_pieces(ctx) if word != "[OPTIONS]"]


_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "train": TrainConfig,
    "train.dataset": DatasetConfig,
    "slurm": SlurmConfig,
    "local": LocalConfig,
    "container": ContainerConfig,
    "retry": RetryConfig,
    "retry.rules": RetryRule,
    "prune": PruneConfig,
    "search": SearchConfig,
    "search.halving": HalvingConfig,
    "search.confirm": ConfirmConfig,
    "then": StageConfig,
    "retention": RetentionConfig,
    "reconciler": ReconcilerConfig,
    "notify": NotifyConfig,
    "limits": LimitsConfig,
    "forward": ForwardConfig,
    "forward.wandb": WandbConfig,
    "forward.tensorboard": TensorBoardConfig,
    "forward.mlflow": MlflowConfig,
}
_TOP_ORDER: Final = tuple(name for name in Spec.model_fields if name not in RunConfig.model_fields)


def reference() -> str:
    """All fields of a spec, section by section."""
    parts = [*_table("Top level", Spec, [*_TOP_ORDER, *RunConfig.model_fields])]
    for name, model in _SECTIONS.items():
        parts += _table(f"`{name}`", model, list(model.model_fields))
    return "\n".join(parts)


def _table(title: str, model: type[BaseModel], names: list[str]) -> Iterator[str]:
    yield f"### {title}\n"
    if model is not Spec and model.__doc__:
        yield f"{model.__doc__.strip()}\n"
    yield "| field | default | meaning |\n|---|---|---|"
    for name in names:
        field = model.model_fields[name]
        yield f"| `{field.alias or name}` | {_default(field)} | {_meaning(field)} |"
    yield ""


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ({}, ()) or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        return f"`{', '.join(value)}`"
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text}`"


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def failure_table() -> str:
    """The failure classes: signs and next action stay as the page has them, the rest follows from the policies."""
    page = (_ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    texts = dict(re.findall(r"^\| `(\w+)` \| (.*? \| .*?) \|", page, re.MULTILINE))
    if lacking := sorted(set(FailureClass) - texts.keys()):
        raise SystemExit(f"docs/failures.md lacks a row, with signs and next action, for {', '.join(lacking)}")
    head = ["| class | signs | next | counts against | [node](#bad-nodes) |", "|---|---|---|---|---|"]
    rows = (f"| `{kind}` | {texts[kind]} | {_budgets(kind.policy)} | {_strike(kind.policy)} |" for kind in FailureClass)
    return "\n".join([*head, *rows]) + "\n"


def _budgets(policy: Policy) -> str:
    """`infra` (8), then `crash` (3)."""
    counted = [f"`{budget}` ({getattr(RetryConfig(), budget)})" if budget else "nothing" for budget in policy.budgets]
    if policy.progress_is_free:
        return f"nothing after a new step, else {counted[0]}"
    return ", then ".join(counted).replace("nothing, then", "nothing once, then") if policy.budgets != (None,) else "–"


def _strike(policy: Policy) -> str:
    """What the end says against the node."""
    if policy.strike is None:
        return ""
    hours = f" for {policy.strike.hours:g} h" if policy.strike.hours != inf else ""
    return f"excluded{hours}" if policy.strike.weight >= 1 else "excluded the second time"


def package_table() -> str:
    """A row for each package: the first paragraph of its docstring."""
    rows = (f"| `{package}/` | {_first_paragraph(_ROOT / package / '__init__.py')} |" for package in _PACKAGES)
    return "\n".join(["| package | purpose |", "|---|---|", *rows])


def _first_paragraph(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def pages() -> Iterator[tuple[Path, str]]:
    """Each page with what it shall say."""
    docs = _ROOT / "docs"
    yield docs / "cli.md", command_line()
    for name, document in documents().items():
        yield docs / "schemas" / f"{name}.json", json.dumps(document.schema(), indent=1) + "\n"
    parts = {"architecture.md": package_table(), "spec.md": reference(), "failures.md": failure_table()}
    for name, part in parts.items():
        page = docs / name
        yield page, _with_part(page.read_text(encoding="utf-8"), part)


def _with_part(text: str, part: str) -> str:
    """The page with its part between the two marks replaced."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise SystemExit(f"a page lacks its marks {BEGIN.strip()} and {END.strip()}")
    return f"{head}{begin}\n{part.strip()}\n\n{end}{tail}"


def main(words: list[str]) -> int:
    """Writes, or with `--check` compares."""
    stale = [(page, text) for page, text in pages() if not page.exists() or page.read_text(encoding="utf-8") != text]
    if "--check" not in words:
        for page, text in stale:
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")
        return 0
    for page, _ in stale:
        print(f"{page} is not what the code says: run `python scripts/write_docs.py`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
