"""docs/cli.md, made from the help of every command: `python -m dscampaign.orchestrator.cli.docs > docs/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from ..errors import EXIT_BUG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNREACHABLE, EXIT_UNSETTLED, EXIT_USAGE
from .main import campaign

_EXIT_CODES = {
    EXIT_OK: "Done.",
    EXIT_FAILED: "A run or an operation failed.",
    EXIT_USAGE: "Wrong usage or a wrong spec: something has to be changed first.",
    EXIT_UNREACHABLE: "Slurm or the store did not answer. Nothing is lost; trying again is safe.",
    EXIT_UNSETTLED: "`reconcile` did its pass, and something is left to do.",
    EXIT_BUG: "A bug of this program, with its traceback.",
    EXIT_INTERRUPTED: "Interrupted. Jobs go on.",
}

_INTRODUCTION = """\
# The command line

<!-- Made by `python -m dscampaign.orchestrator.cli.docs > docs/cli.md`; a test keeps it up to date. -->

Data goes to standard output, everything else to standard error. `--json` prints one document with a `schema_version`;
fields are only ever added, and numbers that are none stand there as the texts `"NaN"`, `"Infinity"` and `"-Infinity"`.
`NAME` is a campaign or its spec file, and may be left out where the store has only one campaign.
`--debug` anywhere shows tracebacks. `NO_COLOR`, `FORCE_COLOR` and `TERM=dumb` are respected.

Shell completion: `eval "$(_CAMPAIGN_COMPLETE=bash_source campaign)"` in `~/.bashrc` (or `zsh_source`, `fish_source`).

## Settings

Each is taken from the first place that gives it: the command line, an environment variable, the spec, the nearest
`campaign.toml` in this folder or above, `$XDG_CONFIG_HOME/dscampaign/campaign.toml`, the default.
`campaign describe --config` shows which it was.

| setting | option | variable | default |
|---|---|---|---|
| `dir` | `--dir` | `CAMPAIGN_DIR` | `./campaign` |
| `store` | `--store` | `CAMPAIGN_STORE` | `sqlite:///{dir}/campaign.db` |
| `ask_above_runs` | | `CAMPAIGN_ASK_ABOVE_RUNS` | `20` |
| `ask_above_gpu_hours` | | `CAMPAIGN_ASK_ABOVE_GPU_HOURS` | `100` |

`submit` asks before it submits more than that, or ends a run. Where there is no terminal to ask at, it needs `--yes`.
"""


def markdown() -> str:
    """The whole page."""
    codes = [f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES.items()]
    lines = [_INTRODUCTION, "## Exit codes", "", "| code | meaning |", "|---|---|", *codes]
    with click.Context(campaign, info_name="campaign") as ctx:
        for verb in documented(ctx):
            lines += ["", *_section(verb)]
    return "\n".join(lines) + "\n"


def documented(ctx: click.Context) -> Iterator[click.Context]:
    """Every command that is no group, with the words that lead to it."""
    assert isinstance(ctx.command, click.Group)
    for name, command in ctx.command.commands.items():
        verb = click.Context(command, parent=ctx, info_name=name)
        if isinstance(command, click.Group):
            yield from documented(verb)
        else:
            yield verb


def _section(ctx: click.Context) -> Iterator[str]:
    prose, _, examples = (ctx.command.help or "").partition("\b\nExamples:\n")
    yield f"## {ctx.command_path}"
    yield ""
    yield prose.strip()
    yield ""
    yield f"    {ctx.command_path} {' '.join(ctx.command.collect_usage_pieces(ctx))}"
    given = (param for param in ctx.command.params if isinstance(param, click.Option))
    if options := [record for param in given if (record := param.get_help_record(ctx))]:
        yield ""
        yield from (f"- `{name}`: {' '.join(text.split())}" for name, text in options)
    if examples:
        yield ""
        yield "```sh"
        yield from (line.strip() for line in examples.strip().splitlines())
        yield "```"


if __name__ == "__main__":
    sys.stdout.write(markdown())
