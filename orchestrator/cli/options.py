"""What commands have in common on the command line: how one is made, and the options that several take."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dscampaign.db.errors import StoreError
from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.errors import UserError, did_you_mean

from .printed_commands import located

if TYPE_CHECKING:
    from dscampaign.db.states import RunState

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Verb(click.Command):
    """A command whose help keeps the line breaks of its examples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # `\b` before a paragraph that has indented lines: click does not rewrap it
        self.help = re.sub(r"\n\n(?=[^\n]*\n  )", "\n\n\b\n", inspect.cleandoc(self.help or ""))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs it; commands in the hint of an error find the campaign that this one was about."""
        try:
            return super().invoke(ctx)
        except (UserError, StoreError) as error:
            error.hint = located(error.hint or "")
            raise


def verb(function: Callable[..., int]) -> Verb:
    """Makes a command of a function that returns the exit code."""
    return click.command(cls=Verb)(function)


class Verbs(Verb, click.Group):
    """A group that lists its commands in the order in which they are used, and suggests a name for a misspelt one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands as they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command; raises UserError if there is none."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            hint = did_you_mean(args[0], self.commands, f"`{ctx.command_path} --help` lists them")
            raise UserError(f"no command named {args[0]}", hint)
        return super().resolve_command(ctx, args)


def default_options(command: Decorated) -> Decorated:
    """Accepts `--dir` and `--store` before the command as well."""

    def pass_on(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value and isinstance(ctx.command, click.Group):
            ctx.default_map = _given_to_all(ctx.command, {**(ctx.default_map or {}), str(param.name): value})

    folder = click.option("--dir", "dir", expose_value=False, callback=pass_on, hidden=True)
    store = click.option("--store", expose_value=False, callback=pass_on, hidden=True)
    return folder(store(command))


def _given_to_all(group: click.Group, values: dict[str, Any]) -> dict[str, Any]:
    nested = {
        name: _given_to_all(command, values) if isinstance(command, click.Group) else values
        for name, command in group.commands.items()
    }
    return {**values, **nested}


def store_options(command: Decorated) -> Decorated:
    """`--dir` and `--store`, where the campaign is; the command is given both as `place`."""

    @wraps(command)
    def with_place(*args: Any, dir: str | None, store: str | None, **options: Any) -> Any:
        return command(*args, place=PlaceOptions(dir, store), **options)

    folder = click.option("--dir", metavar="DIR", help="Shared folder of the campaign.  [default: ./campaign]")
    store = click.option("--store", metavar="URL", help="Database URL.  [default: SQLite file in the shared folder]")
    return folder(store(with_place))  # type: ignore[return-value] # click adds options to any function


def yes_option(command: Decorated) -> Decorated:
    """Adds `--yes`, see `agreed`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def agreed(what: str, question: str, yes: bool) -> bool:
    """Asks whether to do what deletes; raises UserError if there is no terminal to confirm on."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError(f"nothing was deleted: this {what}, and there is no terminal to confirm on", "add --yes")
    return click.confirm(f"this {what}. {question}", err=True)


def json_option(command: Decorated) -> Decorated:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def selection_options(command: Decorated) -> Decorated:
    """`--state`, `--failed` and `--run`; the command is given what they choose, as `chosen`."""

    @wraps(command)
    def with_chosen(*args: Any, states: str | None, failed: bool, patterns: Sequence[str], **options: Any) -> Any:
        from dscampaign.orchestrator.campaign.selection import Selection
        from dscampaign.orchestrator.campaign.status import TROUBLED

        wanted = {*_states(states), *(TROUBLED if failed else ())}
        return command(*args, chosen=Selection(wanted, patterns), **options)

    run = click.option(
        "--run", "patterns", metavar="GLOB", multiple=True, help="Only runs with such a name; repeatable."
    )
    failed = click.option("--failed", is_flag=True, help="Only runs that failed or are held.")
    states = click.option("--state", "states", metavar="STATE,...", help="Only runs in these states.")
    return states(failed(run(with_chosen)))  # type: ignore[return-value] # click adds options to any function


def _states(words: str | None) -> list[RunState]:
    """States as `--state` names them; raises UserError for a word that is none."""
    from dscampaign.db.states import RunState

    known = [str(state) for state in RunState]
    for word in words.split(",") if words else []:
        if word.strip() not in known:
            raise UserError(f"no state named {word}", did_you_mean(word, known, f"one of: {', '.join(known)}"))
    return [RunState(word.strip()) for word in words.split(",")] if words else []
