"""Become the launcher inside of a container: with its environment, in its folder, deaf to a request to stop.

The image's variables win over the host's; the attempt's win over both.

Runs in the image's own interpreter, hence: standard library only, Python 3.8 syntax.
Usage: inside.py FILE COMMAND [ARGUMENT...], with the file as `jobs.agent.container` writes it.
"""

import json
import os
import re
import signal
import sys
from typing import List


def main(argv: List[str]) -> None:
    """Replace this process by the command."""
    with open(argv[0]) as file:
        request = json.load(file)
    image = {name: value for name, value in os.environ.items() if not re.fullmatch(request["foreign"], name)}
    env = {**request["host"], **image, **request["given"]}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (request["packages"], env.get("PYTHONPATH"))))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm may send it to every process; ranks ask for it
    os.chdir(request["folder"])
    os.execvpe(argv[1], argv[1:], env)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
