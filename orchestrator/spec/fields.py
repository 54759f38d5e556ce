"""Every field that a spec may set, with the words that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from .model import Spec


def settable_fields(model: type[BaseModel] = Spec, prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Dotted paths as `--set` takes them, each with the words that the field accepts; none where it takes any value."""
    for name, info in model.model_fields.items():
        kinds = list(_kinds(info.annotation))
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for section in sections:
            yield from settable_fields(section, f"{prefix}{name}.")
        if not sections:
            yield f"{prefix}{name}", tuple(word for kind in kinds for word in _words(kind))


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types of a union, out of their annotations."""
    if annotation in (None, type(None)):
        return
    if get_origin(annotation) in (Literal, list, tuple, dict) or isinstance(annotation, type):
        yield annotation
        return
    for part in get_args(annotation):
        yield from _kinds(part)


def _words(kind: Any) -> tuple[str, ...]:
    if kind is bool:
        return ("true", "false")
    return tuple(str(word) for word in get_args(kind)) if get_origin(kind) is Literal else ()
