"""The submission that a file in an attempt's folder belongs to: a store that was lost may give a generation again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Identity:
    """An attempt of a submission, by the field names of claims, starts and outcomes."""

    token: str
    config_hash: str
    generation: int

    @classmethod
    def of(cls, attempt: Any) -> Self:
        """Return the identity of a payload, or of an attempt in the store."""
        return cls(attempt.token, attempt.config_hash, attempt.generation)

    def owns(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record may be this attempt's. Records of earlier versions have fewer fields."""
        return all(record.get(name) in (None, "", 0, value) for name, value in asdict(self).items())
