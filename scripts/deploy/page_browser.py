#!/usr/bin/python3
"""Look at the page at an address with a headless Chromium: it shows the job of doc/first-training.md on both nodes.

    page_browser.py ADDRESS     waits until it is seen, and says so; run where the address is reached

SHOAL_SCREENSHOTS: a folder for a picture of it. Exit status 77: there is no Chromium here.
"""

import base64
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "server" / "page"))
import browser  # noqa: E402

# The page shows: a job of four ranks makes steps, its time is split, both machines are up, and bytes go between them.
SEEN = """[...document.querySelectorAll("#jobs article")].some(it =>
    it.querySelector("[data-key=world_size]")?.textContent === "4" &&
    parseFloat(it.querySelector("[data-key=speed]")?.textContent) > 0 && it.querySelector(".chart") &&
    it.querySelector(".row [data-key=computing]")) &&
  document.querySelectorAll("#tiles > span:not(.down)").length === 2 &&
  /^(a ↔ b|b ↔ a)$/.test(document.querySelector("#links > .name")?.textContent) &&
  parseFloat(document.querySelector("#links > .rate").textContent) > 0"""


def main():
    if not browser.program():
        print("there is no chromium")
        return 77
    page = browser.Browser()
    try:
        page.open(sys.argv[1])
        try:
            page.wait(SEEN)
        except (TimeoutError, RuntimeError):
            print(page.value("document.body.innerText"))
            raise
        print(page.value("document.querySelector('#jobs article').innerText"))
        print(page.value("document.getElementById('links').textContent"))
        if os.environ.get("SHOAL_SCREENSHOTS"):
            data = page.command("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            pathlib.Path(os.environ["SHOAL_SCREENSHOTS"], "two-machines.png").write_bytes(base64.b64decode(data))
        if page.errors:
            print("\n".join(page.errors))
            return 1
    finally:
        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
