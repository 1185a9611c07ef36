"""A headless Chromium, driven by the DevTools protocol over a pipe.

Small on purpose: the tests need one page at a time, and what is said over the pipe is JSON between zero bytes. The
browser is that of scripts/chromium.sh. Single-threaded; every wait has a deadline.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
FLAGS = (
    # What runs here is our own page, and a container has no other sandbox to offer.
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-color-profile=srgb",
    # Whatever a page would ask for fails at once.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:1",
)


class BrowserError(Exception):
    """The browser refused a command, an expression threw, or nothing came in time."""


class Browser:
    """A running browser. Commands go out and come back one at a time; events in between are kept."""

    def __init__(self, program: Path) -> None:
        self._folder = tempfile.mkdtemp(prefix="flexmem-report-")
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4. Ours must not be in the way there.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (reads, writes)]
        os.close(reads)
        os.close(writes)
        environment = {**os.environ, "HOME": self._folder}
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]} {high[0]}<&- {high[1]}>&-', "chromium"),
                *(str(program), *FLAGS, f"--user-data-dir={self._folder}/profile", "--remote-debugging-pipe"),
            ],
            pass_fds=high,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in high:
            os.close(descriptor)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End the browser; it is killed if it does not go by itself."""
        try:
            self.command("Browser.close")
            self._process.wait(timeout=10)
        except (BrowserError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(timeout=10)
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Run a command and give back its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise BrowserError(f"{what}: no answer within {TIMEOUT_S} s")
            data = os.read(self._from, 1 << 20)
            if not data:
                raise BrowserError(f"{what}: the browser is gone, with status {self._process.poll()}")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    @contextmanager
    def page(self, width: int = 1280, height: int = 900, touch: bool = False) -> Iterator["Page"]:
        """A new page of a size in CSS pixels."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        page = Page(self, session)
        page.resize(width, height, touch)
        try:
            yield page
        finally:
            self.command("Target.closeTarget", targetId=target)


KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Escape": 27, "Enter": 13, "Tab": 9}


class Page:
    """One page, and what a person does with it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.command(method, self._session, **parameters)

    def resize(self, width: int, height: int, touch: bool = False, ratio: float = 1) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio, mobile=touch
        )
        self.command("Emulation.setTouchEmulationEnabled", enabled=touch)

    def prefer(self, scheme: str) -> None:
        """Set what `prefers-color-scheme` says: `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def open(self, path: Path) -> None:
        """Load a report and wait until it has drawn."""
        self.command("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("globalThis.flexmemReport?.app?.drawn.frames > 0")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; promises are awaited."""
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true, looking once a frame."""
        limit = int(TIMEOUT_S * 1000) - 5000
        came = self.evaluate(
            f"""new Promise((resolve) => {{
                const deadline = performance.now() + {limit};
                const look = () => {{
                    if ({expression}) resolve(true);
                    else if (performance.now() > deadline) resolve(false);
                    else setTimeout(look, 10);
                }};
                look();
            }})"""
        )
        if not came:
            raise BrowserError(f"never true: {expression}; the page says {self.text('#status')!r}; {self.problems()}")

    def frame(self) -> None:
        """Wait until what was asked for has been drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def press(self, key: str, shift: bool = False) -> None:
        """Press and release a key, given as `KeyboardEvent.key`."""
        code = KEYS.get(key) or ord(key.upper())
        more = {"text": key} if len(key) == 1 else {}
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.command("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        self.command("Input.dispatchKeyEvent", type="keyUp", **common)
        self.frame()

    def place(self, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
        """A point of an element, in parts of its size, brought into sight."""
        left, top, width, height = self.evaluate(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{ block: "center" }});
                const box = element.getBoundingClientRect();
                return [box.left, box.top, box.width, box.height];
            }})()"""
        )
        return left + width * x, top + height * y

    def mouse(self, kind: str, point: tuple[float, float], **more: Any) -> None:
        self.command("Input.dispatchMouseEvent", type=kind, x=point[0], y=point[1], **more)

    def hover(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        self.mouse("mouseMoved", self.place(selector, x, y))
        self.frame()

    def click(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        point = self.place(selector, x, y)
        self.mouse("mouseMoved", point)
        self.mouse("mousePressed", point, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", point, button="left", clickCount=1)
        self.frame()

    def drag(self, selector: str, start: float, end: float, steps: int = 5) -> None:
        """Drag along an element, from one part of its width to another."""
        point, goal = self.place(selector, start), self.place(selector, end)
        self.mouse("mouseMoved", point)
        self.mouse("mousePressed", point, button="left", buttons=1, clickCount=1)
        for step in range(1, steps + 1):
            x = point[0] + (goal[0] - point[0]) * step / steps
            self.mouse("mouseMoved", (x, point[1]), button="left", buttons=1)
        self.mouse("mouseReleased", goal, button="left", clickCount=1)
        self.frame()

    def wheel(self, selector: str, delta: float, x: float = 0.5) -> None:
        self.mouse("mouseWheel", self.place(selector, x), deltaX=0, deltaY=delta)
        self.frame()

    def type(self, text: str) -> None:
        self.command("Input.insertText", text=text)
        self.frame()

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

    def requests(self) -> list[str]:
        """Everything that was asked for since the page was made, without the page itself."""
        return [event["params"]["request"]["url"] for event in self._of("Network.requestWillBeSent")][1:]

    def problems(self) -> list[str]:
        """Errors and warnings: of scripts, of the console, of the browser about the page."""
        found = [json.dumps(event["params"]["exceptionDetails"]) for event in self._of("Runtime.exceptionThrown")]
        found += [json.dumps(event["params"]) for event in self._of("Runtime.consoleAPICalled")]
        return found + [json.dumps(event["params"]["entry"]) for event in self._of("Log.entryAdded")]

    def _of(self, method: str) -> Iterator[dict[str, Any]]:
        # A command's answer comes behind the events before it.
        self.command("Runtime.evaluate", expression="0")
        for event in list(self._browser.events):
            if event.get("method") == method and event.get("sessionId") == self._session:
                yield event
