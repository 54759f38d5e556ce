"""Fixtures of all tests, and the one way to leave tests out: by name, and said aloud."""

import signal
import sys
from collections.abc import Iterator
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
_HERE = Path(__file__).parent
_UNIT = _HERE / "unit"
_ON_THE_CLUSTER = ("integration/slurm", "faults")
"""Folders of tests; elsewhere `slurm` is a fake one, or a section of a spec."""

_LONGEST = (
    *("test_main_job", "test_strategies", "test_machines", "test_tensor_parallel", "test_attempt"),
    *("test_local_campaign", "test_state_machine", "test_sequence_parallel", "test_submission", "test_any_bytes"),
    *("test_reconciler", "test_trained_documents", "test_nvme", "test_auto_micro_batch", "test_network"),
    *("test_training", "test_hang", "test_examples", "test_soak", "test_states", "test_more_steps", "test_by_hand"),
    *("test_same_attempt", "test_doctor", "test_documents", "test_cli_runs", "test_two_users", "test_forward"),
    *("test_agent", "test_status_truth", "test_transformers_folder", "test_unchanged_scripts", "test_torture"),
    *("test_pages", "test_figures", "test_weights", "test_vocabulary", "test_store_away"),
)
"""Files that take longest; they come first, so that no process is left with a long one at the end. Those that wait for
Slurm and those that compute come in turn, so that they share the processors."""


# How long a property takes to be tried depends on what else the machine does: no reason to fail.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what it puts into the background deaf to Ctrl-C, and some tests send one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--pure"):
        for name in NOT_PURE:
            sys.modules[name] = None  # type: ignore[assignment] # to import it is an error now


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
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: _LONGEST.index(item.path.stem) if item.path.stem in _LONGEST else len(_LONGEST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says at the end which groups were left out, so that a green run cannot hide it."""
    if config.getoption("--pure"):
        left_out = "all but tests/unit, and of that what trains or asks PostgreSQL"
        terminalreporter.write_line(f"LEFT OUT by --pure: {left_out}; `make test` runs everything", yellow=True)
    elif without := _without(config):
        terminalreporter.write_line(f"LEFT OUT by --without: {', '.join(sorted(without))}", yellow=True)


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
