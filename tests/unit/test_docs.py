"""The documentation names what there is: specs that load, commands and files that exist, links that lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import click
import pytest

from dscampaign import jobs
from dscampaign.jobs.agent import launch
from dscampaign.orchestrator.cli.main import campaign as command
from dscampaign.tests.support.spec_files import load_spec

ROOT = Path(jobs.__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
MADE_BY_RUNNING = ("demo/", "campaign/")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of one language, "" for none; indented ones, as in a list, lose their indentation."""
    fenced = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [
        "\n".join(line.removeprefix(indent) for line in text.splitlines())
        for indent, found, text in fenced
        if found == language
    ]


def code(page: Path) -> str:
    """All that stands in code, inline or in blocks."""
    text = page.read_text(encoding="utf-8")
    return "\n".join([*re.findall(r"```.*?```", text, re.DOTALL), *re.findall(r"`[^`\n]+`", text)])


def specs() -> list[tuple[str, str]]:
    return [
        (f"{name_of(page)}-{index}", text)
        for page in PAGES
        for index, text in enumerate(blocks(page, "yaml"))
        if re.search(r"^name:", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in specs()])
def test_every_spec_loads(text: str, tmp_path: Path) -> None:
    spec = tmp_path / "campaign.yaml"
    spec.write_text(text)
    (tmp_path / "train.py").touch()
    assert load_spec(spec).name


def test_there_are_specs_to_load() -> None:
    assert {name.partition("-")[0] for name, _ in specs()} >= {"README.md", "docs/spec.md"}


def test_every_part_of_a_spec_has_known_fields(tmp_path: Path) -> None:
    """A block that shows only a section, laid over a spec that is complete."""
    parts = [text for page in PAGES for text in blocks(page, "yaml") if re.match(r"(slurm|train|matrix):", text)]
    assert parts
    for part in parts:
        spec = tmp_path / "campaign.yaml"
        spec.write_text(f"name: part\ncommand: train.py\n{part}")
        (tmp_path / "train.py").touch()
        assert load_spec(spec).name


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_every_command_exists(page: Path) -> None:
    named = set(re.findall(r"\bcampaign ([a-z]+(?: [a-z]+)?)\b", code(page)))
    assert [words for words in named if _verb(words.split()) is None] == []


def _verb(words: list[str]) -> click.Command | None:
    """The command that words begin with; what follows a command that has no verbs of its own are its arguments."""
    found: click.Command = command
    for word in words:
        if not isinstance(found, click.Group):
            break
        below = found.commands.get(word)
        if below is None:
            return None
        found = below
    return found


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_every_option_exists(page: Path) -> None:
    for line in re.findall(r"\bcampaign [a-z][^\n`#|]*", code(page)):
        words = line.split()[1:]
        found = _verb([word for word in words if re.fullmatch(r"[a-z]+", word)][:2])
        known = {option for parameter in found.params for option in parameter.opts} if found else set()
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= known | {"--help", "--debug", "-h"}, line


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [link for link in _links(page) if not _resolves(page, link)] == []


def _links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r"\]\((?!https?://)([^)\s]+)\)", text)
    yield from re.findall(r'src="(?!https?://)([^"]+)"', text)


def _resolves(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_every_file_of_the_repository_that_is_named_exists(page: Path) -> None:
    rooms = "|".join(folder.name for folder in ROOT.iterdir() if folder.is_dir() and folder.name.isidentifier())
    named = set(re.findall(rf"(?<![\w./@<-])((?:{rooms})/[\w./*-]*\w)", code(page)))
    missing = [path for path in named if not any(ROOT.glob(path)) and not path.startswith(MADE_BY_RUNNING)]
    assert missing == []


def test_the_architecture_names_every_module_of_a_pass() -> None:
    named = set(re.findall(r"\b([a-z_]+)\.py\b", ARCHITECTURE))
    below = {
        file.stem for room in ("orchestrator", "jobs", "db", "files", "scripts") for file in (ROOT / room).rglob("*.py")
    }
    assert named <= below | {file.stem for file in ROOT.glob("*.py")}
    loop = {"loop", "observe", "decide", "act", "classify", "slurm", "local", "agent", "rank", "spool"}
    assert loop <= named


def test_the_source_layout_has_every_package() -> None:
    shown = re.findall(r"^\| `([a-z_/]+)/` \|", ARCHITECTURE, re.MULTILINE)
    packages = {
        name_of(file.parent)
        for room in ("orchestrator", "jobs", "db", "files")
        for file in (ROOT / room).rglob("__init__.py")
    }
    assert packages - set(shown) == {"orchestrator", "jobs", "db/migrations/versions"}


def test_every_variable_of_a_script_is_documented() -> None:
    contract = set(re.findall(r'"(?:CAMPAIGN_)?([A-Z_]+)"(?:: |\] = )', _source(launch)))
    documented = set(re.findall(r"`CAMPAIGN_([A-Z_]+)`", (ROOT / "docs/own-scripts.md").read_text(encoding="utf-8")))
    of_others = {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "TOKENIZERS_PARALLELISM"}
    of_others |= {"NTASKS_PER_NODE", "DS_ACCELERATOR", "COLUMNS", "PYTHONPATH", "AGENT_PID", "VISIBLE_DEVICES"}
    assert contract - of_others == documented


def _source(module: object) -> str:
    return Path(str(vars(module)["__file__"])).read_text(encoding="utf-8")


def test_the_spec_s_page_shows_a_real_plan(tmp_path: Path) -> None:
    page = ROOT / "docs/spec.md"
    [plan] = [text for text in blocks(page, "") if "Plan: " in text]
    (tmp_path / "campaign.yaml").write_text(blocks(page, "yaml")[0])
    shown = StringIO()
    with redirect_stdout(shown):
        command.main(["plan", str(tmp_path / "campaign.yaml"), "--dir", str(tmp_path)], standalone_mode=False)
    assert plan.partition("\n")[2].strip() == shown.getvalue().strip()


@pytest.mark.parametrize("page", ["README.md", "docs/cluster.md"])
def test_the_trial_is_valid_with_the_spec_that_init_writes(page: str, tmp_path: Path) -> None:
    [line] = re.findall(r"^ *campaign submit campaign.yaml (--set .*) --watch", (ROOT / page).read_text(), re.MULTILINE)
    spec = tmp_path / "campaign.yaml"
    command.main(["init", str(spec)], standalone_mode=False)
    assert load_spec(spec, line.removeprefix("--set ").split(" --set ")).name == "trial"
