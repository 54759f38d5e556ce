"""What is seen of the host on which `campaign doctor` is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.orchestrator.campaign.location import Location
from dscampaign.orchestrator.doctor.login_host import login
from dscampaign.orchestrator.settings import Settings


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A folder without a campaign, on a host where nobody has logged in to W&B."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return Location(Settings(tmp_path, f"sqlite:///{tmp_path}/campaign.db", 0, 0.0, ()), ())


def test_tools_have_the_versions_that_are_installed(place: Location) -> None:
    tools = login(place).tools
    assert set(tools) == {"wandb", "tensorboard", "mlflow"}  # the tests forward to all of them
    assert all(version[0].isdigit() for version in tools.values())


def test_wandb_knows_who_has_logged_in(place: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not login(place).wandb_key
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / "netrc").chmod(0o600)
    assert login(place).wandb_key
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not login(place).wandb_key
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert login(place).wandb_key


def test_a_netrc_that_cannot_be_read_is_no_key(place: Location, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine\n")
    assert not login(place).wandb_key
