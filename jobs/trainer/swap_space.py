"""The folder on a node's disk for ZeRO-Infinity's states, and the room to read them back.

DeepSpeed names its files after the rank alone, and leaves them there.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from dscampaign.files import ours
from dscampaign.files.ownership import private_folder

from .config import Job


def apart(ds_config: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Return the DeepSpeed configuration with a folder of this attempt in place of each folder on the disk.

    Folders that killed attempts have left on this node are removed. Raises ValueError: it would not be this user's
    alone.
    """
    config = deepcopy(dict(ds_config))
    for section in _sections(config):
        folder = Path(section["nvme_path"])
        _remove(folder, job, all_but_own=True)
        mine = folder / f"{_run(job)}{job.generation:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        if doubt := private_folder(mine):  # its name can be guessed, and what it holds becomes the model's weights
            raise ValueError(f"train.nvme_path: {doubt}")
        section["nvme_path"] = str(mine)
    return config


def with_room(ds_config: Mapping[str, Any], largest: int, ranks: int) -> dict[str, Any]:
    """Return the configuration with buffers into which a rank's part of each parameter fits, unless it names a size.

    DeepSpeed's own hold 100 million numbers, five times: 2 GB that the system cannot page out, however small the model;
    and too little for the embeddings of Llama 3 on fewer than six ranks.
    """
    config = deepcopy(dict(ds_config))
    weights = config.get("zero_optimization", {}).get("offload_param") or {}
    if weights.get("device") == "nvme":
        weights.setdefault("buffer_size", math.ceil(largest / ranks))
    return config


def in_use(ds_config: Mapping[str, Any]) -> bool:
    """Return whether anything lies on a disk."""
    return bool(_sections(ds_config))


def clear(job: Job) -> None:
    """Remove this attempt's files on this node, when none of its ranks needs them any more."""
    for section in _sections(json.loads(job.ds_config.read_text())):
        _remove(Path(section["nvme_path"]), job, all_but_own=False)


def _sections(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    zero = config.get("zero_optimization", {})
    sections = (zero.get(name) or {} for name in ("offload_optimizer", "offload_param"))
    return [section for section in sections if section.get("device") == "nvme"]


def _run(job: Job) -> str:
    return f"dscampaign-{hashlib.sha256(str(job.checkpoint_dir).encode()).hexdigest()[:12]}-g"


def _remove(folder: Path, job: Job, *, all_but_own: bool) -> None:
    """Remove the run's folders: of all attempts but this, or of this; by the first rank of a node."""
    left = ours.named(folder, re.compile(rf"{_run(job)}\d+")) if job.local_rank == 0 else []
    for each in left:
        if (int(each.name.rpartition("g")[2]) != job.generation) == all_but_own:
            ours.remove(each)
