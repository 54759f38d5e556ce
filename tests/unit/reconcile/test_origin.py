"""Which variables of a shell an attempt depends on, by their names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.orchestrator.reconcile.origin import Origin, that_matter, why_held

LOGIN = """
SHELL TERM USER HOME PATH PWD OLDPWD SHLVL LANG LC_ALL LS_COLORS DISPLAY SSH_CLIENT SSH_TTY SSH_AUTH_SOCK
XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS HOSTNAME LOGNAME MAIL TMUX TMUX_PANE EDITOR HISTSIZE _ VIRTUAL_ENV
VIRTUAL_ENV_PROMPT CONDA_PREFIX CONDA_SHLVL SLURM_CONF SLURM_JOB_ID SBATCH_ACCOUNT CAMPAIGN_STORE PS1 COLUMNS
LESSOPEN TMPDIR NCCL_DEBUG WANDB_CONSOLE_LOG_LEVEL MODULESHOME MANPATH INFOPATH BASH_ENV COMP_WORDBREAKS
"""
"""What a terminal sets, and cron does not."""

TRAINING = """
HF_TOKEN HF_HOME WANDB_API_KEY OPENAI_API_KEY CUDA_HOME NCCL_SOCKET_IFNAME LD_LIBRARY_PATH PYTHONPATH
TORCH_CUDA_ARCH_LIST DS_SKIP_CUDA_CHECK OMP_NUM_THREADS https_proxy LOADEDMODULES PGPASSFILE GITLAB_TOKEN
"""


def matter(*names: str, read: tuple[str, ...] = (), setup: str = "", given: tuple[str, ...] = ()) -> list[str]:
    return that_matter([*LOGIN.split(), *names], read=read, setup=setup, explicit=given, on_slurm=True)


@pytest.mark.parametrize("name", TRAINING.split())
def test_variables_of_training_software_are_recorded(name: str) -> None:
    assert matter(name) == [name]


def test_variables_that_code_or_setup_read_are_recorded() -> None:
    setup = "source $PROJECT/env.sh\ncp ${ARCHIVE}/data /tmp"
    names = ("STORAGE", "PROJECT", "ARCHIVE", "UNRELATED")
    assert matter(*names, read=("STORAGE", "ABSENT"), setup=setup) == ["ARCHIVE", "PROJECT", "STORAGE"]


def test_visible_devices_are_recorded_without_slurm_only() -> None:
    names = ["CUDA_VISIBLE_DEVICES"]
    assert matter(*names) == []
    assert that_matter(names, read=(), setup="", explicit=(), on_slurm=False) == names


def test_a_missing_variable_is_named() -> None:
    origin = Origin.of({"variables": ["HF_TOKEN", "WANDB_API_KEY"]})
    assert origin.missing({"HF_TOKEN": "", "MORE": "x"}) == ["WANDB_API_KEY"]
    assert "WANDB_API_KEY was set" in why_held(["WANDB_API_KEY"])
    assert why_held([]) == ""
    many = [f"HF_{number}" for number in range(20)]
    assert all(name in why_held(many) for name in many)


def test_the_python_of_the_submission_runs_the_training_as_long_as_it_is_there(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch()
    origin = Origin.of({"python": str(python)})
    assert origin.interpreter == str(python)
    python.unlink()
    assert origin.interpreter == ""
