"""The command weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dscampaign.orchestrator.campaign.location import PlaceOptions, locate
from dscampaign.orchestrator.errors import EXIT_OK, UserError
from dscampaign.orchestrator.formatting import size

from .completion import names
from .options import json_option, store_options, verb
from .output import echo_either, echo_err

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.weights import WrittenWeights

_DTYPES: Final = ("bf16", "fp16", "fp32")


@verb
@click.argument("words", metavar="[NAME] RUN", nargs=-1, shell_complete=names)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=1), help="Step of the checkpoint.  [default: the newest]")
@click.option("--best", is_flag=True, help="Take the checkpoint with the lowest held-out loss.")
@click.option("--dtype", type=click.Choice(_DTYPES), help="Number format.  [default: that of the training]")
@store_options
@json_option
def weights(
    words: Sequence[str], out: Path, step: int | None, best: bool, dtype: str | None, place: PlaceOptions, as_json: bool
) -> int:
    """Write a run's weights in the format of Transformers.

    OUT becomes a folder with configuration, safetensors and tokenizer, which `from_pretrained` loads, with the same
    loss on held-out text as the checkpoint, for any ZeRO stage, offload and number of ranks. It appears complete or not
    at all. Needs the training stack on this machine, but no GPU.

    Examples:
      campaign weights sweep zero_stage-3 ./model
      campaign weights sweep zero_stage-3 ./best --best
      campaign weights sweep zero_stage-3 ./model-fp32 --step 5000 --dtype fp32
    """
    from dscampaign.orchestrator.campaign.lookup import find_run
    from dscampaign.orchestrator.campaign.weights import WeightsChoice, plan_weights, require_free, write_weights

    if best and step is not None:
        raise UserError("--best chooses the step", "leave --step or --best out")
    out = out.absolute()
    require_free(out)
    where = locate(place, words)
    campaign, run = find_run(opened := where.open(), where.words)
    plan = plan_weights(opened, campaign, run, WeightsChoice(step, best, dtype))
    for one in plan.passed_over:
        echo_err(f"passed over {one}")
    echo_err(f"reading the checkpoint of step {plan.source.step:,}, {size(plan.source.manifest.size_bytes)}")
    done = write_weights(plan, out)
    echo_either(as_json, lambda: done.document, lambda _: _page(done))
    return EXIT_OK


def _page(done: WrittenWeights) -> str:
    loss = "" if done.eval_loss is None else f", held-out loss {done.eval_loss:.4f}"
    lines = [
        f"{done.out}: {done.model}, {done.parameters:,} parameters in {done.dtype}, {size(done.size_bytes)}",
        f"  weights     run {done.run} of {done.campaign}, step {done.step:,}{loss}",
        f"  tokenizer   {done.tokenizer}",
        f'  load it     AutoModelForCausalLM.from_pretrained("{done.out}", dtype="auto")',
    ]
    return "\n".join(lines)
