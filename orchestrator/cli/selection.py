"""The options by which runs are chosen: the same for all commands that take several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import UserError, did_you_mean

if TYPE_CHECKING:
    from ...db.states import RunState

_Command = TypeVar("_Command", bound=Callable[..., Any])


def selection_options(command: _Command) -> _Command:
    """`--state`, `--failed` and `--run`; the command is given what they choose, as `chosen`."""

    @wraps(command)
    def with_chosen(*args: Any, states: str | None, failed: bool, patterns: Sequence[str], **options: Any) -> Any:
        from ..campaign.selection import Selection
        from ..campaign.status import TROUBLED

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
    from ...db.states import RunState

    known = [str(state) for state in RunState]
    for word in words.split(",") if words else []:
        if word.strip() not in known:
            raise UserError(f"no state named {word}", did_you_mean(word, known, f"one of: {', '.join(known)}"))
    return [RunState(word.strip()) for word in words.split(",")] if words else []
