"""The command `campaign`, also `python -m dscampaign.orchestrator.cli`: its entry point."""

import sys

from dscampaign.orchestrator.errors import EXIT_INTERRUPTED


def main() -> int:
    """Run the command; return its exit code. Ctrl-C is quiet while it loads, too: that may take seconds."""
    try:
        from .main import main as run
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
