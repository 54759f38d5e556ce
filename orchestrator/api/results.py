"""A campaign's results, as `campaign recommend` and `campaign compare` have them."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from html import escape

from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.formatting import html_table
from dscampaign.orchestrator.report.compare.results import UNCONFIRMED, Results, results_of
from dscampaign.orchestrator.report.measure.load import follow_ups_of, read_runs
from dscampaign.orchestrator.spec.objective import Objective


@dataclass(frozen=True)
class Recommendation(Results):
    """The results of a campaign; `workloads[i].answer` has the sentence and the conditions, best first."""

    @property
    def sentence(self) -> str:
        """The answer for each workload, a line each."""
        return "\n".join(one.answer.sentence for one in self.workloads) or UNCONFIRMED

    def __repr__(self) -> str:
        return f"<results of {self.campaign.name}: {self.sentence}>"

    def _repr_html_(self) -> str:
        from dscampaign.orchestrator.report.page.looks import looks_of
        from dscampaign.orchestrator.report.page.render import pictures_of
        from dscampaign.orchestrator.report.page.summary import summary

        first = summary(self, looks_of(self))
        tables = (
            html_table(self.sentence, table.header, [[cell.text for cell in row] for row in table.rows])
            for table in first.tables
        )
        pictures = zip(first.charts, pictures_of(first.charts).values(), strict=True)
        images = (
            f'<img alt="{escape(chart.title)}" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
            for chart, svg in pictures
        )
        return "".join([*tables, *images])


def measured(
    store: Store, campaign: CampaignRow, baseline: str | None = None, by: Objective | None = None
) -> Recommendation:
    """Compare the runs of a campaign; raise UserError if the baseline does not exist."""
    with store.read() as conn:
        search, follow_ups = None, follow_ups_of(conn, campaign)
        if campaign.provenance.get("search"):
            from dscampaign.orchestrator.reconcile.search import read_search  # what it loads takes a second

            search = read_search(conn, campaign)
    return Recommendation(**vars(results_of(campaign, read_runs(store, campaign), baseline, by, search, follow_ups)))
