"""The memory ledger: whatever was observed, what follows divides, never grows, and never repeats a failure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dscampaign.db.records import MemoryObservation
from dscampaign.orchestrator.memory.config_changes import changed
from dscampaign.orchestrator.memory.prediction import (
    HEADROOM,
    OOM_EXPIRES_S,
    Ledger,
    after_oom,
    believed,
    memory_key,
    start_micro_batch,
)
from dscampaign.orchestrator.spec.batch_size import divisors
from dscampaign.orchestrator.spec.model import RunConfig

H100 = "key|NVIDIA H100|2.11"
USABLE_GB = 84.0


def seen(micro: int, peak_gb: float | None = None, *, oom: bool = False, **values: Any) -> MemoryObservation:
    """An observation on a GPU of 84 GB."""
    given = {"key": H100, "usable_gb": USABLE_GB, **values}
    return MemoryObservation(attempt_id=1, micro_batch=micro, oom=oom, peak_allocated_gb=peak_gb, **given)


def probed(micro: int, base_gb: float, sample_gb: float, **values: Any) -> MemoryObservation:
    """What an attempt says before its first step."""
    return seen(micro, after_init_gb=base_gb, per_sample_gb=sample_gb, **values)


# -- the line --------------------------------------------------------------------------------------------------


@given(
    a=st.floats(0, 50), b=st.floats(0.01, 5), sizes=st.lists(st.integers(1, 512), min_size=2, max_size=6, unique=True)
)
def test_two_sizes_give_the_line(a: float, b: float, sizes: list[int]) -> None:
    ledger = Ledger.of(seen(micro, a + b * micro) for micro in sizes)
    assert ledger.predict_gb(100) == pytest.approx(a + 100 * b, rel=1e-6, abs=1e-6)


@given(a=st.floats(1, 50), b=st.floats(0.01, 5), micro=st.integers(1, 512))
def test_one_size_gives_the_line_with_what_a_sample_takes(a: float, b: float, micro: int) -> None:
    ledger = Ledger.of([seen(micro, a + b * micro, per_sample_gb=b, after_init_gb=0.3)])
    assert ledger.predict_gb(100) == pytest.approx(a + 100 * b)


def test_peaks_of_the_optimizers_step_are_no_line() -> None:
    """At micro-batches 1 to 4 a small model's peak is the optimizer's: flat, until the samples outgrow it."""
    ledger = Ledger.of([seen(1, 9.0, per_sample_gb=0.5), seen(2, 9.0), seen(4, 9.01)])
    assert ledger.predict_gb(100) == pytest.approx(9.01 - 2.0 + 50.0)


# -- what fits -------------------------------------------------------------------------------------------------


def test_what_was_seen_to_train_fits_above_the_headroom() -> None:
    ledger = Ledger.of([seen(32, 42.0), seen(64, 83.0)])
    assert ledger.fits(64)
    assert ledger.fits(33)
    assert ledger.fits(65) is False


def test_what_ran_out_of_memory_once_does_not_fit() -> None:
    ledger = Ledger.of([seen(32, 42.0), seen(64, 83.0), seen(64, oom=True)])
    assert (ledger.fits(64), ledger.fits(128), ledger.fits(32)) == (False, False, True)


def test_the_smallest_device_counts() -> None:
    small = {"key": "key|NVIDIA A100|2.11", "usable_gb": 39.0}
    ledger = Ledger.of([probed(64, 2.0, 1.0), probed(64, 2.0, 1.0, **small)])
    assert ledger.usable_gb == 39.0
    assert (ledger.fits(35), ledger.fits(36)) == (True, False)


def test_memory_that_others_held_once_does_not_count() -> None:
    ledger = Ledger.of([probed(8, 2.0, 1.0), probed(8, 2.0, 1.0, usable_gb=20.0), probed(8, 2.0, 1.0)])
    assert ledger.usable_gb == USABLE_GB


observations = st.builds(
    lambda micro, oom, peak, sample, base, usable: seen(
        micro, None if oom else peak, oom=oom, per_sample_gb=sample, after_init_gb=base, usable_gb=usable
    ),
    st.integers(1, 300),
    st.booleans(),
    st.none() | st.floats(0.1, 100),
    st.none() | st.floats(0.001, 5),
    st.none() | st.floats(0.1, 50),
    st.none() | st.floats(1, 100),
)
ledgers = st.lists(observations, max_size=8).map(Ledger.of)


@given(ledgers, st.integers(1, 300))
def test_fitting_is_what_was_seen_or_predicted(ledger: Ledger, micro: int) -> None:
    if ledger.fits(micro):
        assert ledger.too_big is None or micro < ledger.too_big
        predicted_gb, trained = ledger.predict_gb(micro), ledger.fitting is not None and micro <= ledger.fitting
        if not trained:
            assert predicted_gb is not None
            assert ledger.usable_gb is not None
            assert predicted_gb <= HEADROOM * ledger.usable_gb


# -- what still counts -----------------------------------------------------------------------------------------

NOW_S = 1e9
A100 = "key|NVIDIA A100|2.11"


def test_an_out_of_memory_expires() -> None:
    old = seen(8, oom=True, created_s=NOW_S - OOM_EXPIRES_S - 1)
    recent = seen(16, oom=True, created_s=NOW_S - OOM_EXPIRES_S + 1)
    figures = probed(8, 2.0, 1.0, created_s=1.0)
    assert believed([figures, old, recent], NOW_S) == [figures, recent]


@pytest.mark.parametrize(
    ("trained", "refutes"),
    [
        (seen(8, 9.0, created_s=NOW_S), True),
        (seen(16, 9.0, created_s=NOW_S), True),
        (seen(4, 9.0, created_s=NOW_S), False),
        (seen(8, 9.0, created_s=NOW_S - 99), False),  # before it
        (probed(8, 2.0, 1.0, created_s=NOW_S), False),  # nobody knows whether it trained
        (seen(8, 9.0, created_s=NOW_S, key=A100), False),
        (seen(8, 9.0), False),
    ],
)
def test_a_micro_batch_as_large_that_trained_since_refutes_an_out_of_memory(
    trained: MemoryObservation, refutes: bool
) -> None:
    failed = seen(8, oom=True, created_s=NOW_S - 9)
    ledger = Ledger.of(believed([failed, trained], NOW_S))
    assert ledger.too_big == (None if refutes else 8)


def test_another_version_gives_way_to_the_newest_that_has_trained() -> None:
    before = [seen(8, 9.0), seen(16, oom=True)]
    begun = probed(8, 2.0, 1.0, key="key|NVIDIA H100|2.12")
    trained = seen(8, 7.0, key="key|NVIDIA H100|2.12")
    unknown = seen(32, oom=True, key="key|NVIDIA H100|?")
    assert believed([*before, begun], NOW_S) == [*before, begun]
    assert believed([*before, begun, trained, unknown], NOW_S) == [begun, trained, unknown]


# -- what is tried ---------------------------------------------------------------------------------------------


@given(ledgers, st.integers(1, 256), st.integers(1, 8), st.data())
def test_a_start_divides_and_never_exceeds_what_was_asked(
    ledger: Ledger, share: int, world_size: int, data: st.DataObject
) -> None:
    asked = data.draw(st.sampled_from(divisors(share)))
    choice = start_micro_batch(share * world_size, world_size, asked, ledger)
    assert choice.micro_batch in divisors(share)
    assert choice.micro_batch <= asked
    assert choice.predicted_gb == ledger.predict_gb(choice.micro_batch)
    assert bool(choice.why) == (choice.micro_batch < asked) == (ledger.fits(asked) is False and asked > 1)
    if ledger.too_big is not None and choice.micro_batch >= ledger.too_big:
        assert choice.micro_batch == 1  # what is left to change then is not the micro-batch


@given(ledgers, st.integers(1, 256), st.integers(1, 8), st.data())
def test_after_an_oom_it_divides_and_is_smaller(
    ledger: Ledger, share: int, world_size: int, data: st.DataObject
) -> None:
    failed = data.draw(st.sampled_from(divisors(share)))
    choice = after_oom(share * world_size, world_size, failed, ledger)
    if failed == 1:
        assert choice is None
        return
    assert choice is not None
    assert choice.micro_batch in divisors(share)
    assert choice.micro_batch < failed
    known = ledger.with_oom(failed)
    fits = [size for size in divisors(share) if known.fits(size)]
    assert choice.micro_batch >= max(fits, default=1)
    if fits and known.predicts:
        assert choice.micro_batch == max(fits)


@given(a=st.floats(0.5, 20), b=st.floats(0.05, 3), share=st.integers(2, 512), error=st.floats(-0.03, 0.03))
def test_siblings_of_one_run_out_of_memory_do_not_run_out_too(a: float, b: float, share: int, error: float) -> None:
    """Five runs one after another, with a probe that errs by up to 3 %: at most one of them fails."""
    largest = max((size for size in divisors(share) if a + b * size <= USABLE_GB), default=0)
    assume(largest)
    observed: list[MemoryObservation] = []
    failures, settled = 0, []
    for _ in range(5):
        micro = start_micro_batch(share, 1, share, Ledger.of(observed)).micro_batch
        while a + b * micro > USABLE_GB:
            failures += 1
            observed += [probed(micro, a, b * (1 + error)), seen(micro, oom=True)]
            choice = after_oom(share, 1, micro, Ledger.of(observed))
            assert choice is not None
            micro = choice.micro_batch
        observed.append(seen(micro, a + b * micro, after_init_gb=a, per_sample_gb=b * (1 + error)))
        settled.append(micro)
    assert failures <= 1
    for micro in settled:
        larger = min((size for size in divisors(share) if size > micro), default=None)
        assert larger is None or a + b * (1 + max(error, 0.0)) * larger > HEADROOM * USABLE_GB


def test_a_cold_ledger_asks_for_what_the_spec_asks() -> None:
    assert start_micro_batch(256, 1, 256, Ledger()).micro_batch == 256
    assert after_oom(240, 1, 240, Ledger()) is not None
    assert after_oom(240, 1, 240, Ledger()).micro_batch == 120  # type: ignore[union-attr]


def test_after_an_oom_the_probe_says_where_to_go() -> None:
    ledger = Ledger.of([probed(240, 3.0, 1.1)])  # the failure itself is not in it yet
    choice = after_oom(240, 1, 240, ledger)
    assert choice is not None
    assert choice.micro_batch == 60
    assert choice.predicted_gb == pytest.approx(69.0)
    assert choice.why == "micro-batch 240 ran out of memory, 60 is predicted to take 69.0 of 84.0 GB"


def test_a_prediction_that_failed_is_not_believed_again() -> None:
    """240, 120, 80, 60 would use up all tries, one divisor after the other."""
    ledger = Ledger.of([seen(1, 1.9), seen(2, 1.91)])
    choice = after_oom(240, 1, 240, ledger)
    assert choice is not None
    assert choice.micro_batch == 120
    choice = after_oom(240, 1, 120, ledger.with_oom(240))
    assert choice is not None
    assert choice.micro_batch == 60
    assert start_micro_batch(240, 1, 240, ledger.with_oom(240)).micro_batch == 120
    assert start_micro_batch(240, 1, 240, Ledger.of([seen(80, 1.9)]).with_oom(120)).micro_batch == 80  # seen to fit


# -- the key ---------------------------------------------------------------------------------------------------


def config(command: str | None = None, **values: Any) -> RunConfig:
    train = {"model": "openai/gpt2", "global_batch": 64, "micro_batch": 8, "steps": 10, **values.pop("train", {})}
    return RunConfig.model_validate({"train": train, **({"command": command} if command else {}), **values})


@pytest.mark.parametrize(
    "same",
    [
        {"train": {"micro_batch": 2}},
        {"train": {"global_batch": 128}},
        {"train": {"lr": 1e-2, "seed": 3, "steps": 99, "warmup_steps": 5, "weight_decay": 0.0}},
        {"train": {"dataset": "other", "checkpoint_every": 5, "eval_every": 5}},
        {"deepspeed": {"gradient_clipping": 2.0}},
        {"slurm": {"time": "1:00:00"}},
        {"retry": {"oom": 9}},
    ],
)
def test_what_takes_no_memory_is_not_in_the_key(same: dict[str, Any]) -> None:
    assert memory_key(config(**same)) == memory_key(config())


@pytest.mark.parametrize(
    "other",
    [
        {"train": {"model": "gpt2-medium"}},
        {"train": {"model": {"model_type": "gpt2", "n_layer": 3}}},
        {"train": {"seq_len": 512}},
        {"train": {"zero_stage": 2}},
        {"train": {"precision": "fp32"}},
        {"train": {"dropout": 0.1}},
        {"train": {"activation_checkpointing": True}},
        {"train": {"compile": True}},
        {"deepspeed": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}},
        {"deepspeed": {"optimizer": {"type": "Lion"}}},
        {"slurm": {"nodes": 2}},
        {"slurm": {"gpus_per_node": 4}},
        {"slurm": {"constraint": "a100"}},
        {"env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}},
        {"ranks_per_node": 3},
    ],
)
def test_what_takes_memory_is_in_the_key(other: dict[str, Any]) -> None:
    assert memory_key(config(**other)) != memory_key(config())


@pytest.mark.parametrize(
    "same",
    [
        {"seed": 3, "lr": 1e-2, "schedule": "linear", "warmup_steps": 5, "min_lr_ratio": 0.2, "weight_decay": 0.0},
        {"beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "steps": 99},
        {"checkpoint_every": 5, "eval_every": 5, "eval_batches": 2, "log_every": 3, "keep_best": True},
    ],
)
def test_how_a_command_learns_is_not_in_its_key(same: dict[str, Any]) -> None:
    assert memory_key(config("train.py", train=same)) == memory_key(config("train.py"))


def test_a_script_that_manages_its_own_batches_has_no_key() -> None:
    assert memory_key(RunConfig.model_validate({"command": "train.py"})) is None


def test_a_taken_rung_is_another_key() -> None:
    changes = ("expandable_segments", "activation_checkpointing", "offload_optimizer", "zero_stage=3")
    base = config(train={"zero_stage": 1})
    keys = {memory_key(changed(base, changes[:count])) for count in range(len(changes) + 1)}
    assert len(keys) == 5
