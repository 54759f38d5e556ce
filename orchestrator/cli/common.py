"""What the commands share: common options, reading a spec, printing."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from ...db.errors import StoreError
from ..campaign.location import Location, PlaceOptions
from ..errors import UserError, did_you_mean
from ..formatting import printable
from .pages.text import Page, Style, fold
from .printed_commands import located

if TYPE_CHECKING:
    from ..campaign.desired import Submission
    from ..spec.expand import Run
    from ..spec.model import Spec

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

CLEAR_LINE: Final = "\r\x1b[2K"
"""Of a terminal: clears the line that the cursor is in."""

_INDENTED_ITEMS: Final = 100
"""Of a longer list in a document each item is one line: indented, ten thousand runs were half a million lines."""


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


def read_runs(path: Path, sets: Sequence[str]) -> tuple[Spec, tuple[Run, ...]]:
    """Reads, checks and expands a spec, wherever its campaign is.

    Raises SpecError with all errors of the spec, UserError if it cannot be read.
    """
    from ..executors.local import local_gpus
    from ..spec.load import load_runs

    return load_runs(path, sets, local_gpus=local_gpus())


def read_submission(path: Path, sets: Sequence[str], place: PlaceOptions) -> tuple[Submission, Location]:
    """As `read_runs`, and finds where the campaign is; raises UserError also if a configuration file cannot be read."""
    from ..campaign.desired import Submission

    spec, runs = read_runs(path, sets)
    given = {"dir": spec.dir if "dir" in spec.model_fields_set else None, "store": spec.store}
    where = Location.of(place, given, (spec.name,), path)
    text = "".join([path.read_text(encoding="utf-8"), *(f"# --set {override}\n" for override in sets)])
    return Submission(spec, text, runs, where.settings.dir, path.absolute()), where


def warn_of_other_store(where: Location) -> None:
    """Says that the campaign may have been submitted from the spec's own folder: here it would all be run again."""
    if where.beside_spec:
        echo_err(f"warning: there is no store at {where.file}; {where.beside_spec}")


def page_for(stream: IO[str]) -> Page:
    """What a stream can show, by NO_COLOR, FORCE_COLOR and TERM=dumb."""
    terminal = stream.isatty()
    if os.environ.get("NO_COLOR"):
        colour = False
    elif os.environ.get("FORCE_COLOR", "") not in ("", "0"):
        colour = True
    else:
        colour = terminal and os.environ.get("TERM") != "dumb"
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


def check_folder_of(path: Path) -> None:
    """Checks that a file can be created there; raises UserError if it is a folder, or its own folder is missing."""
    if path.is_dir():
        raise UserError(f"{path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise UserError(f"no such folder: {path.parent}", f"`mkdir -p {shlex.quote(str(path.parent))}` creates it")


def echo(text: str) -> None:
    """Prints data, unbuffered, so that it stays in order with stderr; a terminal gets nothing to obey but colours."""
    sys.stdout.write(f"{printable(text, colours=True) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


def echo_page(text: str) -> None:
    """Prints text for people: folded between words on a terminal, its commands complete."""
    echo(for_terminal(text))


def for_terminal(text: str) -> str:
    """Text for people as standard output shows it."""
    return fold(located(printable(text, colours=True)), page_for(sys.stdout).width)


def echo_screen(text: str) -> None:
    """Prints text, through `$PAGER` where it is longer than the terminal, and somebody can press its keys."""
    text = for_terminal(text)
    lines, size = text.splitlines(), terminal_size(sys.stdout)
    pager = shlex.split(os.environ.get("PAGER", "less"))
    dumb = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    if dumb or len(lines) < size.lines or not pager or not keys_may_come(sys.__stdin__):
        echo(text)
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's
    try:
        subprocess.run(pager, input=f"{text}\n".encode(), env={"LESS": "FRX", **os.environ}, check=False)
    except OSError:  # there is no such program
        echo(text)
    finally:
        signal.signal(signal.SIGINT, previous)


def keys_may_come(stream: IO[str] | None) -> bool:
    """Whether standard input is a terminal that has not ended: in `script` without a keyboard nobody presses a key."""
    try:
        if stream is None or not stream.isatty():
            return False
        waiting = fcntl.ioctl(stream.fileno(), termios.FIONREAD, bytes(4))
        return any(waiting) or not select.select([stream], [], [], 0)[0]  # readable, with nothing to read: it has ended
    except OSError:
        return False


def echo_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document, with the version of its schema."""
    from ..campaign.documents import SCHEMA_VERSION

    for piece in json_pieces({"schema_version": SCHEMA_VERSION, **document}):
        sys.stdout.write(printable(piece, colours=True) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


def json_pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """The text of a document, piece by piece: indented, but of a long list each item in one line."""
    last = len(document) - 1
    yield "{\n"
    for place, (name, value) in enumerate(document.items()):
        end = "\n" if place == last else ",\n"
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > _INDENTED_ITEMS:
            yield f"  {json.dumps(name)}: [\n"
            for number, item in enumerate(value, 1):
                line = json.dumps(item, default=_plain, allow_nan=False)
                yield f"    {line}\n" if number == len(value) else f"    {line},\n"
            yield f"  ]{end}"
        else:
            text = json.dumps({name: value}, indent=2, default=_plain, allow_nan=False)
            yield f"{text[2:-2]}{end}"
    yield "}\n"


def _plain(value: object) -> object:
    """What JSON has no word for, as it has."""
    return list(value) if isinstance(value, Sequence) else str(value)


def echo_either(as_json: bool, document: Callable[[], Mapping[str, Any]], text: Callable[[Page], str]) -> None:
    """Prints one JSON document where `--json` asks for it, else text."""
    if as_json:
        echo_json(document())
    else:
        echo_page(text(page_for(sys.stdout)))


def echo_err(text: str) -> None:
    """Prints a message: folded between words on a terminal, its commands complete."""
    sys.stderr.write(f"{fold(located(printable(text, colours=True)), page_for(sys.stderr).width)}\n")
    sys.stderr.flush()


def echo_error(message: str, hint: str | None) -> None:
    """Prints what is wrong and what to do about it."""
    page = page_for(sys.stderr)
    echo_err(f"{page.paint('error:', Style.RED)} {message}")
    if hint:
        echo_err(f"{page.paint('hint:', Style.CYAN)} {hint}")


def echo_next(text: str) -> None:
    """Prints what to type next."""
    echo_err(f"{page_for(sys.stderr).paint('next:', Style.CYAN)} {located(text)}")
