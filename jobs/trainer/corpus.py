"""Documents of a data set, read in turn, and the identity of their text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import TextIO

CHUNK_CHARS = 1 << 20
RECORDS = (".jsonl", ".ndjson", ".json", ".parquet")
SUFFIXES = (".txt", *RECORDS)
OTHERS: tuple[str, ...] = (".arrow", ".bz2", ".gz", ".xz", ".zst")
"""Files of data that are not read: without them, a folder would be trained on in part."""
HUGE = 10**12  # records of a split of the hub, to see whether slices of it overlap


@dataclass(frozen=True)
class Corpus:
    """A stream of text. A plain text file is a document; so is each record of other files or of the hub."""

    path: str
    name: str | None
    # of a folder, the files whose path begins so; a slice (`train[:20%]`) takes part of the records, and of a text
    # file's lines
    split: str | None
    text_field: str
    # each document, and each line of a text file, is to become a sample of so many tokens; None to join them
    pad_to: int | None = None
    max_tokens: int | None = None  # tokens to prepare, at most; None for all

    def identity(self) -> list[object]:
        """Return the text's identity as JSON: for local files path, size and time, else the hub's names."""
        files = self._files()
        stats: list[object] = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        stats += [self._sliced()[1]] if stats and self._sliced()[1] else []
        padded: list[object] = [self.pad_to] if self.pad_to else []
        padded += [f"{self.max_tokens} tokens"] if self.max_tokens else []
        return [self.text_field, *padded, *(stats or [self.path, self.name, self.split or "train"])]

    def stretches(self) -> list[tuple[Path, int, int]]:
        """Return the files, or splits of the hub as if they were huge, each with its first record and the end."""
        files, instruction = self._files(), self._sliced()[1]
        if not files:
            parts = [part.strip().partition("[") for part in (self.split or "train").split("+")]
            ends = [_bounds(f"train[{rest}", HUGE) if bracket else (0, HUGE) for _, bracket, rest in parts]
            return [(Path(self.path, self.name or "", part[0]), *own) for part, own in zip(parts, ends, strict=True)]
        if not instruction:
            return [(file, 0, sys.maxsize) for file in files]
        counts = [sum(1 for _ in self._records(file)) for file in files]
        begin, end = _bounds(instruction, sum(counts))
        stretches = [
            (file, max(begin - before, 0), min(end - before, count))
            for file, count, before in zip(files, counts, accumulate(counts, initial=0), strict=False)
        ]
        return [(file, first, past) for file, first, past in stretches if first < past]

    def documents(self) -> Iterator[Iterator[str]]:
        """Yield each document as an iterator over its pieces of text (a long file never lies in memory whole).

        Raises ValueError: a file's content does not fit its suffix, or a record lacks text in ``text_field``.
        """
        for file, first, past in self.stretches() if self._files() else ():
            if (first, past) == (0, sys.maxsize):
                yield from self._read(file)
            elif file.suffix.lower() not in RECORDS and not self.pad_to:
                yield islice(_lines(file), first, past)
            else:
                yield from islice(self._records(file), first, past)
        if not self._files():
            yield from self._read_hub()

    def _files(self) -> list[Path]:
        path, others = Path(self.path), OTHERS
        if path.is_file():
            found, others = [path], (*OTHERS, ".csv", ".tsv")
        elif path.is_dir():
            names = glob("**/*", root_dir=path, recursive=True)  # noqa: PTH207 - follows links, leaves out hidden names
            named = (path / name for name in names if name.startswith(self._sliced()[0]))
            ways = {file: [above.resolve() for above in file.parents if above.is_relative_to(path)] for file in named}
            found = sorted(file for file, way in ways.items() if len(set(way)) == len(way))  # no link that leads back
        elif path.is_absolute() or self.path.startswith("."):
            raise FileNotFoundError(f"no data set at {self.path}")
        else:
            return []
        if unread := next((file for file in found if file.suffix.lower() in others), None):
            raise ValueError(f"{unread}: {unread.suffix} files are not read; write .jsonl or .parquet files instead")
        files = [file for file in found if path.is_file() or (file.suffix.lower() in SUFFIXES and not file.is_dir())]
        if not files:
            split = f" of split {self.split}" if self.split else ""
            raise FileNotFoundError(f"{path}: no {', '.join(SUFFIXES)} file{split}")
        return files

    def _sliced(self) -> tuple[str, str]:
        """Return the split without its slice, and `train` with its slice if it has one."""
        begin, bracket, rest = (self.split or "").partition("[")
        return begin, bracket and f"train[{rest}"

    def _records(self, file: Path) -> Iterator[Iterator[str]]:
        """Read a file by the records that a slice counts: a text file's are its lines."""
        if file.suffix.lower() in RECORDS or self.pad_to:
            return self._read(file)
        return (iter([line]) for line in _lines(file))

    def _read(self, file: Path) -> Iterator[Iterator[str]]:
        if file.suffix.lower() == ".parquet":
            yield from self._read_parquet(file)
        elif file.suffix.lower() in RECORDS:
            yield from self._read_json_lines(file)
        elif self.pad_to:
            yield from (iter([line.rstrip("\n")]) for line in _lines(file))
        else:
            yield _text_pieces(file)

    def _read_json_lines(self, file: Path) -> Iterator[Iterator[str]]:
        for number, line in enumerate(_lines(file), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if "\\u" in line:  # perhaps half of a pair, which no tokenizer takes
                    json.dumps(record, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as exc:
                raise ValueError(f"{file}:{number}: each line must be a JSON object: {exc}") from exc
            yield from self._text(record, f"{file}:{number}")

    def _read_parquet(self, file: Path) -> Iterator[Iterator[str]]:
        import pyarrow.parquet  # only where such files are: it is slow to import

        try:
            table = pyarrow.parquet.ParquetFile(file)
        except pyarrow.ArrowInvalid as exc:
            raise ValueError(f"{file}: {exc}") from exc
        if self.text_field not in (names := table.schema_arrow.names):
            raise self._lacks_field(names, str(file))
        batches = table.iter_batches(columns=[self.text_field])
        for count, text in enumerate(chain.from_iterable(batch.column(0).to_pylist() for batch in batches), 1):
            yield from self._text({self.text_field: text}, f"{file}, record {count}")

    def _read_hub(self) -> Iterator[Iterator[str]]:
        import datasets  # likewise

        stream = bool(self.max_tokens) and not self._sliced()[1]  # a stream has no slices
        records = datasets.load_dataset(self.path, self.name, split=self.split or "train", streaming=stream)
        if names := records.column_names:  # a stream may not know them
            if self.text_field not in names:
                raise self._lacks_field(names, self.path)
            records = records.select_columns([self.text_field])
        for count, record in enumerate(records, 1):
            yield from self._text(record, f"{self.path}, record {count}")

    def _text(self, record: Mapping[str, object], place: str) -> Iterator[Iterator[str]]:
        if not isinstance(record, dict):
            raise ValueError(f"{place}: each line must be a JSON object, not {type(record).__name__}")  # noqa: TRY004
        if self.text_field not in record:
            raise self._lacks_field(record, place)
        text = record[self.text_field]
        if not isinstance(text, str | None):
            raise ValueError(f"{place}: {self.text_field!r} is no text: {str(text)[:80]!r}")  # noqa: TRY004
        if text is not None:
            yield iter([text])

    def _lacks_field(self, names: Iterable[str], place: str) -> ValueError:
        fields = ", ".join(sorted(names)) or "nothing"
        return ValueError(f"{place}: no field {self.text_field!r}, there is {fields}; see train.dataset.text_field")


def _bounds(instruction: str, count: int) -> tuple[int, int]:
    from datasets import ReadInstruction

    [part] = ReadInstruction.from_spec(instruction).to_absolute({"train": count})
    return part.from_ or 0, count if part.to is None else part.to


def _lines(file: Path) -> Iterator[str]:
    with _opened(file) as text:
        yield from text


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """A file's text, without the mark of UTF-8 that some editors put before it."""
    try:
        with file.open(encoding="utf-8-sig") as text:
            yield text
    except UnicodeDecodeError as exc:
        raise ValueError(f"{file}: it must be UTF-8: {exc}") from exc


def _text_pieces(file: Path) -> Iterator[str]:
    """Yield pieces that end with a line, so that their boundaries do not depend on a reader's buffer."""
    with _opened(file) as text:
        while lines := text.readlines(CHUNK_CHARS):
            yield "".join(lines)
