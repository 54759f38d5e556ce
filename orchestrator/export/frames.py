"""A campaign's results as pandas frames, for a notebook: `dscampaign.load("sweep").steps`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.location import PlaceOptions
from dscampaign.orchestrator.campaign.lookup import open_campaign

from .columns import Dtype, typed, typed_groups
from .rows import Row, columns_and_rows

if TYPE_CHECKING:
    import pandas as pd

_CATEGORIES: Final = frozenset({"run", "node", "state", "kind", "changes", "failure_class", "executor", "config_hash"})
_PARAM: Final = "param."


def load(name: str | None = None, *, store: str | None = None, dir: str | None = None) -> Frames:
    """Open a campaign's results.

    Args:
        name: The campaign or its spec file; optional if the store has only one campaign.
        store: Its database, as `--store`; the command line's default.
        dir: Its shared folder, as `--dir`.

    Raises:
        ImportError: pandas is not installed.
        UserError: The campaign does not exist, or a configuration file cannot be read.
        StoreError: The database does not exist, does not respond, or belongs to another version.
    """
    try:
        import pandas as pd  # noqa: F401 - to say so now, not at the first frame
    except ImportError as error:
        raise ImportError("dscampaign.load needs pandas: pip install 'dscampaign[pandas]'") from error
    return Frames(*open_campaign(PlaceOptions(dir, store), name))


class Frames:
    """The tables of a campaign, each read on first use; call `load` again to refresh.

    The columns equal those of `campaign export`. Times are UTC; a missing figure is NaN, and so is a figure that is not
    a
    number: Parquet and CSV separate the two.
    """

    def __init__(self, store: Store, campaign: CampaignRow) -> None:
        self._store, self._campaign = store, campaign

    def __repr__(self) -> str:
        return f"<campaign {self.name}: runs, steps, attempts, gpus, events>"

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self._campaign.name

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run, in the order of the matrix, with its parameters as columns `param.*`."""
        import pandas as pd

        frame = self._read("runs")
        return frame.rename(columns={"name": "run"}).astype({"run": pd.CategoricalDtype(list(frame["name"]))})

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row for each run and step, from the highest attempt that made it, with the run's parameters."""
        return self._with_params(self._read("steps"))

    @cached_property
    def attempts(self) -> pd.DataFrame:
        """A row for each attempt, with the run's parameters."""
        return self._with_params(self._read("attempts"))

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """A row for each GPU and sample, with the run's parameters."""
        return self._with_params(self._read("gpus"))

    @cached_property
    def events(self) -> pd.DataFrame:
        """A row for each event."""
        return self._read("events")

    def _read(self, what: str) -> pd.DataFrame:
        with columns_and_rows(self._store, self._campaign, what) as (columns, rows):
            return _frame(columns, *typed_groups(what, columns, rows))

    def _with_params(self, frame: pd.DataFrame) -> pd.DataFrame:
        params = self.runs[["run", *(name for name in self.runs if name.startswith(_PARAM))]]
        frame = frame.astype({"run": self.runs["run"].dtype})
        rows = params.drop(columns="run").iloc[frame["run"].cat.codes].set_axis(frame.index)
        return frame.join(rows)


def _frame(columns: Sequence[str], found: Sequence[Dtype], groups: Iterable[Sequence[Row]]) -> pd.DataFrame:
    """Build the frame column by column, some rows at a time: a number takes eight bytes, fewer than an object."""
    import numpy as np
    import pandas as pd

    parts: list[list[Any]] = [[] for _ in columns]
    for group in groups:
        for part, kind, values in zip(parts, found, zip(*group, strict=True), strict=True):
            part.append(_column(values, kind))
    series = {}
    for name, kind, part in zip(columns, found, parts, strict=True):
        whole = pd.concat(part, ignore_index=True) if part else _column((), kind)
        series[name] = whole.astype("category") if name in _CATEGORIES else whole
    return pd.DataFrame(series, index=np.arange(len(next(iter(series.values())))))


def _column(values: Sequence[Any], kind: Dtype) -> pd.Series[Any]:
    import pandas as pd

    if kind is Dtype.TIME:
        moments_s = pd.Series([typed(value, kind) for value in values], dtype="float64")
        return pd.to_datetime(moments_s, unit="s", utc=True).astype("datetime64[us, UTC]")
    if kind is Dtype.STRUCTURE:
        return pd.Series([None if value is None else json.dumps(value) for value in values], dtype="str")
    dtype = {Dtype.TEXT: "str", Dtype.WHOLE: "Int64", Dtype.FLAG: "boolean", Dtype.REAL: "float64"}[kind]
    return pd.Series([typed(value, kind) for value in values], dtype=dtype)
