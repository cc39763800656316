"""A real browser for pages: Chromium without a window, at any width."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)


class Browser:
    """One tab; ``driver`` is selenium's."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path | str, width: int = 1600, height: int = 1200) -> None:
        """Loads the page and waits until its charts are drawn; forgets what was before."""
        self.resize(width, height)
        self.driver.get("about:blank")
        self.complaints()
        self.requests()
        self.driver.get(page if isinstance(page, str) else page.absolute().as_uri())
        self.wait("return document.documentElement.dataset.drawn !== undefined")

    def resize(self, width: int, height: int = 1200) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Sets what the page is told of the user's wish: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def wait(self, script: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 60, poll_frequency=0.05).until(
            lambda d: d.execute_script(script)
        )

    def complaints(self) -> list[str]:
        """What the console has to say: errors and warnings."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses of all requests so far."""
        sent = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                sent.append(message["params"]["request"]["url"])
        return sent


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with its files in ``profile``."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    missing = "install them: apt-get install chromium chromium-driver, or scripts/check"
    assert chromium and chromedriver, missing
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which root cannot have
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
