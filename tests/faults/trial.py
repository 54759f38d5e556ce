"""A campaign of the script in `scripts/`, watched as `campaign submit --watch` does, with all that it left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dscampaign.db.errors import StoreError
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.reconcile.loop import Pass, Reconciler
from dscampaign.orchestrator.report.measure.load import figures_of
from dscampaign.tests.support import LIGHT, REPOSITORY
from dscampaign.tests.support.campaigns import Observed, observe, open_store, submit
from dscampaign.tests.support.waiting import CAMPAIGN_HANGS_S

from .ledger import Ledger, read_all

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
STUB = REPOSITORY / "tests/support/stub_launcher.py"
POLL_S = 0.5

SLURM: dict[str, Any] = {"partition": "h100", "gpus_per_node": 0, "time": 10, "mem": "500M", "cpus_per_task": 1}
REAL: dict[str, Any] = {"python": sys.executable, "slurm.mem": "4G", "env.PYTHONPATH": str(LIGHT)}
"""The real `deepspeed` launcher, which takes seconds, in place of the stand-in."""
BASE: dict[str, Any] = {"ranks_per_node": 1, "slurm": SLURM, "retry": {"backoff_s": 0}}


@dataclass(frozen=True)
class Timed:
    """A pass of the reconciler, and when it began and ended by this machine's clock."""

    began_s: float
    ended_s: float
    done: Pass


@dataclass
class Trial:
    """The campaign.

    Attributes:
        folder: Holds spec, ledgers and, unless told otherwise, the campaign's own folder.
        spec: What the spec says beside the cases.
        cases: How many cases were submitted.
        passes: All passes that this process did.
        errors: What a pass raised instead of being done.
    """

    folder: Path
    store: Store
    campaign: CampaignRow
    spec: Mapping[str, Any]
    cases: int
    passes: list[Timed] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    @property
    def ledgers(self) -> Path:
        """Where the script writes down what it executes."""
        return self.folder / "ledger"

    def ledger(self, run: str) -> Ledger:
        """What was executed of a run."""
        return Ledger.read(self.ledgers, run)

    def all_ledgers(self) -> dict[str, Ledger]:
        """What was executed of each run."""
        return read_all(self.ledgers, list(observe(self.store, self.campaign).runs))

    def observe(self) -> Observed:
        """What the store holds now."""
        return observe(self.store, self.campaign)

    def watch(
        self,
        each_pass: Callable[[], None] = lambda: None,
        until: Callable[[], bool] = lambda: False,
        poll_s: float = POLL_S,
    ) -> Observed:
        """Passes until the campaign is settled, or `until()`.

        Args:
            each_pass: Called after every pass, also one that failed, to do something at the right moment.
            until: Called after it; true ends the watch.
            poll_s: Seconds between passes.
        """
        deadline_s = time.monotonic() + CAMPAIGN_HANGS_S
        reconciler = Reconciler(self.store, self.campaign, measure=figures_of)
        began_s = time.time()
        for done in reconciler.watch(poll_s=poll_s, sleep=time.sleep):
            if isinstance(done, Exception):
                self.errors.append(done)
            else:
                self.passes.append(Timed(began_s, time.time(), done))
            assert time.monotonic() < deadline_s, f"not settled: {self._unsettled()}"
            each_pass()
            if until():
                break
            began_s = time.time() + poll_s
        try:
            reconciler.close()
        except StoreError as exc:
            self.errors.append(exc)
        return self.observe()

    def _unsettled(self) -> list[tuple[str, str, str]]:
        return [(run.name, str(run.state), run.reason) for run in self.observe().runs.values()]


def case(label: str, *command: str, **settings: Any) -> dict[str, Any]:
    """One run: its name, the arguments of the script, and what else the spec says about it."""
    script = {"label": label, "command": [str(SCRIPT), *command], "steps": int(command[0]), "env.CASE": label}
    return {**script, **settings}


def begin(
    folder: Path, cases: Sequence[Mapping[str, Any]], url: str | None = None, dir: Path | None = None, **spec: Any
) -> Trial:
    """Records a campaign of these cases, by default in an SQLite file in the folder; submits nothing."""
    (folder / "ledger").mkdir()
    ledger = {"LEDGER_DIR": str(folder / "ledger")}
    wanted = {**BASE, "name": "faults", "python": str(stand_in(folder)), "env": ledger, **spec}
    store = open_store(url or f"sqlite:///{folder}/campaign.db")
    campaign = submit(_write_spec(folder, wanted, cases), dir or folder / "campaign", store)
    return Trial(folder, store, campaign, wanted, len(cases))


def grow(trial: Trial, cases: Sequence[Mapping[str, Any]]) -> None:
    """Submits the spec again with more cases, those that it had before among them."""
    trial.campaign = submit(_write_spec(trial.folder, trial.spec, cases), Path(trial.campaign.dir), trial.store)
    trial.cases = len(cases)


def _write_spec(folder: Path, spec: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / "spec.yaml"
    matrix = {"matrix": {"case": [dict(case) for case in cases]}} if cases else {}
    path.write_text(yaml.safe_dump({**spec, **matrix}))
    return path


def stand_in(folder: Path) -> Path:
    """A Python whose `deepspeed` launcher starts in a twentieth of a second; it runs scripts with this one."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STUB}" "$@"\n')
    path.chmod(0o755)
    return path
