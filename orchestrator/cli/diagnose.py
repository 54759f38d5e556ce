"""`campaign diagnose`: why a job ended that nobody here started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import EXIT_FAILED, EXIT_OK, UserError
from ..formatting import clean, count, size, source, words
from .options import verb
from .output import echo_page, page_for
from .output_format import TABLE, echo_rows, format_options
from .pages.text import Page, Style

if TYPE_CHECKING:
    from ..campaign.diagnosis import Explained

NEXT: Final = {
    "completed": "Nothing: it came to its end.",
    "completed_early": "It ended in good order, but before its last step: see whether that was meant.",
    "stopped": "Start it again: it goes on from the checkpoint that it saved.",
    "preempted": "Submit it again, and resume from the newest checkpoint. Save more often if much was lost.",
    "time_limit": "Submit it again with more `--time`, or resume from the newest checkpoint.",
    "oom": "Use a smaller micro-batch with more gradient accumulation; unchanged, it fails again. Activation"
    " checkpointing, a higher ZeRO stage or offload also help.",
    "foreign_oom": "Start it again on another node: other processes hold memory of this node's GPUs.",
    "fragmentation": "Start it again with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    "host_oom": "Ask for more host memory (`--mem`), or use fewer data-loader workers, less pinning, less offload.",
    "node": "Start it again on other nodes (`sbatch --exclude`), and report the node to the administrators.",
    "gpu": "Start it again without this node (`sbatch --exclude`), and report the GPU to the administrators.",
    "gpu_fault": "Try once more on another node. If it ends in the same way, a kernel of the script is at fault:"
    " look for it with CUDA_LAUNCH_BLOCKING=1.",
    "hang": "Start it again from the newest checkpoint. If it recurs, find the rank that is behind, with"
    " TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and NCCL_DEBUG=INFO.",
    "storage": "Make room, or wait until the file system answers; then start it again.",
    "checkpoint": "Resume from the checkpoint before it.",
    "lost": "Submit it again; if it recurs, ask the administrators.",
    "crash": "Start it again once. The same error at the same place is a mistake in the script.",
    "deterministic": "Mend it first: started again unchanged, it fails in the same way.",
    "diverged": "Change the training: started again unchanged, it diverges again.",
    "pruned": "Nothing: its campaign ended it.",
    "refused": "Change what Slurm refuses, then submit it again.",
    "cancelled": "Submit it again if that was not meant.",
}
"""By failure class, what somebody does who starts jobs by hand."""

_UNKNOWN: Final = "Add evidence: `--job ID` for Slurm's word, the logs of the other ranks, standard error."
_FIELDS: Final = {
    "`python:` or `slurm.setup`": "the batch script",
    "`slurm.setup`": "the batch script",
    "`python:`": "the batch script",
    "`command:`": "the command line",
    "`workdir:`": "`--chdir`",
    "`env`": "the environment",
    "the `deepspeed:` section": "the DeepSpeed configuration",
    "`slurm:`": "the batch script",
    "train.lr": "the learning rate",
    "slurm.mem": "`--mem`",
    "before the campaign": "before the job",
}
"""What hints call by a spec's names, for somebody who has no spec."""


@verb
@click.argument("paths", metavar="[PATH...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--job", "job_id", metavar="ID", help="Also ask Slurm about this job; without PATH, read its logs.")
@format_options
def diagnose(paths: Sequence[Path], job_id: str | None, form: str) -> int:
    """Diagnose why a job ended, whoever started it.

    PATH is a log (of Slurm, a launcher or a rank), a folder of logs, or the folder of an attempt. All are taken to be
    of one job. Needs no spec and no store, and writes nothing. Of a large log the beginning and the end are read.

    Prints the failure class, the line that proves it, and what to do next. Exit code 1: nothing shows why it ended.

    Examples:
      campaign diagnose slurm-4711.out
      campaign diagnose logs/rank*.log --job 4711
      campaign diagnose --job 4711 -o json | jq -r .class
    """
    from ..campaign.diagnosis import explain
    from ..executors.one_job import find_job

    job = find_job(job_id) if job_id else None
    if not paths and job is None:
        raise UserError("nothing to diagnose", "`campaign diagnose LOG...`, `campaign diagnose --job ID`, or both")
    if not paths and job and not job.view.terminal:
        raise UserError(f"job {job_id} has not ended: {job.view.state}", "name its logs to see what they show so far")
    logs = [log for log in job.logs if log.is_file()] if job else []
    found = explain(paths or logs, job)
    if form == TABLE:
        echo_page("\n".join(_lines(found, page_for(sys.stdout))))
    else:
        echo_rows(form, _document(found), lambda document: [document])
    return EXIT_OK if found.kind else EXIT_FAILED


def _document(found: Explained) -> dict[str, Any]:
    job = found.job
    return {
        "class": found.kind and str(found.kind),
        "sure": str(found.sure),
        "reason": found.reason,
        "rule": found.rule,
        "proof": found.proof and vars(found.proof),
        "rank": found.rank,
        "node": found.node,
        "next": NEXT[found.kind] if found.kind else _UNKNOWN,
        "hint": _hint(found),
        "job": job and {name: getattr(job.view, name) for name in ("job_id", "state", "exit_code", "reason", "nodes")},
        "files": [vars(file) for file in found.files],
    }


def _hint(found: Explained) -> str:
    hint = found.hint
    for name, plain in _FIELDS.items():
        hint = hint.replace(name, plain)
    return clean(hint)


def _lines(found: Explained, page: Page) -> Iterator[str]:
    title = words(str(found.kind)) if found.kind else "unknown"
    reason = clean(found.reason) or ("" if found.kind else "nothing in what was read shows why it ended")
    yield page.paint(f"{title}: {reason}" if reason else title, Style.BOLD)
    if proof := found.proof:
        where = source(proof.file, proof.line or 0)
        where += f", line {proof.line_from_end:,} from its end" if proof.line_from_end else ""
        yield page.paint(f"proof: {where}{f', rule {found.rule}' if found.rule else ''} ({found.sure})", Style.DIM)
        yield page.paint(f"       {clean(proof.text.splitlines()[0] if proof.text else '')}", Style.DIM)
    who = [f"rank {found.rank}"] if found.rank is not None else []
    who += [f"node {clean(found.node)}"] if found.node else []
    if who:
        yield f"from:  {', '.join(who)}"
    if found.job:
        view = found.job.view
        yield f"job:   {view.job_id} {view.state} {view.exit_code} {clean(view.nodes)}".rstrip()
    yield f"next:  {NEXT[found.kind] if found.kind else _UNKNOWN}"
    if hint := _hint(found):
        yield f"hint:  {hint}"
    partly = [file for file in found.files if file.read_bytes < file.size_bytes]
    if partly:
        total = size(sum(file.size_bytes for file in partly))
        yield page.paint(f"Read only the beginning and the end of {count(len(partly), 'file')} ({total}).", Style.DIM)
