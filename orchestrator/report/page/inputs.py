"""What MFU was calculated from. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..compare.conditions import Condition
from ..compare.results import Results
from ..compare.wording import percent
from ..measure.failures import Background
from .elements import Section, Table

_TEXT: Final = (
    "MFU = tokens/s of a rank × FLOP a token / peak. FLOP a token = 6 × parameters + 12 × layers × width × length; "
    "parameters without padding of the vocabulary. The peak is the GPU's data sheet's for dense bf16, whatever the "
    "precision: conditions in fp32 and tf32 are measured against the same peak, which they cannot reach."
)
_HEADER: Final = (
    "condition", "device", "precision", "tokens/s of a rank", "parameters", "layers", "width", "length", "FLOP a token",
    "peak TFLOP/s", "MFU",
)  # fmt: skip


def inputs(results: Results, background: Background) -> Section:
    """A row for each condition that has an MFU."""
    rows = tuple(_rows(results, background))
    return Section(
        "What MFU is calculated from", (_TEXT,) if rows else (), (Table(_HEADER, rows, "---rrrrrrrr"),) * bool(rows)
    )


def _rows(results: Results, background: Background) -> Iterator[tuple[str, ...]]:
    for condition in results.conditions:
        mfu = condition.median(lambda run: run.timing.mfu if run.timing else None)
        behind = background.of(condition)
        peak = behind.speed.get("peak_flops")
        if mfu is None or not isinstance(peak, int | float):
            continue
        yield (
            condition.name,
            str(behind.speed.get("device") or behind.start.get("device") or ""),
            str(condition.field("precision") or ""),
            _rank_speed(condition),
            *(_whole(behind.start.get(name)) for name in ("parameters", "layers", "width")),
            _whole(condition.field("seq_len")),
            _whole(behind.speed.get("flops_per_token")),
            f"{peak / 1e12:,.4g}",
            percent(mfu),
        )


def _rank_speed(condition: Condition) -> str:
    tokens = condition.median(lambda run: run.timing.tokens_per_s if run.timing else None)
    return _whole(tokens.value / condition.runs[0].world_size) if tokens else ""


def _whole(value: Any) -> str:
    """All digits, so that the result can be calculated again."""
    return f"{value:,.0f}" if isinstance(value, int | float) else ""
