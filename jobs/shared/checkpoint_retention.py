"""Keep the newest and the best checkpoints, remove half-written ones, and check the room for another."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path, PurePath

from dscampaign.files import ours
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.file_systems import require_space

from .checkpoint import (
    DRAFT_SUFFIX,
    MANIFEST,
    UNUSABLE,
    CheckpointError,
    Manifest,
    newest_first,
    position,
    read_manifest,
    write_manifest,
)

TEMPORARY = re.compile(rf"g\d{{4,}}-step\d{{8,}}{re.escape(DRAFT_SUFFIX)}")
"""Names of drafts, which are useless once their attempt has ended."""

DEEPSPEED_SCRIPTS = frozenset({"zero_to_fp32.py", "zero_to_torch.py"})
"""Scripts that DeepSpeed copies into every checkpoint, which a manifest does not name."""

MARGIN = 1.02  # a checkpoint is a little larger than its numbers, and the next checkpoint than the last


def prune(folder: Path, keep: int, step: int, *, keep_best: bool = False) -> list[Path]:
    """Remove all but the newest ``keep`` checkpoints up to ``step``, and keep at least the last; return the removed.

    Checkpoints further ahead were useless to this attempt, or it would have begun there. Unusable checkpoints do not
    count. `keep_best`: also keep the checkpoint with the lowest loss on held-out text.
    """
    old = [path for path in surplus(folder, keep, step, keep_best=keep_best) if is_ours(path)]
    for path in old:
        remove_checkpoint(path)
    return old


def surplus(folder: Path, keep: int, step: int, *, keep_best: bool = False) -> list[Path]:
    """Return the checkpoints that `prune` removes, if they are ours."""
    reached = [path for path in newest_first(folder) if position(path.name)[0] <= step]
    usable = [path for path in reached if not (path / UNUSABLE).exists()]
    kept = set(usable[: max(keep, 1)])
    if keep_best:
        manifests = ((index, _manifest(path)) for index, path in enumerate(usable))
        rated = [(whole.eval_loss, index) for index, whole in manifests if whole and whole.eval_loss is not None]
        kept |= {usable[index] for _, index in sorted(rated)[:1]}
    return [path for path in reached if path not in kept] if usable else []


def is_ours(path: Path) -> bool:
    """Return whether a checkpoint holds only files of its manifest, and none that somebody has added."""
    manifest = None if path.is_symlink() else _manifest(path)
    if manifest is None:
        return False
    paths = {*manifest.files, MANIFEST, UNUSABLE, *DEEPSPEED_SCRIPTS}
    paths |= {folder.as_posix() for name in manifest.files for folder in PurePath(name).parents}
    places = ours.walk(path, lambda _: ours.Part.TREE)
    return all(place.part and place.path.relative_to(path).as_posix() in paths for place in places)


def rate(folder: Path, step: int, eval_loss: float) -> Path | None:
    """Write the loss into the checkpoint of ``step``; return it, or None if there is none to rate."""
    rated = next((path for path in newest_first(folder) if position(path.name)[0] == step), None)
    manifest = _manifest(rated) if rated else None
    if rated is None or manifest is None or not math.isfinite(eval_loss):
        return None
    write_manifest(rated, replace(manifest, eval_loss=eval_loss))
    return rated


def mark_unusable(path: Path, reason: str) -> None:
    """Keep later attempts from a checkpoint that is complete but cannot be loaded. Remove the mark to try it again."""
    write_atomically(path / UNUSABLE, reason)


def remove_drafts(folder: Path, before_generation: int) -> None:
    """Remove half-written checkpoints of earlier attempts."""
    for draft in ours.named(folder, TEMPORARY):
        if -1 < position(draft.name)[1] < before_generation:
            ours.remove(draft)


def require_room(folder: Path, generation: int) -> None:
    """Make sure that another checkpoint like the last fits on the disk. A full quota shows only in the writing.

    Drafts up to this generation may be removed. Raises OSError, ENOSPC, with the figures.
    """
    manifests = (_manifest(path) for path in newest_first(folder))
    size_bytes = MARGIN * next((manifest.size_bytes for manifest in manifests if manifest), 0)
    if shutil.disk_usage(folder).free < size_bytes:
        remove_drafts(folder, generation + 1)
    require_space(folder, size_bytes, "for a checkpoint")


def _manifest(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except CheckpointError:
        return None


def remove_checkpoint(path: Path) -> list[ours.Kept]:
    """Remove a checkpoint, first renamed to a draft, so that a half removed never looks whole; report the rest."""
    draft = path.with_name(path.name.removesuffix(DRAFT_SUFFIX) + DRAFT_SUFFIX)
    try:
        path.rename(draft)
    except OSError as error:  # this one stays, and the others go
        return [ours.Kept(path, error.strerror or str(error), error)]
    return ours.remove(draft)
