"""A real browser without a window, driven over its debugging pipe: keys, pointer, scripts, sizes, pictures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_TIMEOUT_S: Final = 60


def _found_browser() -> str | None:
    """The path of a browser of the Chromium family, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """One page. Messages are JSON, each ended by a zero byte: no library is needed."""

    def __init__(self, writer: IO[bytes], reader: IO[bytes]) -> None:
        self._writer, self._reader, self._number = writer, reader, 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What the browser answers to a command of its protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        return self._answer(lambda found: found.get("id") == self._number)["result"]  # type: ignore[no-any-return]

    def _answer(self, wanted: Any) -> dict[str, Any]:
        while True:
            found = self._message()
            if found.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self._errors.append(json.dumps(found["params"]))
            if wanted(found):
                if "error" in found:
                    raise RuntimeError(found["error"])
                return found

    def _message(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has ended")
            text += byte
        found: dict[str, Any] = json.loads(text)
        return found

    @property
    def errors(self) -> list[str]:
        """Exceptions and refusals that the page's console has."""
        self.evaluate("0")
        return self._errors

    def open(
        self, page: Path | str, width: int = 1400, height: int = 900, *, script: bool = True, **media: str
    ) -> None:
        """Loads a file or an address in a window; ``media`` are features such as `prefers_color_scheme="dark"`."""
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self._answer(lambda found: found.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Moves the pointer, in pixels of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Presses and releases the first button there."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def until(opened: Browser, expression: str) -> Any:
    """The value of an expression once it is true: charts are drawn behind the script."""
    for _ in range(600):
        if found := opened.evaluate(expression):
            return found
        time.sleep(0.05)
    raise AssertionError(expression)


def middle(opened: Browser, element: str) -> tuple[float, float]:
    """The middle of an element, scrolled into the window."""
    opened.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
    box = f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({element}.getBoundingClientRect())"
    x, y = opened.evaluate(box)
    return x, y


def click(opened: Browser, element: str) -> None:
    """Clicks on the middle of an element."""
    opened.click(*middle(opened, element))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile is in this folder; it ends with the block."""
    path = _found_browser()
    assert path, f"none of {', '.join(BROWSERS)} is installed: see scripts/test_dependencies.sh"
    to_it, from_us = os.pipe()
    to_us, from_it = os.pipe()
    words = [
        path,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
    ]
    # The browser reads commands from its descriptor 3 and answers on 4: first to higher ones, they may be these.
    moved = (
        "import os, sys; a, b = (os.dup(os.dup(os.dup(int(n)))) for n in sys.argv[1:3]);"
        "os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", moved, str(to_it), str(from_it), *words],
        pass_fds=(to_it, from_it),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_it)
    os.close(from_it)
    with os.fdopen(from_us, "wb") as writer, os.fdopen(to_us, "rb") as reader:
        try:
            yield Browser(writer, reader)
        finally:
            with suppress(OSError):
                writer.write(b'{"id":0,"method":"Browser.close"}\0')
                writer.flush()
            try:
                process.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
