# SPDX-License-Identifier: Apache-2.0
"""Redis and servers for one test or measurement, each on a free port, all ended with it."""
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    def __init__(self, *flags):
        self.port, self.flags, self.process = free_port(), flags, None
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self.flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                self.command("PING")
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("redis-server does not start")

    def command(self, *words):
        """A simple command's reply: a line, or the text that follows it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as link:
            link.sendall(f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words))
            data = link.makefile("rb")
            line = data.readline().decode().strip()
            return data.read(int(line[1:])).decode() if line.startswith("$") and line != "$-1" else line[1:]

    def used_bytes(self):
        return int(next(line for line in self.command("INFO", "memory").splitlines() if line.startswith("used_memory:")).split(":")[1])

    def kill(self):
        self.process.kill()
        self.process.wait()


class Server:
    """kvspan's, or where `command` says so another one with the same flags and endpoints."""

    def __init__(self, program, *flags, command=("serve",)):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([program, *command, "--host", "127.0.0.1", "--port", str(self.port), *flags],
                                        stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def wait(self, seconds=300):
        for _ in range(seconds * 10):
            if self.process.poll() is not None:
                raise RuntimeError("the server ended:\n" + self.said()[-3000:])
            try:
                if self.get("/health"):
                    return self
            except (OSError, urllib.error.HTTPError):
                pass
            time.sleep(0.1)
        raise RuntimeError("the server does not get ready:\n" + self.said()[-3000:])

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            text = answer.read().decode()
        return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text

    def post(self, path, body, timeout=1200):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)

    def complete(self, tokens, count=8, **more):
        return self.post("/completion", {"prompt": tokens, "n_predict": count, "temperature": 0, "seed": 1, "return_tokens": True, **more})

    def resident(self):
        """Bytes of the process in memory, without those of files, which the system can drop."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status).group(1))

    def store(self):
        return self.get("/kv")["store"]

    def until_store(self, what, seconds=60):
        """Waits for what the writing thread does behind the answers."""
        for _ in range(seconds * 20):
            numbers = self.store()
            if what(numbers):
                return numbers
            time.sleep(0.05)
        raise AssertionError(f"the store stays at {self.store()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        self.log.close()
