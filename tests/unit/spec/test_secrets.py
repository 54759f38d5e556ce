"""Secrets are found by kind in every text of a spec, and what only resembles one is let through."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.orchestrator.errors import SpecError
from dscampaign.orchestrator.spec.load import secret_in, secrets_in
from dscampaign.tests.support.spec_files import load_spec

RANDOM = "a8f0c2d9e1b7a4f6c3d2"
SECRET_NAMES = [
    name
    for line in (
        "PGPASSWORD PGPASS DB_PASS MYSQL_PWD SSHPASS",
        "HF_AUTH HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY DB_PASSWORD my_private_key GITHUB_TOKEN apiKey",
        "AZURE_CLIENT_SECRET REDIS_AUTH NEPTUNE_API_TOKEN",
    )
    for name in line.split()
]
HARMLESS = {
    "TOKENIZERS_PARALLELISM": "true",
    "SORT_KEY": "abc",
    "PWD": "/x",
    "PAD_TOKEN": "<pad>",
    "EOS_TOKEN": "eos",
    "MAX_TOKENS": "512",
    "HF_TOKEN_PATH": "/home/x/t",
    "AUTHOR": "me",
    "COMPASS": "n",
    "HF_TOKEN": "$(cat ~/.hf)",
    "SSH_AUTH_SOCK": "/tmp/x",
    "NUM_PASSES": "3",
}
SECRETS = [
    "export WANDB_API_KEY=3f2a9c",
    "t.py --api-key sk-proj-abcdefghijkl",
    "curl -H 'Authorization: Bearer abcdef' x",
    "https://h/?access_token=abc&x=1",
    "wandb login 0123456789abcdef0123456789abcdef01234567",
    "-----BEGIN RSA PRIVATE KEY-----",
    "postgresql://me:p/w@h/db",
    "postgresql://me@db/x?password=abc",
    "mlflow --token=abc",
    '{"api_key": "abc"}',
    "https://0a1b2c3d4e5f60718293@github.com/me/x.git",
    "git clone https://me:pw@github.com/me/x.git",
]
NO_SECRETS = [
    "train.py --tokenizer gpt2 --max-tokens 512",
    "train token by token",
    "--pad-token <pad> --eos-token '</s>'",
    "source ~/.secrets",
    "--revision 3f2a9c0123456789abcdef0123456789abcdef01",
    "s3://bucket/key=1/part",
    "ssh://git@github.com/x/y",
    "export PASS=$PASS",
    r"loss[=:] *([\d.eE+-]+)",
    "http://host:8080/x@v2",
    "--password-file ~/.pw",
    "https://me@github.com/x",
    "python -u train.py:main",
]
PLACES = [
    "env: {X: 'SECRET'}",
    "slurm: {setup: ['SECRET']}",
    "deepspeed: {monitor_config: {wandb: {note: 'SECRET'}}}",
    "train: {model: {model_type: gpt2, note: 'SECRET'}}",
    "retry: {rules: [{match: 'SECRET', class: infra}]}",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_says_secret(name: str) -> None:
    for form in ({name: RANDOM}, f"export {name}={RANDOM}", f"t.py --{name.lower()} {RANDOM}", [f"--{name}", RANDOM]):
        assert list(secrets_in(form)), form


@pytest.mark.parametrize("text", SECRETS)
def test_a_text_that_holds_one(text: str) -> None:
    assert secret_in(text)


def test_what_only_resembles_one() -> None:
    assert not list(secrets_in(HARMLESS))
    assert [text for text in NO_SECRETS if secret_in(text)] == []


@pytest.mark.parametrize("place", PLACES)
def test_whatever_field_holds_it(tmp_path: Path, place: str) -> None:
    path, token = tmp_path / "spec.yaml", "hf_abcdefghijklmnop"
    (tmp_path / "a.py").touch()
    path.write_text(f"name: c\nexecutor: local\ncommand: [a.py]\n{place.replace('SECRET', token)}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    said = [problem for problem in caught.value.problems if "looks like a secret" in problem.message]
    assert [problem.line for problem in said] == [4]
    assert token not in said[0].message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@db/c",
        "postgresql://me:se/cret@db/c",
        "postgresql://me@db/c?password=secret",
        "postgresql://me@db/c?sslpassword=secret",
    ],
)
def test_a_store_with_a_password(tmp_path: Path, url: str) -> None:
    path = tmp_path / "spec.yaml"
    (tmp_path / "a.py").touch()
    path.write_text(f"name: c\nexecutor: local\ncommand: [a.py]\nstore: {url}\n")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    [problem] = caught.value.problems
    assert ".pgpass" in (problem.hint or "")
    assert "contains a password" in problem.message
