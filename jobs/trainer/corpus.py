"""Documents of a data set, read in turn, and the identity of their text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TextIO

CHUNK_CHARS = 1 << 20
SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Corpus:
    """A stream of text.

    A plain text file is a document; so is each record of a JSON lines or parquet file or of a hub data set. Records
    with null as text, which collections from the web have, are skipped.

    Attributes:
        pad_to: each document, and each line of a text file, is to become a sample of so many tokens; None to join them.
    """

    path: str
    name: str | None
    split: str | None
    text_field: str
    pad_to: int | None = None

    def identity(self) -> list[object]:
        """Return the text's identity as JSON: for local files path, size and time, else the hub's names."""
        files = self._files()
        stats: list[object] = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        padded = [self.pad_to] if self.pad_to else []
        return [self.text_field, *padded, *(stats or [self.path, self.name, self.split or "train"])]

    def files(self) -> set[Path]:
        """The local files; none of a data set of the hub. Raises FileNotFoundError as ``documents`` does."""
        return {file.resolve() for file in self._files()}

    def documents(self) -> Iterator[Iterator[str]]:
        """Yield each document as an iterator over its pieces of text (a long file never lies in memory whole).

        Raises:
            ValueError: a file's content does not fit its suffix, or a record lacks text in ``text_field``.
        """
        files = self._files()
        for file in files:
            yield from self._read(file)
        if not files:
            yield from self._read_hub()

    def _files(self) -> list[Path]:
        path = Path(self.path)
        if path.is_file():
            return [path]
        if not path.is_dir():
            if path.is_absolute() or self.path.startswith("."):
                raise FileNotFoundError(f"no data set at {self.path}")
            return []
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if self.split:
            files = [file for file in files if file.relative_to(path).as_posix().startswith(self.split)]
        if not files:
            split = f" of split {self.split}" if self.split else ""
            raise FileNotFoundError(f"{path}: no {', '.join(SUFFIXES)} file{split}")
        return files

    def _read(self, file: Path) -> Iterator[Iterator[str]]:
        if file.suffix == ".parquet":
            yield from self._read_parquet(file)
        elif file.suffix in (".jsonl", ".json"):
            yield from self._read_json_lines(file)
        elif self.pad_to:
            with _opened(file) as lines:
                yield from (iter([line.rstrip("\n")]) for line in lines)
        else:
            yield _text_pieces(file)

    def _read_json_lines(self, file: Path) -> Iterator[Iterator[str]]:
        with _opened(file) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield from self._text(_record(line, f"{file}:{number}"), f"{file}:{number}")

    def _read_parquet(self, file: Path) -> Iterator[Iterator[str]]:
        import pyarrow.parquet  # only where such files are: it is slow to import

        table = pyarrow.parquet.ParquetFile(file)
        if self.text_field not in (names := table.schema_arrow.names):
            raise self._lacks_field(names, str(file))
        batches = table.iter_batches(columns=[self.text_field])
        for count, text in enumerate(chain.from_iterable(batch.column(0).to_pylist() for batch in batches), 1):
            yield from self._text({self.text_field: text}, f"{file}, record {count}")

    def _read_hub(self) -> Iterator[Iterator[str]]:
        import datasets  # likewise

        records = datasets.load_dataset(self.path, self.name, split=self.split or "train")
        if self.text_field not in records.column_names:
            raise self._lacks_field(records.column_names, self.path)
        for count, record in enumerate(records.select_columns([self.text_field]), 1):
            yield from self._text(record, f"{self.path}, record {count}")

    def _text(self, record: Mapping[str, object], place: str) -> Iterator[Iterator[str]]:
        """Yield the document of a record, if it has text."""
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


def _record(line: str, place: str) -> Mapping[str, object]:
    try:
        record = json.loads(line)
    except ValueError as exc:
        raise ValueError(f"{place}: each line must be a JSON object: {exc}") from exc
    if not isinstance(record, dict):
        raise ValueError(f"{place}: each line must be a JSON object, not {type(record).__name__}")  # noqa: TRY004
    return record


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
