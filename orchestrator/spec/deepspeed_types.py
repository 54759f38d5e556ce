"""The part of a DeepSpeed configuration that this program reads itself; DeepSpeed checks everything else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, PlainSerializer, StrictBool, ValidatorFunctionWrapHandler, WrapValidator
from typing_extensions import TypedDict

from .field_types import Whole

_OPEN = ConfigDict(extra="allow")


class _Switched(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    enabled: StrictBool


class _Compile(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    deepcompile: StrictBool


class _Optimizer(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    type: str
    params: dict[str, Any]


class _Offload(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    device: Literal["none", "cpu", "nvme"]
    nvme_path: str


class _Zero(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    offload_optimizer: _Offload | None
    offload_param: _Offload | None
    reduce_bucket_size: Whole


class _Section(TypedDict, total=False):
    __pydantic_config__ = _OPEN  # type: ignore[misc]
    bf16: _Switched
    fp16: _Switched
    compile: _Compile
    optimizer: _Optimizer
    zero_optimization: _Zero


def _as_given(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    check(value)
    return value


DeepSpeedSection = Annotated[
    _Section, WrapValidator(_as_given), PlainSerializer(lambda value: value, return_type=dict[str, Any])
]
"""The section as it is given: its digest must not depend on the form in which this program reads a value."""
