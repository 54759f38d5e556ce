"""Evidence of the nodes themselves: missing GPUs, memory. Pure."""

from __future__ import annotations

import re

from dscampaign.jobs.agent.evidence import AGENT, LogLine, NodeOutcome
from dscampaign.jobs.shared.allocator import joins_fragments

from . import cuda_oom
from .clues import Clue
from .evidence import Ended, outcome_of
from .policy import FailureClass
from .rules import Rule
from .verdict import Verdict, headline

_DRIVER_TROUBLE = re.compile(r"mismatch|GPU is lost|[Uu]nknown Error|reset required|requires reset", re.IGNORECASE)


# -- GPUs and storage -----------------------------------------------------------------------------------------


def bad_gpu(ended: Ended) -> Verdict | None:
    """Return the verdict on a broken GPU or driver, by the node's own evidence."""
    return next((verdict for o in ended.outcomes if (verdict := _gpu_count(o))), None)


def storage(ended: Ended) -> Verdict | None:
    """Return the verdict on a folder that the agent could not write to."""
    full = (Clue(line, o.host) for o in ended.outcomes for line in o.lines if line.file == AGENT and line.number == 0)
    if clue := next(full, None):
        return clue.verdict(FailureClass.STORAGE, "agent-storage", f"{clue.host}: {clue.text}")
    return None


def _gpu_count(outcome: NodeOutcome) -> Verdict | None:
    gpus, host = outcome.gpus, outcome.host
    if gpus is None or outcome.job_id.startswith("local-"):
        return None
    clue = Clue(LogLine(f"outcome-{outcome.node_rank}.json", 0, "gpus"), host)
    if gpus.before is None:
        if not _DRIVER_TROUBLE.search(gpus.trouble):
            return None
        return clue.verdict(FailureClass.GPU, "gpu-driver", f"{host}: NVIDIA's driver: {gpus.trouble}")
    count = len(gpus.before)
    if gpus.missing:
        return clue.verdict(FailureClass.GPU, "gpu-count", f"{host} shows {count} GPUs of {gpus.asked}")
    if gpus.lost and gpus.after is not None:
        reason = f"{host} lost a GPU while it ran: {len(gpus.after)} of {count} respond"
        return clue.verdict(FailureClass.GPU, "gpu-count", reason)
    return None


# -- memory ---------------------------------------------------------------------------------------------------


def out_of_memory(ended: Ended) -> Verdict | None:
    """Return the verdict on host memory that ran out, by Slurm or the control group."""
    proof = _host_memory(ended)
    return _host_oom(ended, *proof) if proof else None


def memory_ran_out(rule: Rule, clue: Clue, text: str, ended: Ended) -> Verdict:
    """Return the verdict on an error of memory: of the host, of the GPU, or of a GPU that others fill."""
    if rule.kind is FailureClass.HOST_OOM:
        return _host_oom(ended, clue, rule.name, text, rule.hint)
    outcome, kind, reason, hint = outcome_of(ended, clue.host), FailureClass.OOM, headline(text), ""
    if memory := cuda_oom.read(text):  # torch's figures of the GPU
        siblings = {rank.pid for rank in outcome.ranks if rank.pid is not None} if outcome else set()
        kind = memory.kind(siblings)
        if kind is FailureClass.FOREIGN_OOM:
            others = memory.foreign(siblings)
            reason = f"other processes hold {others:.1f} of the GPU's {memory.total:.1f} GiB on {clue.host}"
        elif kind is FailureClass.FRAGMENTATION and outcome and joins_fragments(outcome.allocator):
            kind = FailureClass.OOM  # joined as far as they can be
        elif kind is FailureClass.FRAGMENTATION:
            reason = f"{memory.unallocated:.1f} GiB are reserved in pieces, too small for {memory.tried:.1f} GiB"
            hint = "PYTORCH_ALLOC_CONF=expandable_segments:True"
    elif ".pin_memory(" in clue.raised.statement:
        return _host_oom(ended, clue, "pinned-memory", text)
    elif proof := _host_memory(ended):  # memory that CUDA pins is the host's
        return _host_oom(ended, *proof, text)
    elif (before := _used_before(outcome, clue) if outcome else 0.0) > cuda_oom.FOREIGN_SHARE:
        kind = FailureClass.FOREIGN_OOM
        reason = f"{clue.host}: {before:.0%} of the GPU's memory was in use before the attempt began"
    return clue.verdict(kind, rule.name, reason, hint)


def _host_memory(ended: Ended) -> tuple[Clue, str] | None:
    job = ended.job
    if job is not None and (job.state == "OUT_OF_MEMORY" or job.step_out_of_memory):
        return Clue(LogLine("slurm", 0, job.state)), "slurm-state"
    if job is not None and job.reason == "JobLaunchFailure" and job.exit_code == "0:9" and not ended.outcomes:
        # how a batch step ends under Slurm's OverMemoryKill
        return Clue(LogLine("slurm", 0, f"{job.state} {job.exit_code} {job.reason}")), "slurm-overmemory"
    killed = next((o for o in ended.outcomes if o.oom_kills), None)
    if killed:
        return Clue(LogLine("memory.events", 0, "oom_kill"), killed.host), "cgroup-oom"
    return None


def _host_oom(ended: Ended, clue: Clue, rule: str, text: str = "", hint: str = "") -> Verdict:
    """The verdict; if the ranks train on the CPU, a smaller micro-batch may help; else it does not."""
    if ended.on_cpu and ended.resizable:
        return clue.verdict(FailureClass.OOM, rule, "out of memory: " + headline(text or clue.text))
    field, requested = ended.host_memory
    used = max((o.memory_peak_bytes or 0 for o in ended.outcomes), default=0)
    facts = [f"asked {requested}"] if requested else []
    facts += [f"used {used / 2**20:,.0f}M"] if used else []
    more = f"{'raise' if requested else 'set'} {field}" + (f" ({', '.join(facts)})" if facts else "")
    return clue.verdict(FailureClass.HOST_OOM, rule, "the node's memory ran out", hint or more)


def _used_before(outcome: NodeOutcome, clue: Clue) -> float:
    """The share of the rank's GPU that was in use before the launcher started; of the fullest if it is not known."""
    gpus = outcome.gpus.before if outcome.gpus and outcome.gpus.before else ()
    shares = [gpu.used_bytes / gpu.total_bytes for gpu in gpus if gpu.total_bytes]
    ranks = sorted(rank.rank for rank in outcome.ranks)
    if shares and clue.rank in ranks and outcome.gpus and len(shares) == outcome.gpus.asked:
        return shares[ranks.index(clue.rank) % len(shares)]
    return max(shares, default=0.0)
