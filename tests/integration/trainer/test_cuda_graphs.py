"""CUDA graphs of the compiled passes: what is asked of the compiler. What they change was measured on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dscampaign.jobs.trainer import engine
from dscampaign.jobs.trainer.config import SearchPlan, TrainerConfig
from dscampaign.tests.integration.trainer.attempts import train_config


class Asked:
    """An engine that is only asked to compile."""

    def __init__(self) -> None:
        self.options: dict[str, Any] | None = None

    def compile(self, compile_kwargs: dict[str, Any] | None = None) -> None:
        self.options = (compile_kwargs or {}).get("options")


def asked_for(config: TrainerConfig) -> dict[str, Any] | None:
    asked = Asked()
    engine._compile(asked, config)
    return asked.options


def test_they_are_asked_for_in_words_that_the_compiler_knows() -> None:
    import torch._inductor as inductor  # late: a second of each process that collects tests

    options = asked_for(train_config(compile=True, cuda_graphs=True))
    assert options
    assert set(options) <= set(inductor.list_options())
    assert asked_for(train_config(compile=True)) is None


def test_a_search_of_many_sizes_records_none() -> None:
    config = train_config(compile=True, cuda_graphs=True)
    assert asked_for(replace(config, search=SearchPlan(share=8, seconds=1.0))) is None
