"""The command `campaign`, also `python -m dscampaign.orchestrator.cli`: its entry point."""

import signal
import sys

from dscampaign.orchestrator.errors import EXIT_INTERRUPTED


def main() -> int:
    """Run the command; return its exit code. Ctrl-C is quiet while it loads, too: that may take seconds.

    SIGTERM, as from Slurm, a service manager or `timeout`, ends it as cleanly as Ctrl-C.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from .main import main as run
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return run()


if __name__ == "__main__":
    sys.exit(main())
