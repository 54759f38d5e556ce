"""An image for containers, made of this machine's Debian files: a Python, a shell, and a stand-in for DeepSpeed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from dscampaign.tests.support import stub_launcher

PYTHON = Path("/usr/bin/python3")
MARKER = "i-am-the-image"
RUNNER = f"""
import os, runpy, sys
sys.argv[1:1] = ["-u", "-m", "deepspeed.launcher.runner"]
site = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
runpy.run_path(os.path.join(site, "{Path(stub_launcher.__file__).name}"), run_name="__main__")
"""


def make_image(folder: Path) -> Path:
    """An image in a folder, as `ch-run` takes it. Nothing of this package is in it."""
    for name in ("dev", "proc", "sys", "etc", "tmp", "usr/bin", "usr/lib", "opt/site/deepspeed/launcher", "ch"):
        (folder / name).mkdir(parents=True)
    for name in ("passwd", "group"):  # in place of which `ch-run` mounts its own
        (folder / "etc" / name).touch()
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to("usr/bin" if name == "bin" else "usr/lib")
    python = PYTHON.resolve()
    shutil.copy2(python, folder / "usr/bin/python3")
    shutil.copy2(Path("/bin/sh").resolve(), folder / "usr/bin/sh")
    unused = shutil.ignore_patterns("__pycache__", "test", "tests", "idlelib", "tkinter", "dist-packages", "config-*")
    shutil.copytree(f"/usr/lib/{python.name}", folder / "usr/lib" / python.name, ignore=unused)
    for library in _libraries(python, Path("/bin/sh"), *Path(f"/usr/lib/{python.name}/lib-dynload").glob("*.so")):
        place = folder / str(library).lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), place)
    (folder / MARKER).touch()
    for name, text in {"__init__.py": "", "launcher/__init__.py": "", "launcher/runner.py": RUNNER}.items():
        (folder / "opt/site/deepspeed" / name).write_text(text)
    shutil.copy2(stub_launcher.__file__, folder / "opt/site")
    lines = ("PATH=/usr/bin", "PYTHONPATH=/opt/site", "OF_IMAGE=image's", "OF_BOTH=image's")
    (folder / "ch/environment").write_text("".join(f"{line}\n" for line in lines))
    return folder


def _libraries(*programs: Path) -> set[Path]:
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)}
