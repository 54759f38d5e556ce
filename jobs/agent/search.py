"""Search for a micro-batch before the training, in a launch of its own on the same nodes. Node 0 decides."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dscampaign.files.atomic_files import create_exclusively, read_json
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.documents import decode
from dscampaign.jobs.shared.layout import AttemptPaths, CampaignPaths
from dscampaign.jobs.shared.micro_batch_search import SEARCH_S, SizeTrial, best_size, smaller_size
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.shared.spool_steps import events

from .node import POLL_S, Node, Start, free_port

OVER: Final = ("signal", "superseded", "peer")  # reasons to end a launch that end the attempt, too
Launch = Callable[[Payload, AttemptPaths, Start], tuple[int, str]]
"""Start this node's ranks and wait; return their launcher's exit code, and why they were ended."""


@dataclass(frozen=True)
class Searched:
    """The end of a search: the sizes to train with, or why the attempt is over."""

    start: Start
    payload: Payload
    ended_by: str = ""


def found_before(payload: Payload) -> tuple[int, int] | None:
    """Return the micro-batch and accumulation that a like run has found; None if none has yet."""
    micro_batch = (read_json(_shared(payload)) or {}).get("micro_batch")
    if type(micro_batch) is not int or not payload.share or micro_batch < 1 or payload.share % micro_batch:
        return None
    return micro_batch, payload.share // micro_batch


def prepare(payload: Payload, size: int, too_big: int | None = None) -> None:
    """Write, on node 0, the configurations of a search from this size on, before any node begins it."""
    paths = _round(payload, size)
    make_below(payload.paths.dir, paths.dir)
    payload.searching(size, SEARCH_S, too_big).write_configs(paths)


class Search:
    """A node's part in the search."""

    def __init__(self, payload: Payload, node: Node, launch: Launch, tell: Callable[..., None]) -> None:
        self._payload, self._node, self._launch, self._tell = payload, node, launch, tell
        self._paths = payload.paths
        self._too_big: int | None = None

    def run(self, start: Start, over: Callable[[], str]) -> Searched:
        """Search until node 0 announces the sizes to train with."""
        began_s = time.monotonic()
        while start.search_from is not None:
            paths = _round(self._payload, start.search_from)
            for folder in (paths.logs, paths.ranks):
                make_below(self._paths.dir, folder)
            payload = self._payload.searching(start.search_from, SEARCH_S)
            code, ended_by = self._launch(payload, paths, replace(start, resume=""))
            if ended_by in OVER:
                return Searched(start, self._payload, ended_by)
            if self._node.rank == 0:
                went_well = code == 0 and ended_by != "stop"
                seconds = time.monotonic() - began_s
                start = self._following(start, start.search_from, paths, seconds, went_well=went_well)
                if start.search_from is None:
                    self._sized(start).write_configs(self._paths)
                else:
                    prepare(self._payload, start.search_from, self._too_big)
                start.write(self._paths.started)
            else:
                start, ended_by = self._heard(start, over)
                if ended_by:
                    return Searched(start, self._payload, ended_by)
        return Searched(start, self._sized(start))

    def _sized(self, start: Start) -> Payload:
        assert start.micro_batch is not None
        assert start.accumulation is not None
        return self._payload.resized(start.micro_batch, start.accumulation)

    def _following(self, start: Start, size: int, paths: AttemptPaths, seconds: float, *, went_well: bool) -> Start:
        """Return node 0's decision after a round: search again from a smaller size, or train.

        A search that was cut short, other than by memory, may have missed the fastest size: its result is not kept.
        """
        share = self._payload.share or size
        lines = events(paths.metrics, "trial")
        records = [read_json(paths.did_not_fit(rank)) or {} for rank in range(self._payload.world_size)]
        failed = [record.get("micro_batch") for record in records]
        trials = []
        for line in lines:
            with suppress(ValueError):
                trials.append(decode(SizeTrial, line))
        too_big = min((each for each in failed if type(each) is int), default=None)
        self._too_big = too_big or self._too_big
        if not trials and too_big and (smaller := smaller_size(share, size)):
            return replace(start, search_from=smaller, port=free_port())
        # Without any, the training begins as it would have without a search, and says itself what is wrong.
        chosen = best_size(trials) or size
        tried = [trial.micro_batch for trial in trials]
        if trials and (went_well or too_big):
            path, text = _shared(self._payload), {"micro_batch": chosen, "run": self._payload.run, "tried": tried}
            try:
                make_below(path.parents[1], path.parent)
                create_exclusively(path, json.dumps(text))
            except OSError as error:
                print(f"the result is not kept for other runs: {error}", file=sys.stderr, flush=True)
        of_a_like_run = found_before(self._payload) if trials else None
        micro_batch, accumulation = of_a_like_run or (chosen, share // chosen)
        seconds = round(seconds, 1)
        result = {"micro_batch": micro_batch, "seconds": seconds, "tried": tried, "did_not_fit": self._too_big}
        self._tell("micro_batch_search", reason=_in_words(result), **result)
        for line, trial in zip(lines, trials, strict=False):
            place = {name: line.get(name) for name in ("device", "torch")}
            sizes = {"peak_reserved_gb": trial.peak_gb, "usable_gb": trial.usable_gb}
            self._tell("micro_batch_trial", micro_batch=trial.micro_batch, step_s=trial.step_s, **place, **sizes)
        return replace(start, search_from=None, port=free_port(), micro_batch=micro_batch, accumulation=accumulation)

    def _heard(self, before: Start, over: Callable[[], str]) -> tuple[Start, str]:
        while not (reason := over()):
            now = Start.read(self._paths.started)
            if now and now.job_id == self._node.job_id and now.port != before.port:
                return now, ""
            time.sleep(POLL_S)
        return before, reason


def _shared(payload: Payload) -> Path:
    return CampaignPaths(payload.run_paths.root, payload.campaign).found_micro_batch(payload.search)


def _round(payload: Payload, size: int) -> AttemptPaths:
    return AttemptPaths(payload.paths.search / f"from-{size}")


def _in_words(result: dict[str, Any]) -> str:
    tried = ", ".join(map(str, result["tried"]))
    too_big = f"; {result['did_not_fit']} did not fit" if result["did_not_fit"] else ""
    if not tried:
        return f"the search for a micro-batch measured nothing{too_big}: trains with {result['micro_batch']}"
    return f"micro-batch {result['micro_batch']} of {tried}{too_big}, found in {result['seconds']:.0f} s"
