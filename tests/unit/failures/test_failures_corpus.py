"""The rules against the corpus: what must hold over all of it, whatever single cases come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dscampaign.jobs.agent.evidence import LogLine, NodeOutcome, RankEnd
from dscampaign.orchestrator.failures.classify import classify
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.tests.corpus import Case, load
from dscampaign.tests.corpus.score import Judged, accuracy, judge, precision, recall

MISTAKES = [FailureClass.DETERMINISTIC, FailureClass.CANCELLED, FailureClass.COMPLETED, FailureClass.DIVERGED]
"""The classes after which nothing is tried again."""

MISJUDGED = {
    # A class of its own for a device that others fill is read from torch's and CUDA's errors alone.
    "vllm-free-memory-on-startup",
    # Its message names what may pass: tried again.
    "loss on another device than the trainer",
    # Whether a job that left nothing was lost is decided by its claim, in reconcile/attempt_state.py.
    "job vanished from the controller without a trace",
    "no job ever took the attempt",
    # What others write may be half there, and a client that trips over a key may have got an odd answer: tried again.
    "parquet-lfs-pointer",
    # A segmentation fault counts as the machine's once, whatever its log says of threads.
    "openblas-without-threads",
    # The C library's words in other languages, without their number, are not read: tried again.
    "full disk in German",
    "quota in Japanese",
    # Signs that only a few ends have: a monitor's own words, a limit nearly reached, a loss that was no number before.
    "gradients not finite before a device assert",
    "systemd's killer of hungry units",
    # Of the second blind set, for which no rule was written, so that its figure stays one of first contact.
    "bitsandbytes-named-symbol-not-found",
    "matching-cost-not-finite",
}
"""Known to be taken for something else."""

NEVER_CLASSIFIED = {FailureClass.LOST, FailureClass.PRUNED, FailureClass.REFUSED, FailureClass.RETURNED}
"""Of attempts that never ran: decided where they are submitted."""

ORDERLY = frozenset({FailureClass.COMPLETED, FailureClass.COMPLETED_EARLY, FailureClass.STOPPED})


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return load()


@pytest.fixture(scope="module")
def judged(cases: Sequence[Case]) -> list[Judged]:
    return judge(cases)


def wrong(judged: list[Judged]) -> list[str]:
    """What to read when a demand is not met."""
    return [f"{one.case.name}: {one.case.label}, not {one.verdict.kind}" for one in judged if not one.right]


def test_the_corpus_is_large_enough_to_say_something(cases: Sequence[Case]) -> None:
    labels = Counter(case.label for case in cases)
    assert len(cases) >= 150
    assert sum(case.hard for case in cases) >= 40
    classified = set(FailureClass) - NEVER_CLASSIFIED
    assert classified <= set(labels)
    assert min(labels[kind] for kind in classified) >= 4
    assert len({case.name for case in cases}) == len(cases)
    assert {case.batch for case in cases} == set(range(1, 17))


def test_most_verdicts_are_right(judged: list[Judged]) -> None:
    assert accuracy(judged) >= 0.95, wrong(judged)


def test_which_cases_are_misjudged_is_known(judged: list[Judged]) -> None:
    assert {one.case.name for one in judged if not one.right} == MISJUDGED, wrong(judged)


@pytest.mark.parametrize("kind", MISTAKES)
def test_what_is_not_tried_again_is_surely_that(judged: list[Judged], kind: FailureClass) -> None:
    taken = [f"{one.case.name} ({one.case.label})" for one in judged if one.verdict.kind is kind and not one.right]
    assert precision(judged, kind) >= 0.99, taken


def test_nothing_that_would_recover_is_ended(judged: list[Judged]) -> None:
    final = [one for one in judged if one.verdict.kind.policy.run is not None]
    assert [one.case.name for one in final if FailureClass(one.case.label).policy.run is None] == []


@pytest.mark.parametrize("kind", sorted(set(FailureClass) - NEVER_CLASSIFIED))
def test_no_class_is_lost_on_the_rules(judged: list[Judged], kind: str) -> None:
    assert recall(judged, kind) >= 0.8, wrong([one for one in judged if one.case.label == kind])
    assert precision(judged, kind) >= 0.8


def test_what_only_sounds_like_another_class_is_told_apart(judged: list[Judged]) -> None:
    hard = [one for one in judged if one.case.hard]
    assert accuracy(hard) >= 0.95, wrong(hard)


def test_the_node_is_named_where_one_is_to_blame(judged: list[Judged]) -> None:
    assert [one.case.name for one in judged if not one.host_right] == []


def test_every_verdict_but_the_vague_has_its_proof(judged: list[Judged]) -> None:
    vague = {*ORDERLY, FailureClass.CRASH}
    bare = [one.case.name for one in judged if one.verdict.kind not in vague and not one.verdict.rule]
    assert bare == []


def test_no_verdict_rests_on_an_echo(judged: list[Judged]) -> None:
    """A case whose only errors are echoes is never a mistake."""
    for one in judged:
        if one.verdict.kind is FailureClass.DETERMINISTIC:
            assert one.verdict.line is not None, one.case.name
            assert "remote process exited" not in one.verdict.line.text
            assert "Connection closed by peer" not in one.verdict.line.text


# -- what must not matter --------------------------------------------------------------------------------------

NOISE = """\
[2026-11-21 03:00:01,112] [INFO] [runner.py:630:main] cmd = python -u train.py --note 'TypeError: no'
[2026-11-21 03:00:03,771] [INFO] [launch.py:281:main] process 4000 spawned with command: ['python', 'No module named x']
[2026-11-21 03:00:09,003] [INFO] [config.py:1007:print]   note ......................... ValueError: no
    "on_error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
Namespace(lr=0.1, note='ModuleNotFoundError: No module named x')
{'note': 'SyntaxError: no', 'other': 'error: unrecognized arguments: --x'}
retry: {rules: [{match: 'invalid device ordinal', action: stop}]}
WARNING: No module named 'apex', falling back to torch
/env/lib/python3.11/site-packages/x.py:12: UserWarning: FileNotFoundError: [Errno 2] No such file or directory
2026-11-21 03:00:01 WARNING x: OSError: [Errno 28] No space left on device, retrying
Exception ignored in: <function Pool.__del__ at 0x7f>
Traceback (most recent call last):
  File "/env/lib/python3.11/multiprocessing/pool.py", line 271, in __del__
AssertionError: can only test a child process
n0:97:176 [0] NCCL INFO libnccl-net.so: cannot open shared object file: No such file or directory
  3%|▎         | 3/100 [00:04<02:21,  1.46s/it, error=0.1]
""".splitlines()


def with_noise(outcome: NodeOutcome) -> NodeOutcome:
    """The same node, in whose logs a great deal of frightening and harmless things are said first."""
    files = {line.file for line in outcome.lines} or {f"launcher-{outcome.node_rank}.log"}
    lines: list[LogLine] = []
    for file in sorted(files):
        lines += [LogLine(file, number, text) for number, text in enumerate(NOISE, 1)]
        own = [line for line in outcome.lines if line.file == file]
        lines += [LogLine(file, line.number + len(NOISE), line.text) for line in own]
    return replace(outcome, lines=tuple(lines))


def with_echo(outcome: NodeOutcome, kind: str, message: str) -> NodeOutcome:
    """The same node, with one rank more, whose clock is slow: its echo seems to come first."""
    error = {"type": kind, "message": message, "trace": [], "ts": 0.001}
    echo = [RankEnd(99, 1, error, 4099)] if outcome.ranks else []  # of a node that started ranks
    return replace(outcome, ranks=(*outcome.ranks, *echo))


def changed(cases: Sequence[Case], judged: list[Judged], change: Callable[[NodeOutcome], NodeOutcome]) -> list[str]:
    """The cases that get another class when their outcomes are changed so."""
    found = []
    for case, before in zip(cases, judged, strict=True):
        ended = replace(case.ended, outcomes=[change(outcome) for outcome in case.ended.outcomes])
        after = classify(ended)
        if after.kind != before.verdict.kind:
            found.append(f"{case.name}: {before.verdict.kind}, then {after.kind} ({after.reason})")
    return found


def test_noise_changes_no_verdict(cases: Sequence[Case], judged: list[Judged]) -> None:
    assert changed(cases, judged, with_noise) == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:1, remote process exited\nncclRemoteError: failed",
        ),
        (
            "builtins.RuntimeError",
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        ),
        ("torch.distributed.DistStoreError", "store->get('0') got error: Connection reset by peer"),
    ],
)
def test_an_echo_changes_no_verdict_whenever_it_comes(
    cases: Sequence[Case], judged: list[Judged], kind: str, message: str
) -> None:
    ended_badly = [(case, one) for case, one in zip(cases, judged, strict=True) if one.verdict.kind not in ORDERLY]
    some, verdicts = [case for case, _ in ended_badly], [one for _, one in ended_badly]
    assert changed(some, verdicts, lambda outcome: with_echo(outcome, kind, message)) == []


def test_the_order_of_nodes_and_ranks_does_not_matter(cases: Sequence[Case], judged: list[Judged]) -> None:
    for case, before in zip(cases, judged, strict=True):
        turned = [replace(o, ranks=o.ranks[::-1]) for o in reversed(case.ended.outcomes)]
        assert classify(replace(case.ended, outcomes=turned)).kind == before.verdict.kind, case.name
