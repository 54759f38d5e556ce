"""A script that knows only its arguments: they are those of each attempt."""

from __future__ import annotations

import json
from pathlib import Path

from dscampaign.db.states import RunState
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit

SPEC = """\
name: arguments
executor: local
ranks_per_node: 1
local: {{parallel: 2, mem_per_process: 2G}}
python: {launcher}
env: {{DS_ACCELERATOR: cpu, BATCH: "{{micro_batch}}"}}
retry: {{backoff_s: 0}}
train: {{global_batch: 8, micro_batch: 4}}
matrix: {{flash: [true, false]}}
command: >
  train.py --batch_size {{micro_batch}} --accumulate={{accumulation}} --batch {{global_batch}} --seed {{seed}}
  [--flash {{flash}}] --out {{checkpoint_dir}} --text {{{{run}}}} '{{"lr": {{lr}}}}' --config {{ds_config}}
  [--resume {{resume_from}}] [--tag={{run}}/{{resume_from}}]
"""

SCRIPT = """\
import json, os, sys
arguments = sys.argv[1:]
def value(name):
    return arguments[arguments.index(name) + 1]
size = int(value("--batch_size"))
assert os.environ["BATCH"] == str(size) == os.environ["CAMPAIGN_MICRO_BATCH"]
assert json.load(open(value("--config")))["train_micro_batch_size_per_gpu"] == size
with open(os.path.join(os.environ["CAMPAIGN_RUN_DIR"], "seen"), "a") as seen:
    seen.write(json.dumps(arguments) + "\\n")
if size == 2:
    open(os.path.join(value("--out"), "last.pt"), "w").write("a state")
memory = bytearray(size << 30)
"""


def test_a_script_gets_a_smaller_batch_and_its_checkpoint_by_arguments_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(launcher=stand_in(tmp_path)))
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    done = run_to_end(store, submit(spec, tmp_path, store))
    store.close()
    assert set(done.states().values()) == {RunState.COMPLETED}
    for name in done.runs:
        folder = Path(done.campaign.dir) / "arguments" / "runs" / name
        seen = [json.loads(line) for line in (folder / "seen").read_text().splitlines()]
        [out] = (folder / "checkpoints").iterdir()
        flag = ["--flash"] if name == "flash-true" else []
        for attempt, (size, accumulation, before) in enumerate(((4, 2, ""), (2, 4, ""), (1, 8, f"{out}/last.pt")), 1):
            config = str(folder / f"g{attempt:04d}" / "ds_config.json")
            expected = [
                "--batch_size",
                str(size),
                f"--accumulate={accumulation}",
                "--batch",
                "8",
                "--seed",
                "42",
                *flag,
            ]
            expected += ["--out", str(out), "--text", "{run}", '{"lr": 0.0003}', "--config", config]
            expected += ["--resume", before, f"--tag={name}/{before}"] if before else []
            assert seen[attempt - 1] == expected
        assert len(seen) == 3
