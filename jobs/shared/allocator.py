"""Settings of PyTorch's allocator of GPU memory in the environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variable, and its name before torch 2.9, which later versions read if the first is not set."""

EXPANDABLE: Final[Mapping[str, str]] = dict.fromkeys(NAMES, "expandable_segments:True")
"""Lets the allocator join free fragments."""

_JOINS: Final = re.compile(r"(^|,)\s*expandable_segments\s*:\s*True\s*(,|$)")


def default(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables to add if none is set: expandable segments, which the driver of WSL does not map."""
    return {} if any(name in env for name in (*NAMES, "WSL_DISTRO_NAME")) else EXPANDABLE


def setting(env: Mapping[str, str]) -> str:
    """Return the allocator's setting, "" for none."""
    return next((env[name] for name in NAMES if env.get(name)), "")


def joins_fragments(setting: str) -> bool:
    """Return whether a setting turns expandable segments on."""
    return bool(_JOINS.search(setting))
