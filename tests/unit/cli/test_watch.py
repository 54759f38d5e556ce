"""What a watch says of what is in its way: once when it comes, once when it is over."""

from __future__ import annotations

from collections.abc import Iterator

from dscampaign.db.errors import StoreMissing, StoreUnreachable
from dscampaign.orchestrator.api.passes import Obstacles
from dscampaign.orchestrator.cli.watch import patiently


def test_an_obstacle_is_said_once_and_so_is_its_end() -> None:
    now_s = [0.0]
    obstacles = Obstacles(lambda: now_s[0])
    said = []
    folder, store = {"folder": "folder away"}, {"store": "store away"}
    for seen in ({}, folder, folder, store, folder, {}, {}, folder):
        said.append(obstacles.news(seen))
        now_s[0] += 10
    assert said == [
        [],
        ["folder away"],
        [],
        ["store away"],
        [],
        ["recovered after 40 s; reconciling again"],
        [],
        ["folder away"],
    ]


def test_the_last_word_waits_for_the_store() -> None:
    answers: Iterator[Exception | str] = iter([StoreUnreachable("away"), StoreMissing("gone"), "done"])

    def read() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(read, sleep=lambda _: None) == "done"
