"""`campaign serve --export`: the page as files that need no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.user_files import refuse_links_of_others, whole_file

from . import documents
from .model import LiveStore

_MARK: Final = ".campaign-serve"  # a file in each folder that this made, with the names of the pages

_LOG_BYTES: Final = 1 << 14
_DETAILED: Final = 1000  # so many runs have a page of their own


def export(live: LiveStore, only: str | None, folder: Path) -> list[Path]:
    """Write a page for each campaign, or for the named one, and the list of all as `index.html`; return the files.

    Raises UserError if the folder has files, but none of an earlier export, or cannot be written.
    """
    mark = folder / _MARK
    refuse_links_of_others(folder)
    if folder.exists() and (mark.is_symlink() or not mark.is_file()) and (not folder.is_dir() or any(folder.iterdir())):
        trouble = "is not empty" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder} {trouble}", "name a new folder, or one that this command made")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links_of_others(mark)
        own, written = set(mark.read_text().splitlines() if mark.exists() else ()), []
        for name, title, data in _pages(live, only):
            if name not in own and (folder / name).exists():
                raise UserError(f"{folder / name} is not a page of an earlier export", "name another folder")
            if name not in own:
                with mark.open("a") as names:
                    names.write(f"{name}\n")
            with whole_file(folder / name) as stream:
                stream.write(documents.page_of(title, data)[0])
            written.append(folder / name)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or folder}: {error.strerror}", "name another folder") from error
    return written


def _pages(live: LiveStore, only: str | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    listed = [one for one in live.campaigns() if only in (None, one.name)]
    # index.html is the list of all; no campaign has a ~ in its name
    names = {one.name: f"{quote(one.name, safe='')}{'~' * (one.name == 'index')}.html" for one in listed}
    if len(names) == 1:
        names = dict.fromkeys(names, "index.html")
    campaigns = [{**one, "href": names[one["name"]]} for one in documents.campaigns_document(listed)]
    shared = {"live": False, "home": "index.html", "campaigns": campaigns}
    if len(names) != 1:
        yield "index.html", "campaigns", {**shared, "campaign": None}
    for name, file in names.items():
        yield file, clean(name), {**shared, "campaign": name, **_campaign(live, name)}


def _campaign(live: LiveStore, name: str) -> dict[str, Any]:
    changes = live.runs(name)
    ids = [row.run.run_id for row in changes.runs]
    details = {
        one: documents.run_document(live, name, one) | {"log": documents.log_document(live, name, one, most=_LOG_BYTES)}
        for one in ids[:_DETAILED]
    }
    return {
        **documents.changes_document(changes, live.events(name)),
        "head": documents.head_document(changes.status),
        "drawn": documents.draw_document(live, name, ids, ids),
        "verdict": documents.verdict_document(live, name),
        "details": details,
    }
