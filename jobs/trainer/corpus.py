"""Documents of a data set, read one by one, and what identifies them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK_CHARS = 1 << 20
SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class Corpus:
    """One stream of text.

    A plain text file is one document; so is each record of a JSON lines or parquet file or of a hub data set.
    """

    path: str
    name: str | None
    split: str | None
    text_field: str

    def identity(self) -> list[object]:
        """What decides the text, as JSON: for local files path, size and time, else the hub's names."""
        files = self._files()
        stats: list[object] = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        return [self.text_field, *(stats or [self.path, self.name, self.split or "train"])]

    def files(self) -> set[Path]:
        """The local files; none of a data set of the hub. Raises FileNotFoundError as ``documents`` does."""
        return {file.resolve() for file in self._files()}

    def documents(self) -> Iterator[Iterator[str]]:
        """Yields each document as an iterator over its pieces of text (a long file never lies in memory whole).

        Raises:
            KeyError: a record has no ``text_field``.
            ValueError: a file is not what its suffix says.
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
        found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if self.split:
            found = [file for file in found if file.relative_to(path).as_posix().startswith(self.split)]
        if not found:
            split = f" of split {self.split}" if self.split else ""
            raise FileNotFoundError(f"{path}: no {', '.join(SUFFIXES)} file{split}")
        return found

    def _read(self, file: Path) -> Iterator[Iterator[str]]:
        if file.suffix == ".parquet":
            yield from self._read_parquet(file)
        elif file.suffix in (".jsonl", ".json"):
            with file.open(encoding="utf-8") as lines:
                yield from (iter([json.loads(line)[self.text_field]]) for line in lines if line.strip())
        else:
            yield _text_pieces(file)

    def _read_parquet(self, file: Path) -> Iterator[Iterator[str]]:
        import pyarrow.parquet  # only where such files are: it is slow to import

        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(columns=[self.text_field]):
            yield from (iter([text]) for text in batch.column(0).to_pylist())

    def _read_hub(self) -> Iterator[Iterator[str]]:
        import datasets  # likewise

        records = datasets.load_dataset(self.path, self.name, split=self.split or "train")
        yield from (iter([record[self.text_field]]) for record in records.select_columns([self.text_field]))


def _text_pieces(file: Path) -> Iterator[str]:
    """Pieces that end with a line, so that where they are cut does not depend on a reader's buffer."""
    with file.open(encoding="utf-8") as text:
        while lines := text.readlines(CHUNK_CHARS):
            yield "".join(lines)
