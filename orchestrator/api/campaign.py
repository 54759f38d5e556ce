"""A campaign in Python: `from dscampaign import Campaign`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dscampaign.db.errors import StaleLease
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign import desired
from dscampaign.orchestrator.campaign.documents import CampaignDetails, RunDetails, campaign_details, run_details
from dscampaign.orchestrator.campaign.location import Location, PlaceOptions, StrPath, locate
from dscampaign.orchestrator.campaign.plan import Plan, make_plan
from dscampaign.orchestrator.campaign.selection import Selection, campaigns_of, find, find_run, names_of, select
from dscampaign.orchestrator.campaign.status import (
    MOST_WATCHED,
    CampaignStatus,
    read_status,
    with_final_figures,
)
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.errors import UserError, needs_the_extra
from dscampaign.orchestrator.reconcile.lease import LeaseHeld
from dscampaign.orchestrator.spec.objective import Objective

from .passes import Detaching, Obstacles, in_the_way, passes, until_settled
from .submission import Proposal, large, located, read_spec

if TYPE_CHECKING:
    import pandas as pd

    from dscampaign.orchestrator.report.compare.difference import ComparedOperands

    from .results import Recommendation


class Campaign:
    """A campaign in the store, or a spec not yet submitted.

    Create it with `from_yaml` or `open`. Every method reads the store anew, and raises the errors of the command of its
    name: `UserError`, with `message`, `hint` and `exit_code`; for a spec `SpecError`, whose `problems` have file, line,
    column and field; `StoreError` if the database does not exist, does not respond (`retryable`), or belongs to another
    version.
    """

    def __init__(self, name: str, location: Location, submission: Submission | None = None) -> None:
        self.name = name
        self._location, self._submission = location, submission

    @classmethod
    def from_yaml(
        cls,
        spec: StrPath | Mapping[str, Any],
        *,
        sets: str | Sequence[str] = (),
        store: str | None = None,
        dir: StrPath | None = None,
    ) -> Self:
        """Read and check a spec, as `campaign validate`: a YAML file, or its content as a mapping.

        Relative paths in a mapping start in the present folder. `sets` replace values of the spec, as `train.steps=10`;
        `store` and `dir` are as on the command line. Raises SpecError with the errors of the spec.
        """
        source = spec if isinstance(spec, Mapping) else Path(spec)
        sets = _texts(*([sets] if isinstance(sets, str) else sets))
        submission, location = located(read_spec(source, sets, _tell), source, sets, PlaceOptions(dir, store))
        return cls(submission.spec.name, location, submission)

    @classmethod
    def open(cls, name: StrPath | None = None, *, store: str | None = None, dir: StrPath | None = None) -> Self:
        """Open a campaign of the store, by its name or its spec file; optional if the store has a single campaign.

        `store` and `dir` are as on the command line.
        """
        location = locate(PlaceOptions(dir, store), [name])
        return cls(find(location.open(), location.name).name, location)

    def __repr__(self) -> str:
        return f"<campaign {self.name}>"

    def _repr_html_(self) -> str:
        store = self._location.open_if_any()
        if self._submission and (store is None or self.name not in [row.name for row in campaigns_of(store, None)]):
            return self.plan()._repr_html_()
        status = self.status()
        charts = len(status.runs) <= MOST_WATCHED and all(map(find_spec, ("altair", "jinja2", "numpy", "vl_convert")))
        results = self.recommend()._repr_html_() if charts and status.counts.completed else ""
        return status._repr_html_() + results

    def plan(self) -> Plan:
        """Return the effect of submitting the spec on each run; changes nothing."""
        return make_plan(self._location.open_if_any(), self._spec)

    def submit(self, *, yes: bool = False, detach: bool | None = None) -> CampaignStatus:
        """Submit the runs of the spec that are not in the store yet; return the status after one pass.

        Without `yes`, raises UserError if it ends runs or is larger than `ask_above_runs` or `ask_above_gpu_hours`. By
        default, leaves retries to a job if the store can be opened there. `detach` leaves them to a job, or on this
        host to a process; False leaves them to `wait`. If Slurm would refuse a job, nothing is submitted.
        """
        proposal = Proposal(self._spec, self._location)
        _require(proposal.doubt, yes=yes)
        return _one_pass(*proposal.record(), then=Detaching(self._location.settings, detach))

    def wait(self, *, progress: bool = True, timeout: float | None = None) -> CampaignStatus:
        """Run passes until every run is settled: failed runs are retried, interrupted runs resume.

        With `progress`, prints the number of runs in each state on standard error whenever it changes, and obstacles
        such as a store that does not respond. Raises TimeoutError after `timeout` seconds: the jobs keep running, and
        another `wait` continues; Unreachable if Slurm or the shared folder did not respond to the first pass.
        """
        end_s = None if timeout is None else time.monotonic() + timeout

        def rest(seconds: float) -> None:
            left_s = seconds if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{self.name} is not settled after {timeout:g} s; its jobs keep running")
            time.sleep(min(seconds, left_s))

        shown, obstacles = "", Obstacles()
        with closing(until_settled(*self._found(), sleep=rest)) as outcomes:
            for outcome, status in outcomes:
                held = isinstance(outcome, LeaseHeld | StaleLease)
                news = obstacles.news({} if held else in_the_way(outcome))
                if status and status.sentence != shown:
                    shown = status.sentence
                    news.append(shown)
                for line in news if progress else ():
                    _tell(line)
        return self.status()

    def status(self, *runs: str) -> CampaignStatus:
        """Return the status of all runs, or of the runs with these names or patterns.

        `runs[i]` has state, step, losses (nats, or the script's unit), `tokens_per_s`, `mem_reserved_gb` (GB) and the
        reason of its state.
        """
        store, row, chosen = self.selected(*runs)
        return with_final_figures(store, read_status(store, row).of(chosen))

    def explain(self, run: str | None = None) -> RunDetails | CampaignDetails:
        """Return a run with its attempts, failures, checkpoints and events, or the campaign with its newest events."""
        store, row = self._found()
        if run is None:
            return campaign_details(store, row)
        return run_details(store, *find_run(store, (self.name, *_texts(run))))

    @property
    def runs(self) -> pd.DataFrame:
        """A row for each run, with its parameters as columns `param.*`; see `dscampaign.load`."""
        return self._frames.runs

    @property
    def steps(self) -> pd.DataFrame:
        """A row for each run and step, with the run's parameters; see `dscampaign.load`."""
        return self._frames.steps

    def recommend(self, *, baseline: str | None = None, by: str | None = None) -> Recommendation:
        """Return the recommended configuration, and all conditions, best first.

        `baseline` is a condition, by default that of the spec, else ddp, else the first; `by` is `speed`, `loss`,
        `memory`, `energy` or `time-to-loss`, by default that of the spec.
        """
        if by is not None and by not in tuple(Objective):
            raise UserError(f"no objective named {by}", f"one of: {', '.join(Objective)}")
        with needs_the_extra():
            from .results import measured

            named = None if baseline is None else _texts(baseline)[0]
            return measured(*self._found(), named, Objective(by) if by else None)

    def compare(self, a: str, b: str) -> ComparedOperands:
        """Compare two conditions or runs of the campaign; `OTHER/NAME` belongs to another campaign.

        Times are in seconds, memory in GB; the ratio is that of b to a.
        """
        with needs_the_extra():
            from dscampaign.orchestrator.report.compare.difference import compare_operands

            return compare_operands(self._location.open(), (self.name, *_texts(a, b)))

    def report(self, path: StrPath, *, baseline: str | None = None) -> Path:
        """Write a report into a folder; return its page, which opens offline."""
        results = self.recommend(baseline=baseline)
        with needs_the_extra():
            from dscampaign.orchestrator.report.page.write import write_report

            return write_report(results, Path(path), time.time())[0]

    def cancel(self, *runs: str, everything: bool = False) -> CampaignStatus:
        """Cancel runs with these names or patterns and their jobs, or `everything`; return the status after a pass."""
        if bool(runs) is everything:
            raise UserError("which runs?", "name them, or write everything=True")
        store, row, chosen = self.selected(*runs)
        desired.cancel(store, row, names_of(store, row, chosen))
        return _one_pass(store, row, cancelled=True)

    def retry(self, *runs: str, yes: bool = False, detach: bool | None = None) -> CampaignStatus:
        """Retry runs with these names or patterns, or all that failed or are held; return the status after a pass.

        `yes` and `detach` are as for `submit`.
        """
        store, row, chosen = self.selected(*runs)
        plan = planned_retry(store, row, chosen)
        _require(large(self._location.settings, len(plan.changed), plan.hours), yes=yes)
        desired.retry(store, row, [run.name for run in plan.changed])
        return _one_pass(store, row, then=Detaching(self._location.settings, detach) if plan.changed else None)

    def selected(self, *runs: str) -> tuple[Store, CampaignRow, Selection]:
        """Return the store, the campaign's row, and the runs with these names or patterns; all without any."""
        store, row = self._found()
        return store, *select(store, (row.name, *_texts(*runs)))

    @property
    def _spec(self) -> Submission:
        if self._submission is None:
            raise UserError(f"{self.name} was opened without its spec", "Campaign.from_yaml(SPEC)")
        return self._submission

    @property
    def _frames(self) -> Any:
        from dscampaign.orchestrator.export.frames import load

        settings = self._location.settings
        return load(self.name, store=settings.store, dir=str(settings.dir))

    def _found(self) -> tuple[Store, CampaignRow]:
        store = self._location.open()
        return store, find(store, self.name)


def _texts(*values: object) -> tuple[str, ...]:
    """Return arguments that have to be text: names, patterns and overrides; raise UserError for other or empty ones."""
    for value in values:
        if not isinstance(value, str) or not value:
            raise UserError(f"expected text, not {value!r}", "pass several as arguments of their own: *names")
    return tuple(map(str, values))


def planned_retry(store: Store, campaign: CampaignRow, chosen: Selection, *, cancelled: bool = False) -> desired.Effect:
    """Return the runs that a retry begins again; with `cancelled` of all runs also cancelled ones.

    Raises UserError if named runs cannot be retried, or the store cannot be written.
    """
    store.check_writable()
    names = names_of(store, campaign, chosen)
    unnamed = bool(chosen.names) and not chosen.states
    with store.read() as conn:
        plan = desired.what_retries(conn, campaign, names, cancelled=cancelled, unnamed=unnamed)
    if unnamed and not plan.changed:
        desired.require_retried(plan.left)
    return plan


def _require(doubt: str | None, *, yes: bool) -> None:
    if doubt and not yes:
        raise UserError(f"nothing was done: {doubt}", "write yes=True")


def _one_pass(
    store: Store, row: CampaignRow, *, cancelled: bool = False, then: Detaching | None = None
) -> CampaignStatus:
    for outcome, status in passes(store, row, cancelled=cancelled):  # noqa: B007 - the last status
        for line in in_the_way(outcome).values():
            _tell(line)
    if then and not status.settled and then.start(store, row, _tell):
        status = read_status(store, row)
    return with_final_figures(store, status)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
