"""A headless Chromium, where the machine has one, and what it says of a page."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE, PHONE = (1440, 900), (390, 844)


def found() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@dataclass
class Opened:
    """A page that is open, and what it has done that it should not."""

    page: Any  # playwright.sync_api.Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """What axe-core finds, of any impact."""
        base = pytest.importorskip("axe_playwright_python.base")
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(Path(base.__file__).with_name("axe.min.js").read_text())
        violations = self.page.evaluate("async () => (await axe.run()).violations")
        return [
            f"{violation['id']}: {node['html'][:160]} {node['failureSummary']}"
            for violation in violations
            for node in violation["nodes"]
        ]


class Browser:
    """Opens pages of this machine, by their path or address, each in a context of its own."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def open(
        self, page: Path | str, size: tuple[int, int] = WIDE, **context: Any
    ) -> Iterator[Opened]:
        """``context``: colour scheme, whether scripts run, as Playwright names them."""
        width, height = size
        made = self._chromium.new_context(viewport={"width": width, "height": height}, **context)
        opened = Opened(made.new_page())
        opened.page.on("console", lambda said: opened.errors.append(f"{said.type}: {said.text}"))
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.on("request", lambda asked: opened.requests.append(asked.url[:200]))
        try:
            opened.page.goto(page if isinstance(page, str) else page.as_uri())
            yield opened
        finally:
            made.close()


@contextmanager
def started() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api")
    executable = found()
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path")
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # its sandbox refuses to run as root
    arguments = ["--no-sandbox"] if root else []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=executable, args=arguments)
        yield Browser(chromium)
        chromium.close()
