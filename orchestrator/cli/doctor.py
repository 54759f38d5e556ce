"""The command doctor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.errors import UserError

from .options import json_option, store_options, verb
from .output import echo_either, echo_err
from .spec_file import read_submission, set_option


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
    spec: Path | None, on_node: bool, wait_min: float, sets: Sequence[str], place: PlaceOptions, as_json: bool
) -> int:
    """Check whether machine, cluster and store are ready.

    With SPEC, also checks that the cluster has what the spec asks for. With --on-node, a job on the spec's partition,
    with the GPUs of a node, checks that node: driver, GPUs and the links between them, memory, the disk at nvme_path,
    torch, DeepSpeed and its operators, an all-reduce by the launcher, clocks, and whether it reaches the
    database. With `executor: local`, this machine is that node.

    Each check is ok, a note, a warning or a problem, with what to do next. Exit code 1: there is a problem. 3: the only
    problem is that Slurm or the store did not respond.

    Examples:
      campaign doctor
      campaign doctor campaign.yaml --on-node
      campaign doctor campaign.yaml --json | jq '.checks[] | select(.verdict == "problem")'
    """
    from dscampaign.orchestrator.doctor.check import exit_code
    from dscampaign.orchestrator.doctor.requirements import requirements_of
    from dscampaign.orchestrator.doctor.run import doctor as look

    from .pages.doctor import doctor_document, doctor_page
    from .watch import terminated_as_interrupted

    if on_node and spec is None:
        raise UserError("--on-node needs a spec", f"`{typed('doctor', SPEC, '--on-node')}`")
    submission, where = read_submission(spec, sets, place) if spec else (None, locate(place))
    requirements = requirements_of(submission.runs) if submission else []
    with terminated_as_interrupted():
        checks = look(where, requirements, on_node=on_node, wait_s=60 * wait_min, tell=echo_err)
    echo_either(as_json, lambda: doctor_document(checks), lambda page: doctor_page(checks, page))
    return exit_code(checks)
