"""A headless Chromium, spoken to over two pipes (the DevTools protocol): no port, no other package."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# The backstop of what the browser is waited for; never reached when all is well.
LIMIT_S = 120


def program():
    """The browser of this machine; None: there is none."""
    return shutil.which("chromium")


class Browser:
    """One page. `errors` has what its console said."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-browser-", ignore_cleanup_errors=True)
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        # The browser takes commands from descriptor 3, and answers on 4.
        words = [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        words += ["--disable-background-networking", "--remote-debugging-pipe"]
        words += [f"--user-data-dir={self.folder.name}/data", "about:blank"]
        shell = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *words],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.folder.name},
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.session, self.bytes, self.errors, self.loaded = 0, None, b"", [], set()
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")
        self.command("Page.setLifecycleEventsEnabled", enabled=True)

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.write_fd)
        os.close(self.read_fd)
        self.folder.cleanup()

    def _message(self, until_s):
        while b"\0" not in self.bytes:
            if not select.select([self.read_fd], [], [], max(0, until_s - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.read_fd, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.bytes += piece
        line, self.bytes = self.bytes.split(b"\0", 1)
        return json.loads(line)

    def _hear(self, message):
        what = message.get("method")
        if what == "Runtime.exceptionThrown" or what == "Runtime.consoleAPICalled":
            self.errors.append(json.dumps(message["params"])[:2000])
        elif what == "Page.lifecycleEvent" and message["params"]["name"] == "load":
            self.loaded.add(message["params"]["loaderId"])
        elif what == "Log.entryAdded":
            self.errors.append(message["params"]["entry"]["text"] + " " + message["params"]["entry"].get("url", ""))

    def command(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(request).encode() + b"\0")
        until_s = time.monotonic() + LIMIT_S
        while True:
            message = self._message(until_s)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._hear(message)

    def value(self, expression):
        """Of JavaScript, in the page."""
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition):
        """Until it is true in the page, which looks as often as it draws."""
        ask = f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 50); look(); }})"
        if not self.value(ask):
            raise RuntimeError(condition)

    def _go(self, address):
        loader = self.command("Page.navigate", url=address)["loaderId"]
        until_s = time.monotonic() + LIMIT_S
        while loader not in self.loaded:
            self._hear(self._message(until_s))

    def open(self, address, *, width=1200, height=900, dark=False):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=scheme)
        self._go("about:blank")  # what the page before has to say ends here
        self.errors.clear()
        self._go(address)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)
