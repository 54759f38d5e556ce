"""Fixtures of all tests, the groups that a run leaves out by name, and how long each file takes."""

import gc
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.slurm_fixtures import running_cluster

GROUPS = ("browser", "cluster", "nvme", "postgres", "training")
_GROUP_OF_FIXTURE = {
    "opened": "browser",
    "slurm": "cluster",
    "own_slurm": "cluster",
    "postgres": "postgres",
    "crashing_postgres": "postgres",
}
NOT_PURE = ("torch", "deepspeed", "transformers", "datasets", "mlflow", "tensorboard", "wandb")
"""A pure test that imports one of these fails, also if it is installed."""
_HERE = Path(__file__).parent
_UNIT = _HERE / "unit"
_ON_THE_CLUSTER = ("integration/slurm", "faults")
"""Folders of tests; elsewhere `slurm` is a fake one, or a section of a spec."""

TIMES = _HERE.parent / ".test-times.json"
"""Seconds of each file in the last full run, by its path: of the clock, and of the processors."""
_BEFORE_S = pytest.StashKey[float]()
_clock_s: dict[str, float] = defaultdict(float)
_cpu_s: dict[str, float] = defaultdict(float)

# How long a property takes to be tried depends on what else the machine does: no reason to fail.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what it puts into the background deaf to Ctrl-C, and some tests send one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["CAMPAIGN_DETACH"] = "no"  # only the tests of that leave a reconciler behind
    gc.disable()  # until all tests are collected
    if config.getoption("--pure"):
        sys.modules.update(dict.fromkeys(NOT_PURE))  # type: ignore[arg-type] # to import them is an error now


def pytest_collection_finish() -> None:
    """Spares the collector of garbage the thousands of tests, which all stay."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --without, the only switch that leaves tests out."""
    parser.addoption(
        "--without",
        action="append",
        default=[],
        choices=GROUPS,
        help="leave out the tests that need this; otherwise what is missing makes them fail, never skip",
    )
    parser.addoption(
        "--pure", action="store_true", help="only tests/unit, without any group; to import torch or a tracker fails"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks each test by what it asks for, deselects the groups that were named, and puts long files first."""
    for item in items:
        real = item.path.relative_to(_HERE).as_posix().startswith(_ON_THE_CLUSTER)
        for fixture, group in _GROUP_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()) and (group != "cluster" or real):
                item.add_marker(group)
    without = _without(config)
    pure = config.getoption("--pure")
    left_out = [
        item
        for item in items
        if any(item.get_closest_marker(group) for group in without) or (pure and _UNIT not in item.path.parents)
    ]
    if left_out:
        apart = set(left_out)
        items[:] = [item for item in items if item not in apart]
        config.hook.pytest_deselected(items=left_out)
    times = _times()
    items.sort(key=lambda item: -times.get(_file(item.nodeid), {}).get("clock_s", 0.0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Notes the processor time that this process and its children have taken before the test."""
    item.stash[_BEFORE_S] = _processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the processor time of the whole test to its last report, which a worker sends to the main process."""
    report = yield
    if report.when == "teardown":
        report.cpu_s = _processor_s() - item.stash[_BEFORE_S]  # type: ignore[attr-defined]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds up the times of each file."""
    _clock_s[_file(report.nodeid)] += report.duration
    _cpu_s[_file(report.nodeid)] += getattr(report, "cpu_s", 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Ends with the slowest files of a full run, and the groups that were left out: a green run cannot hide them."""
    if hasattr(config, "workerinput"):  # workers end at once, and each knows its own files only
        return
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        found = {file: {"clock_s": round(_clock_s[file], 1), "cpu_s": round(_cpu_s[file], 1)} for file in _clock_s}
        TIMES.write_text(json.dumps(dict(sorted((_times() | found).items())), indent=0) + "\n")
        terminalreporter.section("ten slowest files: seconds of the clock, and of the processors")
        for file, seconds in sorted(_clock_s.items(), key=lambda item: -item[1])[:10]:
            terminalreporter.write_line(f"{seconds:7.1f} {_cpu_s[file]:7.1f}  {file}")
        terminalreporter.write_line(f"{sum(_clock_s.values()):7.0f} {sum(_cpu_s.values()):7.0f}  all files")
    if config.getoption("--pure"):
        left_out = "all but tests/unit, and of that what trains or asks PostgreSQL"
        terminalreporter.write_line(f"LEFT OUT by --pure: {left_out}; `make test` runs these too", yellow=True)
    elif without := _without(config):
        terminalreporter.write_line(f"LEFT OUT by --without: {', '.join(sorted(without))}", yellow=True)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _processor_s() -> float:
    return sum(os.times()[:4])


def _times() -> dict[str, dict[str, float]]:
    """Return the times of earlier runs; none if the file is not there or damaged."""
    try:
        times: dict[str, dict[str, float]] = json.loads(TIMES.read_text())
    except (OSError, ValueError):
        return {}
    return times


def _without(config: pytest.Config) -> set[str]:
    return set(GROUPS) if config.getoption("--pure") else set(config.getoption("--without"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL server; ask it for `new_database()`."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def crashing_postgres() -> Iterator[PostgresServer]:
    """A server of its own for the tests that crash it: recovery goes through the files of all its databases."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A running cluster of four nodes that all tests share; SLURM_CONF points at it."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), nodes=4) as cluster:
        yield cluster


@pytest.fixture
def own_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of two nodes for one test that breaks what cannot be mended, such as the job ids."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _whole_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test on the shared cluster: every server runs, no job is left, every node is idle."""
    used = request.getfixturevalue("slurm") if "slurm" in request.fixturenames else None
    yield
    if isinstance(used, SlurmCluster):  # other tests call a fake one by that name
        used.reset()
