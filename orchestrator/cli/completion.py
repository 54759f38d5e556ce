"""Shell completion, by click: a script for each shell, and the names of campaigns and runs."""

from __future__ import annotations

import os
import re
from typing import Final

import click
from click.shell_completion import get_completion_class

from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.errors import EXIT_OK

from .options import verb
from .output import echo

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
        from dscampaign.orchestrator.campaign.lookup import names_to_complete

        known = names_to_complete(PlaceOptions(given.get("dir"), given.get("store")), words)
    except Exception:  # noqa: BLE001 - a message would land in the line that the user types
        return []
    return [name for name in known if name.startswith(incomplete) and _PLAIN.fullmatch(name) and name not in words]


campaign_argument: Final = click.argument("name", metavar="[NAME]", required=False, shell_complete=names)
"""The campaign of a command; it may be left out if the store has only one."""

runs_argument: Final = click.argument("words", metavar="[NAME] [RUN...]", nargs=-1, shell_complete=names)
"""The campaign, and runs of it: names or patterns."""
