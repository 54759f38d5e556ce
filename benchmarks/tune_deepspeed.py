"""When each order of the same trials comes within 2 % of the best: TPE's, a grid's, a random one.

python benchmarks/tune_deepspeed.py benchmarks/results/tune-deepspeed-h100/campaign.db.gz
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dscampaign.orchestrator.spec.sampling import Trial, TrialOutcome, ask
from dscampaign.orchestrator.spec.search_section import SearchConfig

WITHIN: Final = 0.02
SEEDS: Final = 200
_TRIALS: Final = """
    select run.params, event.data, sum(attempt.ended_s - attempt.started_s) from run
    join event on event.run_id = run.id and event.kind = 'trial.measured'
    join attempt on attempt.run_id = run.id
    where run.name not like '%-confirm' group by run.id order by run.ordinal"""


class Measured(NamedTuple):
    """A trial that completed."""

    params: dict[str, Any]
    tokens_per_s: float
    seconds: float


def read(path: str) -> tuple[SearchConfig, list[Measured]]:
    """Return the search of a kept store, and its trials in their order."""
    with tempfile.NamedTemporaryFile() as plain, gzip.open(path) as packed:
        plain.write(packed.read())
        plain.flush()
        store = sqlite3.connect(plain.name)
        [provenance] = store.execute("select provenance from campaign").fetchone()
        rows = store.execute(_TRIALS).fetchall()
    trials = [Measured(json.loads(params), json.loads(data)["values"][0], seconds) for params, data, seconds in rows]
    return SearchConfig.model_validate(json.loads(provenance)["search"]["section"]), trials


def arrives(order: Iterable[Measured], near: float) -> tuple[int, float]:
    """Return trials and GPU-minutes up to the first as fast as `near`."""
    seconds = 0.0
    for number, trial in enumerate(order, 1):
        seconds += trial.seconds
        if trial.tokens_per_s >= near:
            return number, seconds / 60
    raise ValueError("no trial is so fast")


def asked(search: SearchConfig, trials: Sequence[Measured], seed: int) -> list[Measured]:
    """Return the trials in the order in which the search asks for them with another seed."""
    seeded = search.model_copy(update={"seed": seed})
    known: list[Trial] = []
    order: list[Measured] = []
    for number in range(len(trials)):
        params = ask(seeded, known, number, lambda params: any(trial.params == params for trial in trials))
        trial = next(trial for trial in trials if trial.params == params)
        order.append(trial)
        known.append(Trial(number, trial.params, TrialOutcome.MEASURED, (trial.tokens_per_s,)))
    return order


def main() -> None:
    """Print the trials and the table."""
    search, trials = read(sys.argv[1])
    near = (1 - WITHIN) * max(trial.tokens_per_s for trial in trials)
    for trial in trials:
        print(f"{trial.tokens_per_s:9,.0f} tokens/s {trial.seconds:5.1f} s  {trial.params}")
    names = list(trials[0].params)
    levels = [list(dict.fromkeys(trial.params[name] for trial in trials)) for name in names]
    of_point = {tuple(trial.params.values()): trial for trial in trials}
    grid = [of_point[point] for point in itertools.product(*map(sorted, levels))]
    print(f"\n{len(trials)} combinations, {sum(trial.seconds for trial in trials) / 60:.2f} GPU-minutes in all")
    shuffled = random.Random(0)
    orders = {
        "tpe as it ran": [trials],
        f"tpe, {SEEDS} seeds": [asked(search, trials, seed) for seed in range(SEEDS)],
        "grid in its order": [grid],
        "grid, 2,000 random orders": [shuffled.sample(grid, len(grid)) for _ in range(2000)],
    }
    for name, each in orders.items():
        numbers, minutes = zip(*(arrives(order, near) for order in each), strict=True)
        print(f"{name:26} {statistics.mean(numbers):5.1f} trials {statistics.mean(minutes):5.2f} GPU-minutes")


if __name__ == "__main__":
    main()
