"""``python benchmarks/oom``: see run.py."""

import sys

from dscampaign.benchmarks.oom.run import main

if __name__ == "__main__":
    sys.exit(main())
