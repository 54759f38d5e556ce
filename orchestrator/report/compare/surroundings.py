"""What a condition runs on and with, beside the trainer's own fields. Pure."""

from __future__ import annotations

from typing import Any, Final

from .conditions import Condition

_SECTIONS: Final = ("command", "deepspeed", "env", "python", "executor", "local", "ranks_per_node")

_ALLOWED: Final = {"account", "qos", "time", "mem", "array_parallelism", "signal_delay_s"}
"""Of Slurm: who pays, how long, and how much at once; they say nothing of the machine."""


def environment_key(condition: Condition) -> dict[str, Any]:
    """Everything beside the trainer's fields that may change a condition's speed: its script, software and machine."""
    config = condition.runs[0].config
    asked = {name: value for name, value in (config.get("slurm") or {}).items() if name not in _ALLOWED}
    return {**{section: config.get(section) for section in _SECTIONS}, "slurm": asked}
