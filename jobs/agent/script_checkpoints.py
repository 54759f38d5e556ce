"""The newest whole checkpoint of a script of the user's own, in the forms that libraries write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final
from zipfile import is_zipfile

from dscampaign.files.ownership import distrust, distrust_tree
from dscampaign.jobs.shared.checkpoint import position

_STATES: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp")
_UNFINISHED: Final = re.compile(r"[._]|tmp|.*[._-](tmp|temp|partial|incomplete)$", re.IGNORECASE)
_OF_TRAINER: Final = re.compile(r"checkpoint-(\d+)")
_LAST_OF_TRAINER: Final = "trainer_state.json"
_LAST_OF_DISTRIBUTED: Final = ".metadata"
_LAST_OF_ACCELERATE: Final = "random_states_0.pkl"
_OF_LIBRARY: Final = re.compile(r"(?:adapter_)?(?:model|config)\b.*|pytorch_model\b.*|training_args\.bin")
"""Files that the Hugging Face Trainer or Accelerate write before their last."""
_DEEPSPEED: Final = "latest"  # DeepSpeed writes it last, and loads from the folder that holds it


def newest(folder: Path, on_skip: Callable[[Path, str], None]) -> str:
    """Return the newest whole checkpoint; "" for none. `on_skip` gets path and reason of each skipped checkpoint.

    DeepSpeed takes the folder itself. Else it is the `checkpoint-N` of the most steps, or the newest with a state.
    """
    for path in _candidates(folder):
        try:
            doubt = (distrust_tree if path.is_dir() else distrust)(path, path.parent)
            reason = str(doubt) if doubt else "" if path == folder else _torn(path)
        except OSError as error:
            reason = str(error)
        if not reason:
            return str(path)
        on_skip(path, reason)
    return ""


def _candidates(folder: Path) -> list[Path]:
    latest = folder / _DEEPSPEED
    if latest.is_file() and (folder / latest.read_text(errors="replace").strip()).is_dir():
        return [folder]
    folders = [
        path for path in folder.glob("*") if not _UNFINISHED.match(path.name) and position(path.name) == (-1, -1)
    ]
    if numbered := {int(match[1]): path for path in folders if (match := _OF_TRAINER.fullmatch(path.name))}:
        return [numbered[step] for step in sorted(numbered, reverse=True)]
    return sorted(filter(_states, folders), key=lambda path: path.lstat().st_mtime, reverse=True)


def _states(path: Path) -> list[Path]:
    return [place for place in (path, *path.rglob("*")) if place.suffix in _STATES and place.is_file()]


def _torn(path: Path) -> str:
    if _OF_TRAINER.fullmatch(path.name) and not (path / _LAST_OF_TRAINER).exists():
        of_trainer = any(path.parent.glob(f"checkpoint-*/{_LAST_OF_TRAINER}"))
        of_library = any(_OF_LIBRARY.fullmatch(file.name) for file in path.glob("*"))
        if of_trainer or (of_library and not (path / _LAST_OF_ACCELERATE).exists()):
            return f"no {_LAST_OF_TRAINER}"
    if (path.suffix == ".distcp" or any(path.glob("*.distcp"))) and not (path / _LAST_OF_DISTRIBUTED).exists():
        return f"no {_LAST_OF_DISTRIBUTED}"
    for state in _states(path):
        with state.open("rb") as stream:
            head = stream.read(2)
        if not head or (head == b"PK" and not is_zipfile(state)):  # `torch.save` writes an archive's directory last
            return f"{state.name} is cut off"
    return ""
