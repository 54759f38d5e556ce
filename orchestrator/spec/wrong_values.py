"""Values of a spec that no field takes, in the terms of a spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from dscampaign.orchestrator.errors import FieldPath, Finding, did_you_mean, dotted, nearest

from .field_types import NOT_EMPTY, ONE_LINE
from .matrix import field_path, fields_ending_in
from .model import NAME, STAGE_NAME, Spec
from .slurm_section import INSTEAD
from .yaml_source import written

_MESSAGES: Final = {
    "dict_type": "expected a mapping of fields",
    "model_type": "expected a mapping of fields",
    "too_short": "expected at least one",
    "tuple_type": "expected a list",
}
"""Instead of pydantic's own text, by its type of error."""
_PATTERNS: Final = {
    NAME: "expected letters, digits, . _ - (starting with a letter or digit, at most 64)",
    STAGE_NAME: "expected lower-case letters, digits, _ (starting with a letter, at most 20)",
    ONE_LINE: "expected a single line, without a line break or another control character",
    NOT_EMPTY: "expected a name on a single line",
}
_EXPECTED: Final = "expected "
_STRUCTURED: Final = frozenset({"dict_type", "model_type", "tuple_type"})


def findings_of(error: ValidationError, data: Mapping[str, Any]) -> list[Finding]:
    """Return pydantic's errors in the content of a spec, or the values of a run."""
    merged: dict[FieldPath, Finding] = {}
    for finding in (_finding(detail, data) for detail in error.errors(include_url=False)):
        place = finding.places[0]
        old = merged.setdefault(place, finding)
        if old is not finding and all(other.message.startswith(_EXPECTED) for other in (old, finding)):
            # A field that takes text or a mapping has an error for each.
            merged[place] = replace(old, message=f"{old.message} or {finding.message.removeprefix(_EXPECTED)}")
    return list(merged.values())


def _finding(detail: Mapping[str, Any], data: Mapping[str, Any]) -> Finding:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    place: FieldPath = tuple(detail["loc"])
    if kind == "missing":
        return Finding((place,), f"{place[-1]} is required")
    place = existing(place, data)
    if kind == "extra_forbidden":
        return _unknown(place)
    if kind == "value_error":
        return Finding((place,), str(context["error"]), getattr(context["error"], "hint", None))
    words = context["expected"].split("'")[1::2] if kind == "literal_error" else ()
    message = (
        _MESSAGES.get(kind)
        or _PATTERNS.get(context.get("pattern", ""))
        or detail["msg"].replace("Input should be ", _EXPECTED)
    )
    return Finding((place,), message, _hint(kind, value, words, place))


def _hint(kind: str, value: Any, words: Sequence[str], place: FieldPath) -> str | None:
    key = ".".join(map(str, place))
    if isinstance(value, list) and value and field_path(key) is not None and kind not in _STRUCTURED:
        return f"to compare several values, list them under `matrix`, as {key}"
    if kind == "string_type":
        if isinstance(value, dict) and list(value.values()) == [None]:
            return f"YAML reads this as a mapping; quote it: '{{{next(iter(value))}}}'"
        return "quote it if it is text"
    if kind == "tuple_type" and isinstance(value, str):
        return f"write {written([value], flow=True)}"
    if place == ("deepspeed",):
        return "write the file's content below `deepspeed:`; YAML also takes JSON" if isinstance(value, str) else None
    return did_you_mean(str(value), words, None)


def _unknown(place: FieldPath) -> Finding:
    """Return the finding of an unknown field; its further place is the field that it hides."""
    *section, name = map(str, place)
    fields, plain = _fields(place[:-1]), name.replace("-", "_")
    path: FieldPath | None = (plain,) if section and plain in Spec.model_fields else field_path(plain)
    if plain in INSTEAD:  # an option of sbatch
        path = tuple(INSTEAD[plain].split("."))
    if path is None and (near := nearest(plain, fields)):
        path = (*place[:-1], near)
    several = [] if section else fields_ending_in(name)
    otherwise = f"write {' or '.join(several)}" if several else None
    level = " at the top level" if section and path and len(path) == 1 else ""
    hint = f'did you mean "{dotted(path)}"{level}?' if path else otherwise
    return Finding((place, *([path] if path else [])), "unknown field", hint, at_key=True)


def existing(place: FieldPath, data: Any) -> FieldPath:
    """Return the part of pydantic's place that is in the data: it may end in the name of a type."""
    for length, part in enumerate(place):
        if not (isinstance(data, Mapping) and part in data) and not (isinstance(data, list) and isinstance(part, int)):
            return place[:length]
        data = data[part]  # type: ignore[index]
    return place


def _fields(place: FieldPath) -> list[str]:
    fields = Spec.model_fields
    for part in (str(part) for part in place if not isinstance(part, int)):
        annotation = fields[part].annotation if part in fields else None
        kinds = (annotation, *getattr(annotation, "__args__", ()))  # such as `DatasetConfig | None`
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        fields = section.model_fields if section else {}
    return list(fields)
