"""Shared by all commands: text, documents, messages, progress and logs on a terminal; options and completion."""

from __future__ import annotations

import codecs
import inspect
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import get_completion_class

from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.commands import shown_by
from dscampaign.orchestrator.errors import EXIT_FAILED, UserError, did_you_mean
from dscampaign.orchestrator.formatting import printable, shorten
from dscampaign.orchestrator.pages.text import Page, Style, fold

if TYPE_CHECKING:
    from dscampaign.db.records import CampaignRow
    from dscampaign.db.store import Store

CLEAR_LINE: Final = "\r\x1b[2K"
"""Of a terminal: clears the line that the cursor is in."""
_EVERY_S: Final = 0.5
COMPLETE_VARIABLE: Final = "_CAMPAIGN_COMPLETE"
"""Click's: a shell sets it to ask for completions."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/+][A-Za-z0-9._/+-]*")
"""A single argument to a shell, and no option."""


def page_for(stream: IO[str]) -> Page:
    """The abilities of a stream, by NO_COLOR, FORCE_COLOR and TERM=dumb."""
    terminal, forced = stream.isatty(), os.environ.get("FORCE_COLOR", "") not in ("", "0")
    colour = not os.environ.get("NO_COLOR") and (forced or (terminal and os.environ.get("TERM") != "dumb"))
    return Page(colour, terminal_size(stream).columns if terminal else None)


def terminal_size(stream: IO[str]) -> os.terminal_size:
    """Columns and lines of the stream's terminal; COLUMNS and LINES are respected."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, lines = 0, 0
    return shutil.get_terminal_size((columns or 120, lines or 24))


def screen_height(stream: IO[str]) -> int | None:
    """Lines that a page may have to stay in sight above the shell's prompt; None for a file or a pipe."""
    return terminal_size(stream).lines - 1 if stream.isatty() else None


def echo(text: str) -> None:
    """Print data, unbuffered, so that it stays in order with stderr; a terminal gets nothing to obey but colours."""
    sys.stdout.write(f"{printable(text, colours=True) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def echo_page(text: str) -> None:
    """Print text for people: folded between words on a terminal."""
    echo(fold(printable(text, colours=True), page_for(sys.stdout).width))


def echo_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, indented on a terminal."""
    echo(json_text(document, 2 if sys.stdout.isatty() else None))


def json_text(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a document as strict JSON, with the version of its schema."""
    from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION

    value = _finite({"schema_version": SCHEMA_VERSION, **document})
    return json.dumps(value, default=str, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    from dscampaign.orchestrator.campaign.documents import finite

    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return [_finite(item) for item in value] if is_list else finite(value)


def echo_either(as_json: bool, document: Callable[[], Mapping[str, Any]], text: Callable[[Page], str]) -> None:
    """Print one JSON document with `--json`, else text."""
    if as_json:
        echo_json(document())
    else:
        echo_page(text(page_for(sys.stdout)))


def echo_err(text: str) -> None:
    """Print a message: folded between words on a terminal."""
    sys.stderr.write(f"{fold(printable(text, colours=True), page_for(sys.stderr).width)}\n")
    sys.stderr.flush()


def echo_error(message: str, hint: str | None) -> None:
    """Print an error and its hint."""
    page = page_for(sys.stderr)
    echo_err(f"{page.paint('error:', Style.RED)} {message}")
    if hint:
        echo_err(f"{page.paint('hint:', Style.CYAN)} {hint}")


def echo_next(text: str) -> None:
    """Print the next command, in a single piece."""
    echo_err(page_for(sys.stderr).paint(f"next: {text}", Style.CYAN))


def echo_age(store: Store, *campaigns: CampaignRow) -> None:
    """Print how old the results of each campaign are that nobody reconciles at present, and is not settled."""
    from dscampaign.orchestrator.campaign.status import read_status
    from dscampaign.orchestrator.pages.status import age_text

    for text in filter(None, (age_text(read_status(store, campaign)) for campaign in campaigns)):
        echo_err(page_for(sys.stderr).paint(text, Style.DIM))


def progress_shown(*, quiet: bool = False) -> AbstractContextManager[None]:
    """Show on a terminal the progress of long work inside, unless the output is for a program (`quiet`)."""
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return shown_by(_with_progress if on_terminal and not quiet else None)


def _with_progress(items: Iterable[Any], noun: str, size: Callable[[Any], int] | None) -> Iterator[Any]:
    total = (sum(map(size, items)) if size else len(items)) if isinstance(items, Sized) else None
    done, shown, next_s = 0, False, time.monotonic() + _EVERY_S
    try:
        for item in items:
            yield item
            done += size(item) if size else 1
            if (now_s := time.monotonic()) >= next_s and done != total:
                next_s, shown = now_s + _EVERY_S, True
                text = f"{done:,} {noun}" if total is None else f"{done:,} of {total:,} {noun}"
                click.echo(f"{CLEAR_LINE}{shorten(text, terminal_size(sys.stderr).columns - 1)}", err=True, nl=False)
    finally:
        if shown:
            click.echo(CLEAR_LINE, err=True, nl=False)


class TerminalLog:
    """Shows bytes of a log on a terminal, which obeys no escape sequences of the log but colours."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._colours = stream, page_for(stream).colour
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> None:
        """Show the next bytes; the carriage returns of progress bars stay."""
        parts = self._decoder.decode(data).split("\r")
        self._stream.write("\r".join(printable(part, colours=self._colours) for part in parts))

    def flush(self) -> None:
        """End colours that the log left on."""
        self._stream.write("\x1b[0m" if self._colours else "")
        self._stream.flush()


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

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Verb(click.Command):
    """A command whose help keeps the line breaks of its examples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # `\b` before a paragraph that has indented lines: click does not rewrap it
        self.help = re.sub(r"\n\n(?=[^\n]*\n  )", "\n\n\b\n", inspect.cleandoc(self.help or ""))


def verb(function: Callable[..., int | None]) -> Verb:
    """Make a command of a function that returns the exit code; None for 0."""
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

    def placed(ctx: click.Context, _param: click.Parameter, store: str | None) -> None:
        ctx.params["place"] = PlaceOptions(ctx.params.pop("dir"), store)

    about = "Database URL.  [default: SQLite file in the shared folder]"
    stored = click.option("--store", metavar="URL", callback=placed, expose_value=False, help=about)(command)
    about = "Shared folder of the campaign.  [default: ./campaign]"
    return click.option("--dir", metavar="DIR", is_eager=True, help=about)(stored)


yes_option: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def confirm(reason: str | None, question: str, yes: bool, otherwise: str) -> None:
    """Ask for confirmation if there is a reason; end the command with `otherwise` if the user declines.

    Raises UserError without a terminal to confirm on.
    """
    if yes or reason is None:
        return
    if not sys.stdin.isatty():
        raise UserError(f"nothing was done: {reason}, and there is no terminal to confirm on", "add --yes")
    if not click.confirm(f"{reason}. {question}", err=True):
        echo_err(otherwise)
        raise click.exceptions.Exit(EXIT_FAILED)


def json_option(command: Decorated) -> Decorated:
    """`-o text|json`, and `--json`; the command gets `as_json`."""

    def chosen(ctx: click.Context, _param: click.Parameter, form: str) -> None:
        ctx.params["as_json"] |= form == "json"

    short = click.option("--json", "as_json", is_flag=True, is_eager=True, help="Short for `-o json`.")(command)
    forms: dict[str, Any] = {"type": click.Choice(("text", "json")), "default": "text", "show_default": True}
    return click.option("-o", "--format", callback=chosen, expose_value=False, help="Format.", **forms)(short)


def selection_options(command: Decorated) -> Decorated:
    """`--state` and `--failed`; the command gets the selection as `chosen`."""

    def chosen(ctx: click.Context, _param: click.Parameter, failed: bool) -> None:
        from dscampaign.db.states import RunState
        from dscampaign.orchestrator.campaign.selection import Selection
        from dscampaign.orchestrator.campaign.status import TROUBLED

        known = {str(state): state for state in RunState}
        names = [name.strip() for name in (ctx.params.pop("states") or "").split(",") if name]
        for name in names:
            if name not in known:
                raise UserError(f"no state named {name}", did_you_mean(name, known, f"one of: {', '.join(known)}"))
        ctx.params["chosen"] = Selection({*(known[name] for name in names), *(TROUBLED if failed else ())})

    about = "Only runs that failed or are held."
    failed = click.option("--failed", is_flag=True, callback=chosen, expose_value=False, help=about)(command)
    about = "Only runs in these states."
    return click.option("--state", "states", metavar="STATE,...", is_eager=True, help=about)(failed)


@verb
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for your shell.

    Completes commands, options, campaigns and runs.

    Examples:
      bash   echo 'eval "$(campaign completion bash)"' >> ~/.bashrc
      zsh    echo 'eval "$(campaign completion zsh)"' >> ~/.zshrc
      fish   campaign completion fish > ~/.config/fish/completions/campaign.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(ctx.find_root().command, {}, "campaign", COMPLETE_VARIABLE).source())


def names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The campaigns, then the runs of the named campaign; nothing, without a message, if the store cannot be read."""
    params = ctx.params
    words = [word for word in (params.get("name"), *(params.get("words") or ())) if word]
    try:
        from dscampaign.orchestrator.campaign.selection import names_to_complete

        choices = names_to_complete(params["place"], words)
    except Exception:  # noqa: BLE001 - a message would land in the line that the user types
        return []
    return [name for name in choices if name.startswith(incomplete) and _PLAIN.fullmatch(name) and name not in words]


campaign_argument: Final = click.argument("name", metavar="[NAME]", required=False, shell_complete=names)
"""The campaign of a command; it may be left out if the store has only one."""

runs_argument: Final = click.argument("words", metavar="[NAME] [RUN...]", nargs=-1, shell_complete=names)
"""The campaign, and runs of it, see `selection.find_runs`."""
