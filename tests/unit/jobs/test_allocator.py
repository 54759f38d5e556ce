"""What PyTorch's allocator is told, and by whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.jobs.agent import launch
from dscampaign.jobs.agent.node import Node
from dscampaign.jobs.shared import allocator
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.tests.support.attempt import make_payload

GPUS = 2
ON = "expandable_segments:True"


def told(folder: Path, base: dict[str, str], **values: object) -> str:
    payload = make_payload(folder, **{"gpus_per_node": GPUS, "train": {"seq_len": 8}, **values})
    node = Node("7_0", 0, "n0", "4,5")
    return allocator.setting(launch.environment(payload, AttemptPaths(Path(payload.attempt_dir)), node, "", base, 9))


def test_the_built_in_training_joins_fragments_by_default(tmp_path: Path) -> None:
    assert told(tmp_path, {}) == ON


@pytest.mark.parametrize("values", [{"train": None}, {"gpus_per_node": 0}, {"env": {"DS_ACCELERATOR": "cpu"}}])
def test_neither_a_script_of_one_s_own_nor_ranks_on_cpus_are_told_anything(
    tmp_path: Path, values: dict[str, object]
) -> None:
    assert told(tmp_path, {}, **values) == ""


@pytest.mark.parametrize(
    ("setting", "on"),
    [
        (ON, True),
        (f"max_split_size_mb:128, {ON} ,garbage_collection_threshold:0.6", True),
        ("expandable_segments:False", False),
        ("backend:cudaMallocAsync", False),
        ("", False),
    ],
)
def test_whether_fragments_are_joined(setting: str, on: bool) -> None:
    assert allocator.joins_fragments(setting) is on
