"""Reads what the store knows of a campaign, all at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from sqlalchemy import Connection

from ...db import queries
from ...db.records import (
    SETTLED_RUN,
    TERMINAL_ATTEMPT,
    AttemptRow,
    AttemptState,
    CampaignRow,
    RunRow,
    RunState,
    Stage,
)
from ...db.store import Store
from ...db.warm_up import untimed_steps
from ..executors.job_request import run_config
from ..memory.observations import read_ledgers
from ..memory.prediction import Ledger
from ..spec.model import RunConfig
from ..spec.shared_sections import SharedSections
from .screening import Screening


class Configs:
    """What the spec asks for, run by run, each read once, when it is first asked for."""

    def __init__(self) -> None:
        self._read: dict[int, RunConfig] = {}
        self._sections = SharedSections()

    def of(self, run: RunRow) -> RunConfig:
        """That of a run of the campaign. Raises whatever keeps it from being read."""
        found = self._read.get(run.id)
        if found is None:
            found = self._read[run.id] = run_config(run, self._sections)
        return found

    @property
    def read(self) -> Iterable[RunConfig]:
        """Those that were asked for so far."""
        return self._read.values()


@dataclass(frozen=True)
class Stored:
    """What the store knows of a campaign at one moment of its clock.

    By run id: what the spec asks for, the attempts, oldest first, and the size of the largest recorded checkpoint, in
    bytes. By memory key: the measured memory. `screenings` has what screening runs have measured, by run id.
    """

    now_s: float
    campaign: CampaignRow
    runs: tuple[RunRow, ...]
    configs: Configs
    attempts: Mapping[int, Sequence[AttemptRow]]
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    checkpoint_bytes: Mapping[int, int] = field(default_factory=dict)
    screenings: Mapping[int, Screening] = field(default_factory=dict)

    @property
    def active(self) -> list[AttemptRow]:
        """The attempts that may still run."""
        return [row for rows in self.attempts.values() for row in rows if row.state not in TERMINAL_ATTEMPT]


def read_store(store: Store, campaign: CampaignRow) -> Stored:
    """Reads the campaign in one transaction."""
    with store.read() as conn:
        fresh = queries.campaign_by_name(conn, campaign.name) or campaign
        runs, attempts = queries.runs(conn, campaign.id), queries.attempts_by_run(conn, campaign.id)
        configs = Configs()
        return Stored(
            now_s=store.now(conn),
            campaign=fresh,
            runs=tuple(runs),
            configs=configs,
            attempts=attempts,
            ledgers=read_ledgers(conn, _undecided(runs, attempts, configs), chain.from_iterable(attempts.values())),
            checkpoint_bytes=queries.checkpoint_sizes(conn, campaign.id),
            screenings=_screenings(conn, runs, attempts),
        )


def _screenings(
    conn: Connection, runs: Sequence[RunRow], attempts: Mapping[int, Sequence[AttemptRow]]
) -> dict[int, Screening]:
    """What screening runs have measured, while it may still decide whether a run starts."""
    done = [run for run in runs if run.stage is Stage.SCREENING and run.state is RunState.COMPLETED]
    if not done or not any(run.stage is Stage.FULL and not run.generation for run in runs):
        return {}
    steps = queries.step_figures(conn, [run.id for run in done])
    return {
        run.id: Screening.of(steps.get(run.id, ()), attempts.get(run.id, ()), untimed_steps(run.config)) for run in done
    }


def _undecided(
    runs: Sequence[RunRow], attempts: Mapping[int, Sequence[AttemptRow]], configs: Configs
) -> Iterator[RunConfig]:
    """What those runs are to do whose next attempt may be decided now; one that waits in the queue knows its memory."""
    for run in runs:
        rows = attempts.get(run.id, ())
        waits = rows and rows[-1].state is AttemptState.QUEUED
        if not waits and (run.state not in SETTLED_RUN or run.state is RunState.HELD):
            with suppress(Exception):  # whatever it is, it is this run's alone, and said where it is looked at
                yield configs.of(run)
