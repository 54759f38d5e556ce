"""The spec's section `retention`: how much stays of the metrics of runs that ended long ago."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .field_types import Real, SpecSection, Whole


class RetentionConfig(SpecSection):
    """Metrics that `campaign db prune` leaves of runs that ended long ago ([how](results.md#thinning-old-metrics))."""

    keep_every: Annotated[Whole, Field(ge=2, le=1_000_000)]
    """Keep a step, and a sample of each GPU, in so many."""
    after_days: Annotated[Real, Field(ge=0, le=36_500)] = 30.0
    """Days since the last attempt of a run ended."""
