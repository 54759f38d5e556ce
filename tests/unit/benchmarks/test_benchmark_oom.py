"""The arithmetic of the out-of-memory experiment."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.benchmarks.oom.figures import figures, noise_check
from dscampaign.benchmarks.oom.plan import gpu_plan

pytestmark = pytest.mark.nightly


def run(seed: int, *losses: float) -> dict[str, Any]:
    return {"seed": seed, "losses": list(losses)}


OTHERS = (run(2, 9.0, 5.0), run(3, 9.1, 5.1), run(4, 9.2, 5.2))


def test_a_loss_among_those_of_other_seeds_is_inside_their_band() -> None:
    found = noise_check(run(1, 9.15, 5.0), [*OTHERS, run(1, 9.15, 5.002)])
    assert (found["inside"], found["steps"], found["undisturbed_seeds"]) == (True, 2, 3)
    assert found["largest_difference_to_same_seed"] == pytest.approx(0.002)
    # mean 9.1, standard deviation 0.1; 99 % of one more draw with two degrees of freedom
    assert found["band"][0]["half_width"] == pytest.approx(9.92 * 0.1 * (4 / 3) ** 0.5)


def test_a_loss_that_went_another_way_is_outside() -> None:
    found = noise_check(run(1, 9.1, 7.0), OTHERS)
    assert (found["inside"], found["steps_inside"]) == (False, 1)


def test_without_others_there_is_no_band() -> None:
    assert noise_check(run(1, 9.1), OTHERS[:1])["inside"] is None


def test_figures_of_an_experiment() -> None:
    def attempt(micro: int, measured: float | None, error: float | None = None) -> dict[str, Any]:
        own = None if measured is None else 0.04
        return {"micro_batch": micro, "measured_gb": measured, "error": error, "own_error": own}

    siblings = [{"attempts": [attempt(240, None), attempt(60, 70.0, -0.03)]}, {"attempts": [attempt(60, 70.0, 0.01)]}]
    sizes = [
        {**attempt(80, None), "fits": False, "failure_class": "oom"},
        {**attempt(8, 12.0, 0.02), "fits": True, "failure_class": "completed"},
    ]
    document = {
        "siblings": {"runs": siblings, "completed": 2, "ooms": 1, "micro_batches": [60, 48]},
        "sizes": {"rows": sizes},
        "noise": {"inside": True},
    }
    found = figures(gpu_plan("78G"), document)
    assert (found["largest_fitting_divisor"], found["not_fitting"]) == (60, [80])
    assert found["divisors_below_the_largest"] == [0, 1]
    assert found["largest_error_of_a_submission"] == 0.03
    assert found["largest_error_of_the_siblings_line"] == 0.02
    assert found["largest_error_before_the_first_step"] == 0.04
