"""How fast an attempt trained after its warm-up, as the trainer itself has measured it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ....db.records import EventRow
from ...formatting import count, figure, short_number

KIND = "script.speed"
_CLOCKS_AGREE = 0.02


def speed_document(events: Sequence[EventRow], attempt_id: int) -> dict[str, float] | None:
    """The figures that the attempt has given of its speed, None where it has not. A script may say what it likes."""
    said = [event.data for event in events if event.kind == KIND and event.attempt_id == attempt_id]
    figures = {name: float(value) for name, value in said[-1].items() if _is_number(value)} if said else {}
    return figures if "tokens_per_s" in figures else None


def speed_line(events: Sequence[EventRow], attempt_id: int) -> str:
    """Such as `400k tokens/s (100k a GPU), MFU 34.8%, 20.5 ms a step (IQR 0.3) over 80 steps; ...`.

    Nothing where nothing is known.
    """
    said = speed_document(events, attempt_id)
    if said is None:
        return ""
    parts = [f"{short_number(said['tokens_per_s'])} tokens/s{_each(said)}", _mfu(said), _step(said)]
    rest = [f"warm-up of {count(int(said.get('warm_up_steps', 0)), 'step')} took {said.get('warm_up_s', 0.0):.1f} s"]
    rest += [f"{said['data_wait_share']:.1%} waited for data"] if said.get("data_wait_share", 0.0) >= 0.001 else []
    rest += [f"{said['alloc_retries']:.0f} retries of the allocator"] if said.get("alloc_retries") else []
    off = said.get("clock_ratio", 1.0) - 1.0
    rest += [f"the host's clock says {off:+.0%}"] if abs(off) > _CLOCKS_AGREE else []
    return "; ".join([", ".join(filter(None, parts)), *rest])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _each(said: Mapping[str, float]) -> str:
    one = said.get("tokens_per_s_per_gpu")
    return f" ({short_number(one)} a GPU)" if one and one != said["tokens_per_s"] else ""


def _mfu(said: Mapping[str, float]) -> str:
    return f"MFU {said['mfu']:.1%}" if said.get("mfu") else ""


def _step(said: Mapping[str, float]) -> str:
    if "step_time_median_s" not in said:
        return ""
    median, spread = (1e3 * said.get(name, 0.0) for name in ("step_time_median_s", "step_time_iqr_s"))
    return f"{figure(median)} ms a step (IQR {figure(spread)}) over {count(int(said.get('steps', 0)), 'step')}"
