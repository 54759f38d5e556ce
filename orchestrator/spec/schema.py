"""The JSON schema of a spec, for editors; the validator has all rules."""

from __future__ import annotations

import re
from typing import Any, Final

from .model import Spec
from .slurm_section import PASSED_OPTIONS

_LINK: Final = re.compile(r"\[([^]]+)\]\([^)]*\)")
_LIMITS: Final = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_NULL: Final = {"type": "null"}
_SCALAR: Final = {"type": ["string", "number", "boolean", "null"]}


def spec_schema() -> dict[str, Any]:
    """Return the schema: every field with its description, values and default."""
    schema: dict[str, Any] = _cleaned(Spec.model_json_schema())
    slurm = schema["$defs"]["SlurmConfig"]
    slurm["properties"] |= dict.fromkeys(sorted(PASSED_OPTIONS), _SCALAR)
    slurm |= {"additionalProperties": False, "patternProperties": {"-": _SCALAR}}  # `cpus-per-task`, as for sbatch
    entries = {"type": ["array", "null"], "items": {"type": "object"}}
    own = {
        "include": {**entries, "description": "Further points, or values that are added to points that match."},
        "exclude": {**entries, "description": "Points that are left out."},
    }
    schema["properties"]["matrix"] |= {"properties": own, "additionalProperties": {"type": "array"}}
    schema["type"] = "object"
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A campaign of dscampaign"}
    return {**title, **{key: value for key, value in schema.items() if key != "title"}}


def _cleaned(node: Any) -> Any:
    """Return a part of pydantic's schema as editors show it; also null."""
    if isinstance(node, list):
        return [_cleaned(item) for item in node]
    if not isinstance(node, dict):
        return node
    new: dict[str, Any] = {str(_LIMITS.get(key, key)): _cleaned(value) for key, value in node.items()}
    if isinstance(text := node.get("description"), str):
        new["description"] = _LINK.sub(r"\1", " ".join(text.split()))
    if isinstance(properties := node.get("properties"), dict):
        new["properties"] = {name: _optional(_cleaned(field)) for name, field in properties.items()}
        new["type"] = ["object", "null"]
    return new


def _optional(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field that may be empty, without a default that shows nothing."""
    bare = {key: value for key, value in field.items() if key != "title"}
    if isinstance(field.get("default"), dict | list | None):
        bare.pop("default", None)
    if isinstance(kind := field.get("type"), str):
        bare["type"] = [kind, "null"]
    elif forms := field.get("anyOf"):
        bare["anyOf"] = [*(form for form in forms if form != _NULL), _NULL]
    return bare
