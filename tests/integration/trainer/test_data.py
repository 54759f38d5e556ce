"""Prepared tokens: packed, shared, complete or absent."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from dscampaign.files.ownership import Distrusted
from dscampaign.jobs.trainer import data
from dscampaign.jobs.trainer.config import TrainerConfig
from dscampaign.jobs.trainer.corpus import Corpus
from dscampaign.jobs.trainer.tokens import ByteTokenizer, load_tokenizer, tokenizer_identity
from dscampaign.tests.integration.trainer.attempts import TEXT, train_config
from dscampaign.tests.support import REPOSITORY

EOS = ByteTokenizer().eos
TOKENIZER = str(REPOSITORY / "examples/data/tokenizer")


def config(path: Path, seq_len: int = 4, **dataset: Any) -> TrainerConfig:
    """One sample a step."""
    batch = {"global_batch": 1, "micro_batch": 1, "world_size": 1}
    return train_config(dataset={"path": str(path), **dataset}, seq_len=seq_len, **batch)


def corpus(path: Path, **changes: Any) -> Corpus:
    return Corpus(**{"path": str(path), "name": None, "split": None, "text_field": "text", **changes})


def tokens(corpus: Corpus, data_dir: Path) -> list[int]:
    folder = data.prepare_tokens(corpus, "bytes", data_dir)
    return np.fromfile(folder / "tokens.bin", dtype=np.uint16).tolist()  # type: ignore[no-any-return]


def test_documents_end_with_the_end_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab\nc")
    (tmp_path / "b.jsonl").write_text('{"text": "d"}\n\n{"text": ""}\n')
    pq.write_table(pa.table({"text": ["ef", "ä"]}), tmp_path / "c.parquet")
    expected = [*b"ab\nc", EOS, *b"d", EOS, EOS, *b"ef", EOS, *"ä".encode(), EOS]
    assert tokens(corpus(tmp_path), tmp_path / "data") == expected


def test_of_a_folder_also_links_are_read_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("text/a.TXT", "text/.ipynb_checkpoints/a.txt", "text/b.parquet/c.txt", "away/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name[-5])
    (tmp_path / "text/d").symlink_to(tmp_path / "away")
    (tmp_path / "text/back").symlink_to(tmp_path / "text")
    assert tokens(corpus(tmp_path / "text"), tmp_path / "data") == [*b"a", EOS, *b"c", EOS, *b"d", EOS]


def test_a_data_set_of_the_hub_is_read_by_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the hub, the library reads a folder with a configuration of its own."""
    import datasets  # late: every process of tests collects this file

    hub, load = tmp_path / "hub", partial(datasets.load_dataset, cache_dir=str(tmp_path / "cache"))
    (hub / "en").mkdir(parents=True)
    pq.write_table(pa.table({"text": ["a", None, "b", "", "c"], "id": [1, 2, 3, 4, 5]}), hub / "en/train-0.parquet")
    (hub / "README.md").write_text("---\nconfigs:\n- {config_name: en, data_files: en/*.parquet}\n---\n")
    monkeypatch.setattr(datasets, "load_dataset", lambda path, *names, **kw: load(str(tmp_path / path), *names, **kw))
    named = Corpus("hub", "en", None, "text")
    streamed = replace(named, max_tokens=3)
    assert tokens(streamed, tmp_path / "data") == [*b"a", EOS, *b"b"]
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    assert tokens(replace(streamed, split="train[3:]"), tmp_path / "data") == [EOS, *b"c", EOS]
    with pytest.raises(ValueError, match="no field 'body', there is id, text"):
        tokens(replace(streamed, text_field="body"), tmp_path / "data")
    assert tokens(named, tmp_path / "data") == [*b"a", EOS, *b"b", EOS, EOS, *b"c", EOS]
    sliced = replace(named, split="train[:60%]")
    assert tokens(sliced, tmp_path / "data") == [*b"a", EOS, *b"b", EOS]
    assert named.identity() != sliced.identity()
    for split, held_out in (("train[:80%]", "train[3:]"), ("test+train", "train")):
        with pytest.raises(ValueError, match="hub/train would be trained on and held out"):
            data.load(config(Path("hub"), split=split, eval_split=held_out), tmp_path / "data", prepare=True)
    with pytest.raises(ValueError, match=r"hub: no field 'body', there is id, text; see train\.dataset"):
        tokens(replace(named, text_field="body"), tmp_path / "data")


def test_a_slice_of_local_data_takes_records_of_all_files_and_lines_of_a_text(tmp_path: Path) -> None:
    (folder := tmp_path / "text").mkdir()
    (folder / "train-0.txt").write_text("a\nb\nc\n")
    (folder / "train-1.jsonl").write_text('{"text": "d"}\n{"text": null}\n{"text": "e"}\n')
    pq.write_table(pa.table({"text": ["f", "g", "h"]}), folder / "train-2.parquet")
    (folder / "valid.txt").write_text("v")
    of = partial(corpus, folder)
    assert tokens(of(split="train[:50%]"), tmp_path / "data") == [*b"a\nb\nc\n", EOS, *b"d", EOS]
    assert tokens(of(split="train[:50%]", max_tokens=4), tmp_path / "data") == [*b"a\nb\n"]
    assert tokens(of(split="train[1:6]"), tmp_path / "data") == [*b"b\nc\n", EOS, *b"d", EOS, *b"e", EOS, *b"f", EOS]
    assert tokens(corpus(folder / "train-0.txt", split="train[-1:]"), tmp_path / "data") == [*b"c\n", EOS]
    halves = data.load(config(folder, split="train[:50%]", eval_split="train[50%:]"), tmp_path / "data", prepare=True)
    assert halves.held_out.tokens.tolist() == [*b"e", EOS, *b"f", EOS, *b"g", EOS, *b"h", EOS]
    with pytest.raises(
        ValueError, match=r"train-2\.parquet would be trained on and held out; name other files or slices"
    ):
        data.load(config(folder, split="train[:90%]", eval_split="train[80%:]"), tmp_path / "data", prepare=True)


def test_a_long_file_is_read_in_pieces_and_stays_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dscampaign.jobs.trainer.corpus.CHUNK_CHARS", 8)
    monkeypatch.setattr(data, "CHARS_PER_CALL", 16)
    text = "one line\n" * 9 + "the last"
    (tmp_path / "a.txt").write_text(text)
    assert tokens(corpus(tmp_path / "a.txt"), tmp_path / "data") == [*text.encode(), EOS]


def test_samples_overlap_by_the_target_of_the_last_input() -> None:
    samples = data.Samples(np.arange(10), seq_len=4)
    assert len(samples) == 2
    assert samples.read(np.array([1, 0])).tolist() == [[4, 5, 6, 7, 8], [0, 1, 2, 3, 4]]
    assert len(data.Samples(np.arange(4), seq_len=4)) == 0


def test_without_packing_each_record_is_a_padded_sample(tmp_path: Path) -> None:
    (folder := tmp_path / "text").mkdir()
    (folder / "a.txt").write_text("abcdef\n\ngh\n")
    (folder / "b.jsonl").write_text('{"text": "i\\nj"}\n{"text": null}\n{"text": "klmn"}\n')
    found = data.load(config(folder, packing=False, eval_fraction=0.2), tmp_path / "data", prepare=True)
    assert found.train.read(np.arange(len(found.train)))[:, :-1].tolist() == [
        [*b"abcd"], [EOS] * 4, [*b"gh", EOS, EOS], [*b"i\nj", EOS],
    ]  # fmt: skip
    assert found.held_out.read(np.arange(len(found.held_out)))[:, :-1].tolist() == [[*b"klmn"]]
    cut = data.load(config(folder, packing=False, max_tokens=11, eval_fraction=0.0), tmp_path / "data", prepare=True)
    assert cut.train.tokens.tolist() == [*b"abcd", *[EOS] * 4]
    packed = data.load(config(folder), tmp_path / "data", prepare=True)
    assert packed.train.read(np.arange(1)).tolist() == [[*b"abcde"]]  # other tokens of the same text


def test_a_padded_sample_has_the_special_tokens_of_its_tokenizer(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="b"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>").save_pretrained(tmp_path / "t")
    (tmp_path / "a.txt").write_text("a b\n\na a b b a\n")
    chosen = replace(config(tmp_path / "a.txt", packing=False, eval_fraction=0.0), tokenizer=str(tmp_path / "t"))
    found = data.load(chosen, tmp_path / "data", prepare=True)
    assert found.train.read(np.arange(3))[:, :-1].tolist() == [[0, 2, 3, 1], [0, 1, 1, 1], [0, 2, 2, 3]]


def test_the_end_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0123456789" * 10)
    found = data.load(config(tmp_path, eval_fraction=0.2), tmp_path / "data", prepare=True)
    assert (len(found.train.tokens), len(found.held_out.tokens)) == (81, 20)
    assert (found.vocab_size, found.eos) == (257, 256)


def test_held_out_text_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("training text")
    (tmp_path / "valid.txt").write_text("held out")
    separate = config(tmp_path / "train.txt", eval_path=str(tmp_path / "valid.txt"))
    split = config(tmp_path, split="train", eval_split="valid")
    with pytest.raises(ValueError, match=r"valid.txt: 9 held-out tokens, a sample has 10"):
        data.load(replace(separate, seq_len=9), tmp_path / "data", prepare=True)
    for said in (separate, split):
        found = data.load(said, tmp_path / "data", prepare=True)
        assert found.train.tokens.tolist() == [*b"training text", EOS]
        assert found.held_out.tokens.tolist() == [*b"held out", EOS]


def test_of_a_folder_with_splits_the_held_out_one_is_not_trained_on(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / "texts" / split).mkdir(parents=True)
        (tmp_path / "texts" / split / "a.jsonl").write_text(json.dumps({"text": split}))
    found = data.load(config(tmp_path / "texts", eval_split="validation"), tmp_path / "data", prepare=True)
    assert found.train.tokens.tolist() == [*b"train", EOS]
    assert found.held_out.tokens.tolist() == [*b"validation", EOS]


@pytest.mark.parametrize(
    "said", [{"split": "t", "eval_split": "train"}, {"eval_path": "texts/train.txt"}, {"path": "texts/train.txt"}]
)
def test_what_is_held_out_is_not_trained_on(tmp_path: Path, said: dict[str, str]) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("train", "test"):
        (tmp_path / "texts" / f"{name}.txt").write_text(name)
    paths = {name: str(tmp_path / value) for name, value in said.items() if "path" in name}
    given: dict[str, Any] = {"eval_split": "test"} if "path" in said else said
    path = Path(paths.pop("path", str(tmp_path / "texts")))
    with pytest.raises(ValueError, match=r"texts/train.txt would be trained on and held out"):
        data.load(config(path, **given | paths), tmp_path / "data", prepare=True)


def test_a_text_that_ends_with_a_whole_group_leaves_none_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "CHARS_PER_CALL", 4)
    (tmp_path / "a.jsonl").write_text('{"text": "abcd"}\n')
    assert data.prepare_tokens(corpus(tmp_path / "a.jsonl"), TOKENIZER, tmp_path / "data").is_dir()
    (tmp_path / "none.jsonl").write_text("\n")
    nothing = replace(config(tmp_path / "none.jsonl"), tokenizer=TOKENIZER)
    with pytest.raises(ValueError, match="no text"):
        data.load(nothing, tmp_path / "data", prepare=True)


def test_other_text_or_tokenizer_is_other_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    first = data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data")
    assert data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data") == first
    assert data.prepare_tokens(corpus(tmp_path / "a.txt"), TOKENIZER, tmp_path / "data") != first
    (tmp_path / "a.txt").write_text("other")
    assert data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data") != first


def test_ranks_open_what_the_first_one_named(tmp_path: Path) -> None:
    """The same file may show another time on another node, or not be there at all."""
    (tmp_path / "a.txt").write_text("0123456789")
    said: list[list[str]] = []

    def hear(_: list[str]) -> list[str]:
        return said[0]

    def say(names: list[str]) -> list[str]:
        said.append(names)
        return names

    first = data.load(config(tmp_path), tmp_path / "data", prepare=True, share=say)
    os.utime(tmp_path / "a.txt", (1.0, 1.0))
    other = data.load(config(tmp_path), tmp_path / "data", prepare=False, share=hear)
    assert other.train.tokens.tolist() == first.train.tokens.tolist()
    (tmp_path / "a.txt").unlink()
    data.load(config(tmp_path / "a.txt"), tmp_path / "data", prepare=False, share=hear)


def test_the_shipped_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    assert tokenizer.vocab_size == 2048
    [ids] = tokenizer.encode(["The lobster is a crustacean ."])
    assert len(ids) < 16
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in Path(TOKENIZER).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert tokenizer_identity(str(copy)) == tokenizer_identity(TOKENIZER)


@pytest.mark.parametrize(
    ("dataset", "changes", "error", "message"),
    [
        ("missing", {}, FileNotFoundError, "no data set at"),
        ("empty", {}, FileNotFoundError, r"no \.txt, \.jsonl"),
        ("short.txt", {}, ValueError, "4 training tokens, a sample has 5"),
        ("wrong.jsonl", {}, ValueError, r"jsonl:2: no field 'text', there is body; see train.dataset.text_field"),
        ("wrong.parquet", {}, ValueError, r"wrong\.parquet: no field 'text', there is body"),
        ("list.json", {}, ValueError, r"list\.json:1: each line must be a JSON object, not list"),
        ("cut.jsonl", {}, ValueError, r"cut\.jsonl:1: each line must be a JSON object: "),
        ("number.jsonl", {}, ValueError, r"number\.jsonl:1: 'text' is no text: '7'"),
        ("latin.txt", {}, ValueError, r"latin\.txt: it must be UTF-8"),
        ("half.jsonl", {}, ValueError, r"half\.jsonl:1: each line .* surrogates not allowed"),
        ("deep.jsonl", {}, ValueError, r"deep\.jsonl:1: each line .* recursion"),
        ("cut.parquet", {}, ValueError, r"cut\.parquet: Parquet magic bytes"),
        ("a.csv", {}, ValueError, r"a\.csv: \.csv files are not read"),
        ("packed", {}, ValueError, r"packed/b\.jsonl\.gz: \.gz files are not read"),
        ("short.txt", {"tokenizer": None, "model": {}}, ValueError, "has none of its own"),
    ],
)
def test_says_what_is_wrong(
    tmp_path: Path, dataset: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("abc")
    (tmp_path / "wrong.jsonl").write_text('{"text": "abc"}\n{"body": "abc"}\n')
    pq.write_table(pa.table({"body": ["abc"]}), tmp_path / "wrong.parquet")
    (tmp_path / "list.json").write_text('[{"text": "abc"}]')
    (tmp_path / "cut.jsonl").write_text('{"text": "ab')
    (tmp_path / "number.jsonl").write_text('{"text": 7}')
    (tmp_path / "half.jsonl").write_text('{"text": "\\ud800"}')
    (tmp_path / "deep.jsonl").write_text("[" * 10**5)
    (tmp_path / "packed").mkdir()
    for name in ("cut.parquet", "a.csv", "packed/a.txt", "packed/b.jsonl.gz"):
        (tmp_path / name).write_text("0123456789ab")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    bad = replace(config(tmp_path / dataset), **changes)
    with pytest.raises(error, match=message):
        data.load(bad, tmp_path / "data", prepare=True)
    left = [path.name for path in (tmp_path / "data").glob("*") if path.suffix != ".lock"]
    assert all((tmp_path / "data" / name / "meta.json").exists() for name in left)


def test_records_without_a_text_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\ufeff{"text": "a"}\n\n{"text": null}\n{"text": ""}\n{"text": "b"}\n')
    pq.write_table(pa.table({"text": ["a", None, "", "b"]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        found = data.load(replace(config(tmp_path / name), seq_len=1), tmp_path / "data", prepare=True)
        assert found.train.tokens.tolist() == [*b"a", EOS, EOS, *b"b", EOS]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_tokens_are_prepared_where_a_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / "a.txt").write_text("text")
    assert data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data").is_dir()


def test_what_a_killed_preparation_has_left_goes_once_it_does_not_grow(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    made = data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data")
    shutil.rmtree(made)
    killed, growing, foreign, other = f".{made.name}.0a1b2c3d", f".{made.name}.deadbeef", f".{made.name}.kept", ".other"
    for name in (killed, growing, foreign, other):
        age_s = 60 if name == growing else data.LEFT_S + 60
        draft = made.with_name(name)
        draft.mkdir()
        (draft / "tokens.bin").write_text("half")
        for path in (draft / "tokens.bin", draft):
            os.utime(path, (time.time() - age_s,) * 2)
    data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data")
    left = {path.name for path in made.parent.iterdir() if path.suffix != ".lock"}
    assert left == {made.name, growing, foreign, other}


def test_processes_that_prepare_at_once_share_one_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (corpus(TEXT), "bytes", tmp_path)
    with context.Pool(3) as pool:
        folders = set(pool.starmap(data.prepare_tokens, [arguments] * 3))
    [folder] = folders
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == [folder]
    assert (folder / "tokens.bin").stat().st_size == 2 * (TEXT.stat().st_size + 1)


def test_who_loses_the_race_without_locks_takes_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text")
    winner = data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data")
    data._make(winner, corpus(tmp_path / "a.txt"), ByteTokenizer())
    assert sorted(path.name for path in winner.iterdir()) == ["meta.json", "tokens.bin"]
    assert [path for path in (tmp_path / "data").iterdir() if path.suffix != ".lock"] == [winner]


def test_tokens_that_others_may_have_written_are_not_used(tmp_path: Path) -> None:
    """Their folder's name can be calculated by anybody, and `dir` may be public."""
    (tmp_path / "a.txt").write_text("some text for a few samples")
    data_dir = tmp_path / "data"
    found = data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", data_dir)
    for place in (found / "tokens.bin", found, data_dir):
        before = place.stat().st_mode
        place.chmod(before | 0o002)
        with pytest.raises(Distrusted, match=f"others can write to {place}"):
            data.load(config(tmp_path / "a.txt"), data_dir, prepare=True)
        place.chmod(before)
    assert len(data.load(config(tmp_path / "a.txt"), data_dir, prepare=True).train)


def test_nothing_is_made_in_a_data_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    with pytest.raises(Distrusted, match="others can write to"):
        data.prepare_tokens(corpus(tmp_path / "a.txt"), "bytes", tmp_path / "data")
    assert not any((tmp_path / "data").iterdir())
