"""Begin one node's part of an attempt: claim it, and agree with the other nodes on code, sizes and checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dscampaign.files.atomic_files import create_exclusively, read_json, write_atomically
from dscampaign.files.ownership import distrust, open_trusted
from dscampaign.files.private_files import make_below, open_private
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.code_copy import CodeCopy, CopyPaths, DamagedCopy
from dscampaign.jobs.shared.job_array import read_payload
from dscampaign.jobs.shared.payload import SETUP_PYTHON, Identity, Payload

from . import script_checkpoints
from .node import POLL_S, Node, Start, free_port, join
from .search import found_before, prepare

AWAY_S = 300.0  # wait so long for a checkpoint that the file system does not let read: without it steps are made again


@dataclass(frozen=True)
class Begun:
    """The agreed start: node 0's decision, the payload with the agreed batch sizes, the copy of the code if any."""

    start: Start
    payload: Payload
    copy: CodeCopy | None


class Starter:
    """One node's way from its payload to the launch; ``closed``: whether the attempt may no longer begin."""

    def __init__(self, payload: Payload, node: Node, beat: Callable[[], None], closed: Callable[[], bool]) -> None:
        self._payload, self._node, self._beat, self._closed = payload, node, beat, closed
        self._paths, self._run_paths = payload.paths, payload.run_paths

    def begin(self, timeout_s: float) -> Begun | None:
        """Claim this node's part and agree with the other nodes; return None if another job runs the attempt.

        Raises DamagedCopy: the copy of the code was changed; RendezvousTimeout: no sign of life of node 0 for
        `timeout_s`.
        """
        if self._node.rank == 0:
            if not self._take(self._paths.claim):
                return None
            if self._closed():  # with the claim in hand: a reconciler that closes the attempt after this sees the claim
                print(f"not run: {self._paths.dir.name} of {self._payload.run} is over", file=sys.stderr)
                return None
            copy = self._verified_code()
            return Begun(self._announce(), self._payload, copy)
        start = join(self._paths, self._node, timeout_s, self._given_up)
        if start is None or not self._take(self._paths.node_claim(self._node.rank)):
            return None
        self._resize(start.micro_batch, start.accumulation)
        return Begun(start, self._payload, CopyPaths(Path(self._payload.code)).read() if self._payload.code else None)

    def _verified_code(self) -> CodeCopy | None:
        if not self._payload.code:
            return None
        paths = CopyPaths(Path(self._payload.code))
        try:
            return paths.verify()
        except DamagedCopy as exc:
            with contextlib.suppress(OSError):  # the folder may be somebody else's
                write_atomically(paths.damaged, str(exc))
            raise

    def _take(self, path: Path) -> bool:
        """Take a claim. Each node has one: a slurmctld that crashed may launch one job twice, under the same id."""
        mine = asdict(Identity.of(self._payload))
        claim = {"job_id": self._node.job_id, "host": self._node.name, "ts": time.time(), **mine}
        if not superseded(self._payload) and create_exclusively(path, json.dumps(claim)):
            return True
        holder = (read_json(self._paths.claim) or {}).get("job_id", "a newer attempt")
        if holder == self._node.job_id and self._node.restarts:
            with contextlib.suppress(OSError):  # Slurm may know it, too
                write_atomically(self._paths.restarted, json.dumps({**claim, "restarts": self._node.restarts}))
        print(f"not mine: {self._paths.dir.name} of {self._payload.run} belongs to {holder}", file=sys.stderr)
        return False

    def _given_up(self) -> bool:
        if self._payload.code and CopyPaths(Path(self._payload.code)).damaged.exists():
            return True
        if self._node.restarts and self._paths.restarted.exists():
            return True
        claim = read_json(self._paths.claim)
        return superseded(self._payload) or (claim is not None and claim.get("job_id") != self._node.job_id)

    def _resize(self, micro_batch: int | None, accumulation: int | None) -> None:
        """Begin with a smaller micro-batch: a sibling ran out of memory while this attempt waited in the queue."""
        if micro_batch is None or accumulation is None or micro_batch == self._payload.micro_batch:
            return
        try:
            self._payload = self._payload.resized(micro_batch, accumulation)
        except ValueError as exc:
            print(f"{self._paths.resize.name} is not used: {exc}", file=sys.stderr, flush=True)

    def _announce(self) -> Start:
        sizes = read_json(self._paths.resize) or {}
        self._resize(sizes.get("micro_batch"), sizes.get("accumulation"))
        searches = bool(self._payload.search)
        if searches and (found := found_before(self._payload)):
            self._resize(*found)
            self.tell("micro_batch_known", reason=f"micro-batch {found[0]}, as found by a run like this one")
            searches = False
        payload = self._payload
        searches = searches and payload.share != 1
        payload.write_configs(self._paths)
        if payload.python == os.environ.get(SETUP_PYTHON):
            self.tell("python", message=f"runs {payload.python}, which `setup` chose")
        resume, step = self._checkpoint()
        start = Start(
            job_id=self._node.job_id,
            host=self._node.name,
            address=self._node.address(payload.nodes),
            port=free_port(),
            resume=resume,
            start_step=step,
            started_s=time.time(),
            micro_batch=None if searches else payload.micro_batch,
            accumulation=None if searches else payload.accumulation,
            search_from=payload.micro_batch if searches else None,
            restarts=self._node.restarts,
            **asdict(Identity.of(payload)),
        )
        if start.search_from is not None:
            prepare(payload, start.search_from)
        start.write(self._paths.started)
        return start

    def _checkpoint(self) -> tuple[str, int | None]:
        """Return the checkpoint to resume from, "" for none, and its step, None if only the script knows."""
        payload, folder = self._payload, self._run_paths.checkpoints(self._payload.config_hash)

        def skipped(path: Path, reason: str) -> None:
            self.tell("checkpoint_skipped", reason=reason, path=str(path))

        with self._beating():
            newest = checkpoint.newest_verified(
                folder,
                payload.config_hash,
                payload.world_size,
                zero_stage=(payload.train or {}).get("zero_stage"),
                arrangement=payload.arrangement,
                patience_s=AWAY_S,
                on_skip=skipped,
            )
            scripts = "" if newest or payload.train else script_checkpoints.newest(folder, skipped)
        step, recorded = newest.step if newest else 0, payload.min_resume_step
        if payload.steps_decide and step < recorded:  # a script of one's own looks for its checkpoints itself
            reason = f"the checkpoint of step {recorded} that was recorded cannot be used, steps are made again"
            self.tell("checkpoint_older", reason=reason, step=step, recorded_step=recorded)
        return str(newest.path) if newest else scripts, step if newest or payload.steps_decide else None

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        done = threading.Event()

        def beat() -> None:
            while not done.wait(POLL_S):
                self._beat()

        beats = threading.Thread(target=beat, daemon=True)
        beats.start()
        try:
            yield
        finally:
            done.set()
            beats.join()

    def tell(self, event: str, **data: object) -> None:
        """Record an event of the attempt. Only before the ranks write to the spool."""
        print(event, *data.values(), file=sys.stderr, flush=True)
        line = json.dumps({"event": event, "ts": time.time(), **data}) + "\n"
        with contextlib.suppress(OSError), open(self._paths.metrics, "a", opener=open_private) as spool:
            spool.write(line)


def trusted_payload(path: Path, index: int, root: Path) -> Payload:
    """Return a task's payload and make the attempt's folder, if no other user can have written to them.

    Raises Distrusted: another user can; OSError: it is not there; ValueError: it is no payload of this version.
    """
    payload = read_payload(open_trusted(path, root), path, index)
    runs, folder = payload.run_paths.dir.parent, payload.paths.dir
    if doubt := distrust(runs, payload.run_paths.root):
        raise doubt
    make_below(runs, folder)
    if doubt := distrust(folder, payload.run_paths.root):
        raise doubt
    return payload


def superseded(payload: Payload) -> bool:
    """Return whether the run has a newer attempt."""
    current = read_json(payload.run_paths.current)
    return current is not None and current["generation"] > payload.generation
