# SPDX-License-Identifier: Apache-2.0
"""Chromium driven over the WebDriver protocol (W3C), with nothing but Python's own library."""
import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008", "Tab": "\ue004", "Alt": "\ue00a"}


def installed():
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


class Browser:
    def __init__(self, width=1200, height=800, dark=False):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base, self.session = f"http://127.0.0.1:{port}", ""
        flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium refuses root otherwise
        for attempt in range(300):
            try:
                self.call("GET", "/status")
                break
            except OSError:
                time.sleep(0.1)
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": flags}}}})
        self.session = "/session/" + made["sessionId"]
        self.metrics(width, height, dark)

    def close(self):
        try:
            self.call("DELETE", "")
        except OSError:
            pass
        self.driver.terminate()
        self.driver.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + self.session + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from None

    def devtools(self, name, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def metrics(self, width, height, dark):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, address):
        self.call("POST", "/url", {"url": address})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.call("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *names):
        keys = [KEYS.get(name, name) for name in names]
        actions = [{"type": "keyDown", "value": key} for key in keys] + [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector)

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def shown(self, selector):
        return self.run("const e = document.querySelector(arguments[0]); return e !== null && e.checkVisibility()", selector)

    def tabs(self):
        return self.call("GET", "/window/handles")

    def new_tab(self):
        handle = self.call("POST", "/window/new", {"type": "tab"})["handle"]
        self.switch(handle)
        return handle

    def switch(self, handle):
        self.call("POST", "/window", {"handle": handle})

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def until(self, what, script, *arguments, seconds=60):
        """Waits until the script returns something true, and returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(script, *arguments):
                return value
            time.sleep(0.03)
        raise AssertionError(f"not within {seconds} s: {what}\n" + self.run("return document.body.innerText"))
