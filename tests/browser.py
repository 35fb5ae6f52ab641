"""A headless Chromium that a test drives: pages, clicks, keys, pictures (Chrome's DevTools protocol)."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(what: Callable[[], Any], seconds: float, name: str) -> Any:
    """The first true value of ``what()``."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"{name}: not within {seconds:.0f} s"
        time.sleep(0.2)
    return found


class Browser:
    """One page of one browser; use as a context."""

    def __init__(self, profile: Path, width: int = 1400, height: int = 1000):
        import websocket  # comes with Jupyter

        port = free_port()
        self.process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={profile}",
                f"--remote-debugging-port={port}",
                "--remote-allow-origins=*",
                f"--window-size={width},{height}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        address = wait_for(lambda: self._page(port), 60, "the browser's start")
        self.socket, self.sent = websocket.create_connection(address, timeout=120), 0
        for domain in ("Runtime", "Page"):
            self.call(f"{domain}.enable")

    def _page(self, port: int) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=5) as reply:
                pages = [page for page in json.load(reply) if page["type"] == "page"]
        except OSError:
            assert self.process.poll() is None, "the browser ended"
            return None
        return pages[0]["webSocketDebuggerUrl"] if pages else None

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()

    def call(self, method: str, **parameters: Any) -> dict:
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": parameters}))
        while True:  # events come in between
            reply = json.loads(self.socket.recv())
            if reply.get("id") == self.sent:
                assert "error" not in reply, reply
                return reply["result"]

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def value(self, script: str) -> Any:
        """Of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"]
        return result.get("value")

    def click(self, element: str) -> None:
        """On the middle of what this expression finds, once it stands still."""
        middle = "(b => [b.x + b.width / 2, b.y + b.height / 2])"
        script = f"({element}) && {middle}(({element}).getBoundingClientRect())"
        wait_for(lambda: self.value(script) and self.value(script) == self.value(script), 20, element)
        x, y = self.value(script)
        for kind, button in (("mouseMoved", "none"), ("mousePressed", "left"), ("mouseReleased", "left")):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
