"""The command doctor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..campaign.location import Location, locate
from ..errors import UserError
from .common import echo, echo_err, echo_json, json_option, page_for, read_submission, store_options, verb
from .spec import set_option

if TYPE_CHECKING:
    from ..doctor.requirements import Requirements


@verb
@click.argument("spec", metavar="[SPEC]", type=click.Path(path_type=Path), required=False)
@click.option("--on-node", is_flag=True, help="Also check a node, with a short job.")
@click.option(
    "--wait",
    "wait_min",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    metavar="MINUTES",
    help="Longest time that this job may wait in the queue.",
)
@set_option
@store_options
@json_option
def doctor(
    spec: Path | None,
    on_node: bool,
    wait_min: float,
    sets: Sequence[str],
    dir: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Check whether machine, cluster and store are ready.

    With SPEC, also checks that the cluster has what the spec asks for. With --on-node, a job on the spec's partition,
    with the GPUs of one node, checks that node: driver, GPUs and the links between them, memory, the disk at nvme_path,
    torch, DeepSpeed and its operators, an all-reduce by DeepSpeed's launcher, clocks, and whether it reaches the
    database. With `executor: local`, this machine is that node.

    Each check is ok, a note, a warning or a problem, with what to do next. Exit code 1: there is a problem. 3: the only
    problem is that Slurm or the store did not respond.

    Examples:
      campaign doctor
      campaign doctor campaign.yaml --on-node
      campaign doctor campaign.yaml --json | jq '.checks[] | select(.verdict == "problem")'
    """
    from ..doctor.check import exit_code
    from ..doctor.run import doctor as look
    from .pages.doctor import doctor_document, doctor_page
    from .watch import terminated_as_interrupted

    if on_node and spec is None:
        raise UserError("--on-node needs a spec: which partition, how many GPUs?", "campaign doctor SPEC --on-node")
    where, requirements = _asked(spec, sets, dir, store)
    with terminated_as_interrupted():
        checks = look(where, requirements, on_node=on_node, wait_s=60 * wait_min, tell=echo_err)
    if as_json:
        echo_json(doctor_document(checks))
    else:
        echo(doctor_page(checks, page_for(sys.stdout)))
    return exit_code(checks)


def _asked(
    spec: Path | None, sets: Sequence[str], dir: str | None, store: str | None
) -> tuple[Location, list[Requirements]]:
    if spec is None:
        return locate(dir, store), []
    from ..doctor.requirements import requirements_of

    submission, where = read_submission(spec, sets, dir, store)
    return where, requirements_of(submission.runs)
