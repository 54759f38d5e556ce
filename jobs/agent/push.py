"""Send the spool's lines to a store that this node can reach, in the background.

Training never waits for it: lines that cannot be pushed now wait in the spool, and the reconciler drains the rest.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload

if TYPE_CHECKING:
    from dscampaign.db.store import Store

INTERVAL_S = 5.0
FINAL_TIMEOUT_S = 20.0


class Pusher:
    """A thread that ingests an attempt's metrics and the telemetry of all its nodes, if the store is for agents."""

    def __init__(self, payload: Payload, spool: Path, store_url: str | None) -> None:
        self._attempt_id, self._token, self._nodes = payload.attempt_id, payload.token, payload.nodes
        self._spool, self._url = spool, store_url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._printed = ""
        self._store: Store | None = None

    def start(self) -> None:
        """Start pushing, if there is a store to push to."""
        if self._url:
            self._thread.start()

    def finish(self) -> None:
        """Push once more and stop; give up after a deadline, since the spool keeps everything."""
        if self._url:
            self._stop.set()
            self._thread.join(FINAL_TIMEOUT_S)

    def _loop(self) -> None:
        while not self._stop.wait(INTERVAL_S * random.uniform(0.8, 1.2)):  # a thousand agents must not come at once
            self._push()
        self._push()

    def _push(self) -> None:
        # Imported here: SQLAlchemy costs a third of a second, and an agent without a database never needs it.
        from dscampaign.db import queries
        from dscampaign.db.errors import StoreError
        from dscampaign.db.ingest.attempt import attempt_spools, drain_attempt
        from dscampaign.db.store import Store, check_version

        assert self._url is not None
        paths = AttemptPaths(self._spool.parent)
        gpus = [paths.gpu_spool(node) for node in range(self._nodes)]
        try:
            # Kept, without a connection between pushes: it has compiled its statements.
            store = self._store = self._store or Store.open(self._url, check_schema=False)
            try:
                with store.write() as conn:  # one transaction: a thousand agents do this every five seconds
                    check_version(conn)
                    if not queries.beat(conn, self._attempt_id, self._token):
                        raise StoreError("it knows nothing of this attempt: does CAMPAIGN_STORE name another store?")
                drain_attempt(store, attempt_spools(self._attempt_id, self._spool, paths.forward_spool, gpus))
            finally:
                store.close()
            text = ""
        except Exception as exc:  # noqa: BLE001 - whatever it is, the spool keeps the lines, and the next try may go well
            text = f"metrics or telemetry wait beside {self._spool.name}, the store does not take them: {exc}"
        if text and text != self._printed:
            print(text, file=sys.stderr, flush=True)
        self._printed = text
