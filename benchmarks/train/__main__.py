"""``python benchmarks/train``: see run.py."""

import sys

from dscampaign.benchmarks.train.run import main

if __name__ == "__main__":
    sys.exit(main())
