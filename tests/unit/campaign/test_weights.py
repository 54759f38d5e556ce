"""Which checkpoint weights are written from, and that the folder they go to is whole or as it was."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.store import Store
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.checkpoint import Checkpoint, Manifest
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.campaign.weights import (
    WeightsPlan,
    WrittenWeights,
    choose,
    kept_in,
    plan_weights,
    require_free,
    write_weights,
)
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.campaigns import open_store, submit

ANSWER = {"parameters": 7, "model": "Tiny", "tokenizer": "bytes"}
WRITES = f"""\
cd "$(sed 's/.*"out": "\\([^"]*\\)".*/\\1/')" && echo weights > model.safetensors
chmod 600 model.safetensors && echo 'a warning' >&2
echo 'a word of a library'; echo '{json.dumps(ANSWER)}'
"""


def config(**train: Any) -> RunConfig:
    return RunConfig.model_validate({"train": {"model": "gpt2-small", "dataset": {"path": "x"}, "steps": 9, **train}})


def saved(step: int, eval_loss: float | None = None) -> Checkpoint:
    return Checkpoint(Path(f"g0001-step{step:08d}"), Manifest(step, "h", 2, 3, 1, 8, {}, eval_loss=eval_loss))


KEPT = [saved(9, 2.5), saved(6, 2.25), saved(3)]


@pytest.mark.parametrize(
    ("wanted", "kept", "message", "hint"),
    [
        ({}, [], "run r has no complete checkpoint", "train.checkpoint_every"),
        ({"step": 4}, KEPT, "has no checkpoint of step 4", "one of: 9, 6, 3 (train.keep_checkpoints: "),
        ({"best": True}, [saved(9)], "was evaluated", "train.eval_every"),
    ],
)
def test_an_error_names_the_reason_for_no_checkpoint(
    wanted: dict[str, Any], kept: list[Checkpoint], message: str, hint: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        choose("r", config(), kept, **wanted)
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("train", "dtype"),
    [
        ({"precision": "bf16"}, "bf16"),
        ({"precision": "tf32"}, "fp32"),
        ({"precision": "bf16", "engine": "ddp"}, "fp32"),
        ({"precision": "bf16", "engine": "fsdp2"}, "fp32"),
    ],
)
def test_weights_are_written_in_the_format_that_the_run_kept_them_in(train: dict[str, Any], dtype: str) -> None:
    assert kept_in(config(zero_stage=0, **train)) == dtype


@pytest.fixture
def plan(tmp_path: Path) -> WeightsPlan:
    """Of a whole checkpoint, with a stand-in for the Python that writes."""
    folder = tmp_path / "checkpoints"
    folder.mkdir(mode=0o700)
    source = checkpoint.verify(save(folder, 9))
    return WeightsPlan("r", source, "bf16", {}, stand_in(tmp_path, WRITES), "")


SPEC = """\
name: sweep
executor: local
train: {model: gpt2, tokenizer: bytes, dataset: wikitext, global_batch: 8, steps: 9, checkpoint_every: 3}
"""


def test_a_plan_passes_over_incomplete_checkpoints(tmp_path: Path) -> None:
    spec, store = tmp_path / "spec.yaml", open_store(f"sqlite:///{tmp_path}/campaign.db")
    spec.write_text(SPEC)
    campaign = submit(spec, tmp_path, store)
    with store.read() as conn:
        (run,) = queries.runs(conn, campaign.id)
    with pytest.raises(UserError, match="has no complete checkpoint"):
        plan_weights(store, campaign, run)
    folder = CampaignPaths(tmp_path, "sweep").run(run.name).checkpoints(run.config_hash)
    folder.mkdir(parents=True)
    shards = [save(folder, step) / "shard.pt" for step in (3, 6)]
    made = plan_weights(store, campaign, run)
    assert (made.source.step, made.dtype) == (6, "bf16")
    assert (made.train["micro_batch"], made.train["accumulation"], made.train["world_size"]) == (8, 1, 1)
    shards[1].unlink()
    made = plan_weights(store, campaign, run, dtype="fp32")
    assert (made.source.step, made.dtype) == (3, "fp32")
    shards[0].write_bytes(b"s")
    with pytest.raises(UserError, match="no checkpoint that can be read"):
        plan_weights(store, campaign, run)
    store.close()


def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, CampaignRow, RunRow]:
    """A run whose Python and folder somebody else may have written into its store."""
    spec, store = tmp_path / "spec.yaml", open_store(f"sqlite:///{tmp_path}/campaign.db")
    spec.write_text(f"{SPEC}python: {stand_in(tmp_path, 'touch ran')}\n")
    campaign = submit(spec, tmp_path, store)
    with store.read() as conn:
        (run,) = queries.runs(conn, campaign.id)
    folder = CampaignPaths(tmp_path, "sweep").run(run.name).checkpoints(run.config_hash)
    folder.mkdir(parents=True)
    save(folder, 9)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return store, campaign, run


@pytest.mark.parametrize("theirs", [False, True])
def test_only_a_store_of_the_user_chooses_the_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: bool
) -> None:
    store, campaign, run = planted(tmp_path, monkeypatch)
    store.close()
    database = tmp_path / "campaign.db"
    database.chmod(0o666 if theirs else 0o600)
    with closing(open_store(f"sqlite:///{database}")) as opened:
        made = plan_weights(opened, campaign, run)
    own = (str(tmp_path / "python"), str(tmp_path))
    assert (made.python, made.workdir) == ((sys.executable, "") if theirs else own)


COMMANDS = (
    *("status", "list", "explain sweep sweep", "logs sweep sweep", "report", "recommend", "export", "describe"),
    *("retry sweep --all", "reconcile sweep", "cancel sweep --all", "rm sweep --yes", "gc --yes", "share sweep"),
    *("db prune --keep-every 10", "promote sweep sweep", "submit spec.yaml --yes", "plan spec.yaml", "doctor"),
    "weights sweep sweep out",
)


@pytest.mark.parametrize("words", COMMANDS)
def test_no_program_from_a_store_of_others_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    store, _, run = planted(tmp_path, monkeypatch)
    store.close()
    (tmp_path / "campaign.db").chmod(0o666)
    if "spec.yaml" in words:
        (tmp_path / "spec.yaml").write_text(SPEC)  # the user's own
    started: list[str] = []

    def start(*given: object, **options: object) -> None:
        started.append(f"{given} {options.get('cwd')}")
        raise OSError("nothing is started here")

    monkeypatch.setattr(subprocess, "Popen", start)
    with suppress(Exception):  # that of a writer which was not started
        main([*words.replace("sweep sweep", f"sweep {run.name}").split(), "--dir", str(tmp_path)])
    assert not [line for line in started if str(tmp_path / "python") in line], started
    assert not [line for line in started if line.endswith(f" {tmp_path}")], started


def save(folder: Path, step: int) -> Path:
    draft = checkpoint.begin(folder, 1, step)
    (draft / "shard.pt").write_bytes(b"state")
    files = checkpoint.seal(draft, [draft / "shard.pt"])
    return checkpoint.commit(draft, Manifest(step, "h", 2, 3, 1, 8, files, eval_loss=2.5)).path


def stand_in(folder: Path, text: str) -> str:
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{text}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"checkpoints", "python"}


@pytest.mark.parametrize("there", [False, True])
def test_the_folder_appears_whole(plan: WeightsPlan, tmp_path: Path, there: bool) -> None:
    out = tmp_path / "model"
    if there:
        out.mkdir()
    assert write_weights(plan, out) == WrittenWeights("Tiny", 7, "bytes", 8)
    assert left(tmp_path) == {"model"}
    assert (out / "model.safetensors").stat().st_mode & 0o777 == out.stat().st_mode & 0o666


@pytest.mark.parametrize(
    ("script", "message", "hint"),
    [
        ("cat >/dev/null; echo 'OSError: no such tokenizer' >&2; exit 1", "cannot be written: OSError: no such", ""),
        (
            "cat >/dev/null; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1",
            "No module",
            "pip install",
        ),
        ("kill -9 $$", "signal 9", "memory"),
    ],
)
def test_a_failure_leaves_nothing(script: str, message: str, hint: str, plan: WeightsPlan, tmp_path: Path) -> None:
    stand_in(tmp_path, script)
    with pytest.raises(UserError, match=message) as raised:
        write_weights(plan, tmp_path / "model")
    assert hint in (raised.value.hint or "")
    assert left(tmp_path) == set()


def test_existing_files_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "full/notes.txt", "link"):
        with pytest.raises(UserError, match="is not an empty folder"):
            require_free(tmp_path / name)
    with pytest.raises(UserError, match="no such folder"):
        require_free(tmp_path / "away" / "model")
    require_free(tmp_path / "new")
