"""Takes pictures of a report: `python -m docs.screenshots DIR/report.html OUTPUT`.

`desktop.png` is what a wide window shows first, `charts.png` and `timelines.png` what comes below,
`phone.png` the beginning on a phone; the files that end in `-whole.png` are the whole page, to be
looked at, and `print.pdf` is the page on paper. Needs Chromium, which is steered over a pipe.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
DESKTOP, PHONE = (1280, 940), (390, 844)


class Browser:
    """A headless Chromium, driven by its own protocol: JSON messages that end with a zero byte."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._left = b""
        self._number = 0
        self._session: str | None = None

    def open(self, path: Path, size: tuple[int, int], *, phone: bool) -> None:
        """Show a file in a page of that size, and wait until it is drawn."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Page.enable")
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._wait_for("Page.loadEventFired")
        # Two frames after everything was loaded, charts have their final size.
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of a script."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"in the page: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def picture(self, path: Path, top: float, height: float) -> None:
        """A section of the page, over its whole width."""
        width = self.run("document.documentElement.clientWidth")
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print(self, path: Path) -> None:
        """The page on paper."""
        answer = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _wait_for(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            part = os.read(self._reading, 1 << 20)
            if not part:
                raise RuntimeError("the browser has gone")
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with the block."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("there is no Chromium on the path: install it, as with apt-get")
    to_browser, ours_out = os.pipe()
    ours_in, from_browser = os.pipe()

    def arrange() -> None:
        # The browser reads from 3 and writes to 4. First copied higher: the pipes may be 3 or 4.
        read_from, write_to = os.dup(to_browser), os.dup(from_browser)
        high = [os.dup(read_from), os.dup(write_to)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(  # noqa: S603 - found on the path
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=arrange,  # noqa: PLW1509 - descriptors 3 and 4 are fixed by the protocol
            pass_fds=(3, 4, to_browser, from_browser),
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        one = Browser(ours_in, ours_out)
        try:
            yield one
        finally:
            with contextlib.suppress(RuntimeError, OSError):
                one._session = None
                one.call("Browser.close")
            os.close(ours_in)
            os.close(ours_out)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def take(report: Path, output: Path) -> None:
    """All pictures of a report."""
    output.mkdir(parents=True, exist_ok=True)
    with browser() as one:
        one.open(report, DESKTOP, phone=False)
        one.picture(output / "desktop.png", 0, DESKTOP[1])
        for name, selector in {"charts": ".charts", "timelines": ".timelines"}.items():
            place = f"document.querySelector('{selector}')?.closest('figure, .charts')"
            top, height = one.run(
                f"(() => {{const box = {place}?.getBoundingClientRect();"
                "return box ? [box.top + scrollY, box.height] : [0, 0]})()"
            )
            if height:
                one.picture(output / f"{name}.png", top - 56 * (name == "charts") - 12, height + 80)
        one.picture(output / "desktop-whole.png", 0, _height(one))
        one.print(output / "print.pdf")
        one.open(report, PHONE, phone=True)
        if (wide := one.run("document.documentElement.scrollWidth")) > PHONE[0]:
            raise SystemExit(f"on a phone the page is {wide} wide and not {PHONE[0]}")
        one.picture(output / "phone.png", 0, 2 * PHONE[1])
        one.picture(output / "phone-whole.png", 0, _height(one))


def _height(one: Browser) -> int:
    return int(one.run("document.documentElement.scrollHeight"))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    take(given.report, given.output)
    for path in sorted(given.output.iterdir()):
        print(f"{path.stat().st_size:>9,} {path}")


if __name__ == "__main__":
    main()
