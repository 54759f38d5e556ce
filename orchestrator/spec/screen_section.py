"""`screen`: a short run of each point of the matrix decides which points run in full."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from .field_types import Hint, SpecSection, Whole
from .slurm_section import SlurmTime

PARETO: Final = "pareto"
_WITHIN: Final = re.compile(r"within\s+([0-9]+(?:\.[0-9]+)?)\s*%")
_WARM_UP_PART: Final = 10


def _keep(value: Any) -> Any:
    """Check the three rules."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise Hint(f"{value} keeps nothing", "keep at least 1")
        return value
    text = " ".join(str(value).lower().split())
    if text == PARETO or (_WITHIN.fullmatch(text) and isinstance(value, str)):
        return text
    raise Hint(f"{value!r} is no rule", "write `pareto`, a number (3), or `within 10%`")


class ScreenConfig(SpecSection):
    """A short run of each point of the matrix before any runs in full."""

    steps: Annotated[Whole, Field(ge=2, le=2**31 - 1)]
    """Optimizer steps of a screening run. The learning rate decays over these; the warm-up is at most a tenth of
    them."""
    keep: Annotated[int | str, BeforeValidator(_keep)] = PARETO
    """Points to run in full, among points that do the same work: `pareto` those that no other beats in speed and
    memory (with `objective: loss` or `time-to-loss`: in speed and loss); `3` the best three by `objective`;
    `within 10%` all that are at most so much worse than the best."""
    time: SlurmTime | None = None
    """Time limit of a screening run's job. Default: that of the others."""

    def shortened(self, warmup_steps: int) -> dict[str, Any]:
        """Return the changes of `train` for a screening run, from a full run with this warm-up."""
        return {
            "steps": self.steps,
            "epochs": None,
            "warmup_steps": min(warmup_steps, self.steps // _WARM_UP_PART),
            "checkpoint_every": None,
            "keep_best": False,
            "eval_every": None,
            "profile_at": None,
        }


def share_of(keep: str) -> float:
    """The part by which the rule `within 10%` lets a figure be worse than the best, such as 0.1."""
    found = _WITHIN.fullmatch(keep)
    assert found is not None
    return float(found[1]) / 100
