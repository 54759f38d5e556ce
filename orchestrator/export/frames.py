"""A campaign's results as pandas frames, for a notebook: `dscampaign.load("sweep").steps`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.location import PlaceOptions, StrPath
from dscampaign.orchestrator.campaign.selection import open_campaign

from .arrow import batches
from .rows import columns_and_rows

if TYPE_CHECKING:
    import pandas as pd

_CATEGORIES: Final = frozenset({"run", "node", "state", "kind", "changes", "failure_class", "executor", "config_hash"})


def load(name: StrPath | None = None, *, store: str | None = None, dir: StrPath | None = None) -> Frames:
    """Open a campaign's results.

    Args:
        name: The campaign or its spec file; optional if the store has a single campaign.
        store: Its database, as `--store`; the command line's default.
        dir: Its shared folder, as `--dir`.

    Raises:
        ImportError: pandas or pyarrow is not installed.
        UserError: The campaign does not exist, or a configuration file cannot be read.
        StoreError: The database does not exist, does not respond, or belongs to another version.
    """
    try:
        import pandas as pd  # noqa: F401 - to report it now, not at the first frame
        import pyarrow as pa  # noqa: F401
    except ImportError as error:
        raise ImportError("dscampaign.load needs pandas and pyarrow: pip install 'dscampaign[pandas]'") from error
    return Frames(*open_campaign(PlaceOptions(dir, store), name))


class Frames:
    """The tables of a campaign, each read on first use; call `load` again to refresh.

    The columns are as in `campaign export`. Times are UTC; a missing figure is NaN, and so is a figure that is not
    a number: Parquet and CSV separate the two.
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

    def _read(self, kind: str) -> pd.DataFrame:
        import pandas as pd
        import pyarrow as pa

        with columns_and_rows(self._store, self._campaign, kind) as (columns, rows):
            schema, record_batches = batches(kind, columns, rows)
            table = pa.Table.from_batches(record_batches, schema)
        dtypes: dict[Any, Any] = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
        categories = [name for name in columns if name in _CATEGORIES]
        frame: pd.DataFrame = table.to_pandas(categories=categories, types_mapper=dtypes.get)
        return frame

    def _with_params(self, frame: pd.DataFrame) -> pd.DataFrame:
        params = self.runs[["run", *(name for name in self.runs if name.startswith("param."))]]
        frame = frame.astype({"run": self.runs["run"].dtype})
        rows = params.drop(columns="run").iloc[frame["run"].cat.codes].set_axis(frame.index)
        return frame.join(rows)
