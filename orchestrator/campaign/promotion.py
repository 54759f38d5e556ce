"""Makes the spec of a longer run from a condition of a campaign."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.jobs.shared.placeholders import filled, filled_words, text_of
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.spec.command_line import words_of
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.field_types import Scalar
from dscampaign.orchestrator.spec.load import runs_of_text, settings_of, with_inputs_of
from dscampaign.orchestrator.spec.matrix import Point, points
from dscampaign.orchestrator.spec.model import RunConfig, TrainConfig
from dscampaign.orchestrator.spec.search_section import SearchConfig
from dscampaign.orchestrator.spec.trials import point_of
from dscampaign.orchestrator.spec.yaml_source import load, written

from .diff import changes

Keys = tuple[str, ...]  # the keys that lead to a value

REMOVED: Final[tuple[Keys, ...]] = (
    *(("matrix",), ("baseline",), ("repeats",), ("search",), ("max_runs",)),
    ("train", "epochs"),
)
"""Fields that a single run of so many steps lacks."""

_OVERRIDE: Final = re.compile(r"^# --set (.*)\n?", re.MULTILINE)
_LONGEST_NAME: Final = 64
_STAY: Final = frozenset({*TrainConfig.model_fields, "run", "repeat", "seed", "local_rank"})
"""Names in braces that a run without a matrix has a value for, too."""


@dataclass(frozen=True)
class Promotion:
    """A spec to write."""

    name: str
    text: str
    run: Run
    fixed: tuple[str, ...]  # the settings of the condition, as `train.zero_stage: 3`
    notes: tuple[str, ...]  # effects of the number of steps, and points to check before it is submitted


def promote(campaign: CampaignRow, condition: str, row: RunRow, steps: int, out: Path) -> Promotion:
    """Make the spec `out` of a run of so many steps from a condition, whose first run is `row`; write nothing.

    Raises UserError, SpecError if the campaign's spec no longer has the condition, is in another folder, or the result
    is no valid spec.
    """
    folder, overrides = Path(campaign.provenance.get("spec", "")).parent, _OVERRIDE.findall(campaign.spec)
    if out.parent.resolve() != folder.resolve():  # relative paths would lead elsewhere
        raise UserError(f"{out} is not beside the campaign's spec", f"name a file there: --output {folder / out.name}")
    raw = _edited(load(campaign.spec, "").data, settings_of(overrides))
    point = _point(raw, folder, row, condition)
    fixed = {s.path: s.value for s in point.settings if s.path}
    for path, value in fixed.items():
        if len(path) == 1 and isinstance(value, dict) and isinstance(before := raw.get(path[0]), dict):
            fixed[path] = {**before, **value}
    suffix = f"-{steps}-steps"
    name = f"{campaign.name[: _LONGEST_NAME - len(suffix)]}{suffix}"
    changed = {**fixed, **_filled_in(raw, point), ("name",): name, ("train", "steps"): steps}
    data = _edited(raw, changed, REMOVED)
    head = f"# {condition} of the campaign {campaign.name}, for {count(steps, 'step')}: by `campaign promote`.\n\n"
    text = head + written(data)
    _, (run,) = runs_of_text(text, out)
    before = run_config(row)
    length: dict[Keys, Any] = {("train", name): getattr(before.train, name) for name in ("steps", "epochs")}
    _, (as_long,) = runs_of_text(written(_edited(data, length)), out)
    texts = tuple(f"{'.'.join(path)}: {text_of(value)}" for path, value in fixed.items())
    return Promotion(name, text, run, texts, tuple(_notes(row, before, run, as_long)))


def _edited(data: Mapping[str, Any], changed: Mapping[Keys, Any], removed: Sequence[Keys] = ()) -> dict[str, Any]:
    result = deepcopy(dict(data))
    for *above, key in removed:
        holder = result.get(above[0]) if above else result
        if isinstance(holder, dict):
            holder.pop(_spelling(holder, key), None)
    for (*above, last), value in changed.items():
        holder = result
        for part in above:
            key = _spelling(holder, part)
            holder[key] = holder = holder.get(key) or {}
        holder[_spelling(holder, last)] = value
    return result


def _spelling(keys: Mapping[str, Any], part: str) -> str:
    """Return the key as the mapping has it: `gpus_per_node` may be written with hyphens."""
    return next((key for key in (part, part.replace("_", "-")) if key in keys), part)


def _point(raw: Mapping[str, Any], folder: Path, row: RunRow, condition: str) -> Point:
    """Return the point with values as in the spec: a run's values have variables and paths filled in."""
    if "search" in raw:
        return point_of(SearchConfig.model_validate(raw["search"]), row.params)
    written, _ = points(raw.get("matrix") or {})
    filled, _ = points(with_inputs_of(raw, folder).get("matrix") or {})
    for point, candidate in zip(written, filled, strict=True):
        if candidate.params == row.params:
            return point
    hint = "submit the spec that has it again, or name another with --condition"
    raise UserError(f"the campaign's spec no longer has the condition {condition}", hint)


def _filled_in(raw: Mapping[str, Any], point: Point) -> dict[Keys, Any]:
    own = {setting.key: setting.value for setting in point.settings} | point.params
    values = {name: value for name, value in own.items() if name not in _STAY and isinstance(value, Scalar)}
    words = [str(word) for word in words_of(raw["command"])] if "command" in raw else []
    env = {name: str(value) for name, value in (raw.get("env") or {}).items()}
    filled_in: dict[Keys, Any] = {
        ("command",): list(filled_words(words, values)),
        ("env",): {name: filled(text, values) for name, text in env.items()},
    }
    return {path: value for path, value in filled_in.items() if value not in (words, env)}


def _notes(row: RunRow, before: RunConfig, run: Run, as_long: Run) -> Iterator[str]:
    """Yield the effects of the number of steps, and the differences of a run `as_long` as that of the condition."""
    train = run.config.train
    if before.command is None and train.schedule != "constant":
        was = before.train.steps or row.target_step
        instead = f" instead of {was:,}" if was else ""
        yield (
            f"learning rate: the {train.schedule} schedule stretches over {train.steps or 0:,} steps{instead}, so the"
            " run is no continuation of the shorter one"
        )
    fields = before.model_dump(mode="json", exclude_none=True)  # with what a later version has added
    if other := changes(fields, as_long.stored_config):
        yield f"otherwise than in the condition: {', '.join(other)}"
