"""The hook of mkdocs.yml: a site of README and all files that its links lead to, at their places in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT: Final = Path(__file__).resolve().parents[1]
_LINK: Final = re.compile(r'(?:\]\(|src=")(?!https?:)([^)#"\s]+)')
_TO_FOLDER: Final = re.compile(r"\[([^]\n]+)\]\(([^)#:\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Replace the files of docs/ by README and those that it leads to."""
    for file in list(files):
        if Path(file.abs_src_path or "/").is_relative_to(config.docs_dir):
            files.remove(file)
    found = [_ROOT / "README.md", *_ROOT.glob("docs/*.css"), *_ROOT.glob("docs/*.js")]
    for path in found:
        files.append(File.generated(config, path.relative_to(_ROOT).as_posix(), abs_src_path=str(path)))
        if path.suffix == ".md":
            linked = ((path.parent / link).resolve() for link in _LINK.findall(path.read_text(encoding="utf-8")))
            found += dict.fromkeys(file for file in linked if file.is_file() and file not in found)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Keep the text alone of a link to a folder, which a site does not list."""
    folder = Path(str(page.file.abs_src_path)).parent
    return _TO_FOLDER.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], markdown)
