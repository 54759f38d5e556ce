"""`campaign serve --export`: the page as files that need no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.user_files import refuse_links_of_others, whole_file

from .documents import (
    Texts,
    campaigns_document,
    changes_document,
    draw_document,
    head_document,
    log_document,
    run_document,
    verdict_document,
)  # fmt: skip
from .model import LiveStore
from .page import page_of

_MARK: Final = ".campaign-serve"
"""A file in each folder that this made."""

_LOG_BYTES: Final = 1 << 14
_DETAILED: Final = 1000
"""So many runs have a page of their own."""


def export(live: LiveStore, texts: Texts, only: str | None, folder: Path) -> list[Path]:
    """Write a page for each campaign, or for one, and the list of all as `index.html`; return the files.

    Raises UserError if the folder has other files, or cannot be written.
    """
    refuse_links_of_others(folder)
    if folder.exists() and not (folder / _MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        trouble = "is not empty" if folder.is_dir() else "is no folder"
        raise UserError(f"{folder} {trouble}", "name a new folder, or one that this command made")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
        return [_write(folder / name, title, data) for name, title, data in _pages(live, texts, only)]
    except OSError as error:
        raise UserError(f"cannot write {error.filename or folder}: {error.strerror}", "name another folder") from error


def _pages(live: LiveStore, texts: Texts, only: str | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    listed = [one for one in live.campaigns() if only in (None, one.name)]
    names = {one.name: f"{quote(one.name, safe='')}.html" for one in listed}
    if len(names) == 1:
        names = dict.fromkeys(names, "index.html")
    campaigns = [{**one, "href": names[one["name"]]} for one in campaigns_document(listed)]
    shared = {"live": False, "home": "index.html", "campaigns": campaigns}
    if len(names) != 1:
        yield "index.html", "campaigns", {**shared, "campaign": None}
    for name, file in names.items():
        yield file, clean(name), {**shared, "campaign": name, **_campaign(live, name, texts)}


def _campaign(live: LiveStore, name: str, texts: Texts) -> dict[str, Any]:
    changes = live.runs(name)
    ids = [run.run_id for run in changes.runs]
    details = {
        one: {**run_document(live, name, one, texts), "log": log_document(live, name, one, most=_LOG_BYTES)}
        for one in ids[:_DETAILED]
    }
    return {
        **changes_document(changes, live.events(name)),
        "head": head_document(changes.status, texts),
        "drawn": draw_document(live, name, ids, ids),
        "verdict": verdict_document(live, name),
        "details": details,
    }


def _write(path: Path, title: str, data: dict[str, Any]) -> Path:
    with whole_file(path) as stream:
        stream.write(page_of(title, data).html)
    return path
