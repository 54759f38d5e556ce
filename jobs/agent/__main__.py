"""``python -m dscampaign.jobs.agent BATCH_DIR [INDEX]``: this node's part of an attempt."""

import sys

from .agent import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
