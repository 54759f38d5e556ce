"""Read thousands of similar configurations: equal sections are checked once, and are the same object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .field_types import SpecSection
from .model import RunConfig

_SECTIONS = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, SpecSection)
}


class SharedSections:
    """The frozen sections of all configurations that were read so far."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], SpecSection] = {}

    def read(self, data: Mapping[str, Any]) -> RunConfig:
        """A run's configuration, from values as a spec or the store has them.

        Raises:
            ValidationError: With everything that pydantic has against them.
        """
        try:
            sections = {name: self._section(name, kind, data[name]) for name, kind in _SECTIONS.items() if name in data}
        except ValidationError:
            sections = {}  # the whole has all errors, with their places
        return RunConfig.model_validate({**data, **sections})

    def _section(self, name: str, kind: type[SpecSection], value: Any) -> Any:
        if type(value) is not dict:
            return value
        key = name, repr(value)  # by their text: 1, 1.0 and true are equal, and not the same
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = kind.model_validate(value)
        return found
