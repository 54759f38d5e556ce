"""Shared by all commands: options, forms of output, completion."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import get_completion_class

from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.errors import EXIT_OK, UserError, did_you_mean

from .output import echo

if TYPE_CHECKING:
    from dscampaign.db.states import RunState

ALIASES: Final = {
    "apply": "submit",
    "delete": "rm",
    "describe": "explain",
    "diff": "compare",
    "kill": "cancel",
    "ls": "list",
    "ps": "status",
    "resume": "retry",
    "run": "submit",
    "stop": "cancel",
    "watch": "status --watch",
}
"""Other names of commands, as users of other tools type them."""

TEXT: Final = "text"
JSON: Final = "json"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Verb(click.Command):
    """A command whose help keeps the line breaks of its examples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # `\b` before a paragraph that has indented lines: click does not rewrap it
        self.help = re.sub(r"\n\n(?=[^\n]*\n  )", "\n\n\b\n", inspect.cleandoc(self.help or ""))


def verb(function: Callable[..., int]) -> Verb:
    """Make a command of a function that returns the exit code."""
    return click.command(cls=Verb)(function)


class Verbs(Verb, click.Group):
    """A group that lists its commands in the order of their use, and suggests a name for a misspelt command."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands as they were added."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, also by another name; raise UserError if there is none."""
        if args and args[0] not in self.commands and args[0] in ALIASES:
            args = [*ALIASES[args[0]].split(), *args[1:]]
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            hint = did_you_mean(args[0], self.commands, f"`{ctx.command_path} --help` lists them")
            raise UserError(f"no command named {args[0]}", hint)
        return super().resolve_command(ctx, args)


def store_options(command: Decorated) -> Decorated:
    """`--dir` and `--store`; the command gets both as `place`."""

    @wraps(command)
    def with_place(*args: Any, dir: str | None, store: str | None, **options: Any) -> Any:
        return command(*args, place=PlaceOptions(dir, store), **options)

    folder = click.option("--dir", metavar="DIR", help="Shared folder of the campaign.  [default: ./campaign]")
    store = click.option("--store", metavar="URL", help="Database URL.  [default: SQLite file in the shared folder]")
    return folder(store(with_place))  # type: ignore[return-value] # click adds options to any function


def yes_option(command: Decorated) -> Decorated:
    """Add `--yes`, see `agreed`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def agreed(reason: str | None, question: str, yes: bool) -> bool:
    """Ask for confirmation if there is a reason; raise UserError without a terminal to confirm on."""
    if yes or reason is None:
        return True
    if not sys.stdin.isatty():
        raise UserError(f"nothing was done: {reason}, and there is no terminal to confirm on", "add --yes")
    return click.confirm(f"{reason}. {question}", err=True)


def format_option(*forms: str, default: str | None) -> Callable[[Decorated], Decorated]:
    """`-o FORMAT`, and `--json` for `-o json`; the command gets the format as `form`."""

    def decorate(command: Decorated) -> Decorated:
        @wraps(command)
        def with_form(*args: Any, form: str | None, json: bool = False, **options: Any) -> Any:
            return command(*args, form=JSON if json else form, **options)

        shown: dict[str, Any] = {"default": default, "show_default": True} if default else {}
        chosen = click.option("-o", "--format", "form", type=click.Choice(forms), help="Format.", **shown)
        return chosen(click.option("--json", is_flag=True, help="Short for `-o json`.")(with_form))  # type: ignore[return-value] # click adds options to any function

    return decorate


def json_option(command: Decorated) -> Decorated:
    """`-o text|json`, and `--json`; the command gets `as_json`."""

    @wraps(command)
    def with_json(*args: Any, form: str, **options: Any) -> Any:
        return command(*args, as_json=form == JSON, **options)

    return format_option(TEXT, JSON, default=TEXT)(with_json)  # type: ignore[return-value] # as above


def selection_options(command: Decorated) -> Decorated:
    """`--state` and `--failed`; the command gets the selection as `chosen`."""

    @wraps(command)
    def with_chosen(*args: Any, states: str | None, failed: bool, **options: Any) -> Any:
        from dscampaign.orchestrator.campaign.selection import Selection
        from dscampaign.orchestrator.campaign.status import TROUBLED

        return command(*args, chosen=Selection({*_states(states), *(TROUBLED if failed else ())}), **options)

    only_failed = click.option("--failed", is_flag=True, help="Only runs that failed or are held.")
    state = click.option("--state", "states", metavar="STATE,...", help="Only runs in these states.")
    return state(only_failed(with_chosen))  # type: ignore[return-value] # click adds options to any function


def _states(words: str | None) -> list[RunState]:
    from dscampaign.db.states import RunState

    states = {str(state): state for state in RunState}
    names = [name.strip() for name in words.split(",")] if words else []
    for name in names:
        if name not in states:
            raise UserError(f"no state named {name}", did_you_mean(name, states, f"one of: {', '.join(states)}"))
    return [states[name] for name in names]


SHELLS: Final = ("bash", "zsh", "fish")
_VARIABLE: Final = "_CAMPAIGN_COMPLETE"
"""Click's: a shell sets it to ask for completions."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9._/+][A-Za-z0-9._/+-]*")
"""A single argument to a shell, and no option."""


@verb
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script for your shell.

    It completes commands, options, campaigns and runs.

    Examples:
      bash   echo 'eval "$(campaign completion bash)"' >> ~/.bashrc
      zsh    echo 'eval "$(campaign completion zsh)"' >> ~/.zshrc
      fish   campaign completion fish > ~/.config/fish/completions/campaign.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(ctx.find_root().command, {}, "campaign", _VARIABLE).source())
    return EXIT_OK


def completing() -> bool:
    """Return whether a shell asks for completions."""
    return _VARIABLE in os.environ


def names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The campaigns, then the runs of the named campaign; nothing, without a message, if the store cannot be read."""
    given = ctx.params
    words = [word for word in (given.get("name"), *(given.get("words") or ())) if word]
    try:
        from dscampaign.orchestrator.campaign.selection import names_to_complete

        known = names_to_complete(PlaceOptions(given.get("dir"), given.get("store")), words)
    except Exception:  # noqa: BLE001 - a message would land in the line that the user types
        return []
    return [name for name in known if name.startswith(incomplete) and _PLAIN.fullmatch(name) and name not in words]


campaign_argument: Final = click.argument("name", metavar="[NAME]", required=False, shell_complete=names)
"""The campaign of a command; it may be left out if the store has only one."""

runs_argument: Final = click.argument("words", metavar="[NAME] [RUN...]", nargs=-1, shell_complete=names)
"""The campaign, and runs of it: names or patterns."""
