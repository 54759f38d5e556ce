"""A placeholder stands for text: what has none is refused, not spelled as Python spells it."""

from pathlib import Path

import pytest

from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support.spec_files import load_spec
from dscampaign.tests.unit.spec.test_mistakes import OWN, problems


@pytest.mark.parametrize("value", ["null", "[1, 2]"])
@pytest.mark.parametrize("use", ["command: [-m, t, '{size}']", "command: [-m, t]\nenv: {SIZE: '{size}'}"])
def test_a_value_without_text_fills_in_nothing(tmp_path: Path, value: str, use: str) -> None:
    (problem,) = problems(tmp_path, f"{OWN}{use}\nmatrix: {{size: [3, {value}]}}\n")
    assert problem.field == "matrix.size[1]"
    assert problem.message == "is no text for {size} in `command` or `env`"


@pytest.mark.parametrize("value", ["null", "[1, 2]"])
def test_the_same_holds_where_a_value_is_included(tmp_path: Path, value: str) -> None:
    text = f"{OWN}command: [-m, t, '{{size}}']\nmatrix: {{lr: [1], include: [{{lr: 1, size: {value}}}]}}\n"
    (problem,) = problems(tmp_path, text)
    assert problem.field == "matrix.include[0].size"


def test_a_label_is_text(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"{OWN}command: [-m, t, '{{size}}']\nmatrix: {{size: [{{label: big, lr: 1}}]}}\n")
    assert [run.config.command for run in expand(load_spec(path))] == [("-m", "t", "big")]
