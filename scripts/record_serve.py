"""Records the page of `campaign serve` as pictures: python scripts/record_serve.py STORE.db[.gz] FOLDER."""

from __future__ import annotations

import base64
import gzip
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.browser import browser, until

PICTURES = (
    ("light", 1400, "", 960),
    ("dark", 1400, "#run-1", 1240),
    ("light", 390, "", 1240),
    ("dark", 390, "#run-1", 1240),
)
"""Scheme, width, the run if any, and height."""


def main(source: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "campaign" / "campaign.db"
        copy.parent.mkdir(mode=0o700)
        content = source.read_bytes()
        copy.write_bytes(gzip.decompress(content) if source.suffix == ".gz" else content)
        store = Store.open(f"sqlite:///{copy}", check_schema=False)
        upgrade(store)
        store.close()
        words = [sys.executable, "-m", "dscampaign.orchestrator.cli", "serve"]
        with (
            subprocess.Popen(words, cwd=temporary, stdout=subprocess.PIPE, text=True) as server,
            browser(Path(temporary) / "b") as opened,
        ):
            assert server.stdout
            link = server.stdout.readline().strip()
            opened.open(link)
            until(opened, "document.getElementById('rows')?.children.length")
            for scheme, width, run, height in PICTURES:
                opened.open(link.partition("?")[0], width, height, prefers_color_scheme=scheme)
                until(opened, "document.querySelectorAll('.spark').length")
                until(opened, "document.getElementById('answer').textContent")
                if run:
                    opened.evaluate(f"location.hash = '{run}'")
                    until(opened, "document.querySelectorAll('#run .mark-line path').length")
                time.sleep(1.5)  # until nothing moves
                picture = opened.call("Page.captureScreenshot", format="png")["data"]
                (folder / f"serve-{scheme}-{width}.png").write_bytes(base64.b64decode(picture))
            server.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
