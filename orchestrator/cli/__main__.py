"""`python -m dscampaign.orchestrator.cli`: the command `campaign`, whatever PATH says."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
