#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What examples/serve says, without containers: container_test.py KVSPAN MODEL

The commands of compose.yaml and Containerfile are run as they are written, with other addresses and a small model, and nginx with
the file that it is given. Skipped in part where redis-server or nginx is not installed.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from store_servers import Redis, Server, free_port  # noqa: E402

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = TREE / "examples/serve"
PROGRAM = MODEL = None
KEY, PASSWORD = "key of the test", "secret%40"  # as it is written in an address; Redis knows it as secret@
MISSING = [name for name in ("redis-server", "nginx") if shutil.which(name) is None]


def service(name):
    """The lines of one service of compose.yaml."""
    text = (EXAMPLE / "compose.yaml").read_text()
    return re.search(rf"^  {name}:\n((?:    .*\n|  #.*\n|\n)+)", text, re.MULTILINE).group(1)


def command(lines, key="command"):
    """A list that is written as one of JSON."""
    return json.loads(re.search(rf"{key}:? (\[.*?\])", lines, re.DOTALL).group(1))


class ContainerTest(unittest.TestCase):
    def containerfile(self):
        return (EXAMPLE / "Containerfile").read_text()

    def test_files_that_are_named_are_there(self):
        for place in re.findall(r"^COPY (?!--from)(\S+) ", self.containerfile(), re.MULTILINE):
            self.assertTrue((TREE / place).exists(), place)
        compose = (EXAMPLE / "compose.yaml").read_text()
        self.assertTrue((EXAMPLE / re.search(r"context: (\S+),", compose).group(1) / "examples/serve/Containerfile").is_file())
        for place in re.findall(r'"(\./[^:"]+):', compose):
            self.assertTrue((EXAMPLE / place).is_file(), place)

    @unittest.skipUnless(shutil.which("dpkg"), "no Debian")
    def test_libraries_of_the_program_are_installed(self):
        named = set(re.search(r"apt-get install -y --no-install-recommends (.*?) \\", self.containerfile()).group(1).split())
        base = {"libc6", "libgcc-s1", "libstdc++6"}  # of debian:12-slim, or needed by every library that is named
        shown = subprocess.run(["ldd", PROGRAM], check=True, text=True, capture_output=True).stdout
        for library in re.findall(r"=> (/\S+)", shown):
            found = subprocess.run(["dpkg", "-S", str(pathlib.Path(library).resolve())], text=True, capture_output=True)
            package = found.stdout.split(":")[0]
            if found.returncode != 0 or package in base or package in named:
                continue
            needed = subprocess.run(["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
                                     "--no-replaces", "--no-enhances", *named], text=True, capture_output=True).stdout
            self.assertIn(f"\n{package}\n", needed, library)

    def start(self, redis):
        lines = service("server")
        flags = []
        for word in command(lines):
            word = word.replace("${REDIS_PASSWORD:?}", PASSWORD).replace("redis:6379", f"127.0.0.1:{redis.port}")
            flags.append(word.replace("${STORE_NAMESPACE:?}", "tenant").replace("${API_KEY:?}", KEY))
        flags[flags.index("-m") + 1] = MODEL
        entry = command(self.containerfile(), "ENTRYPOINT")
        self.assertEqual(entry[:2], ["kvspan", "serve"])
        server = Server(PROGRAM, "-t", "1", "--cache-ram", "0", *flags, command=entry[1:])  # the port that is named last counts
        self.addCleanup(server.close)
        return server

    @unittest.skipIf("redis-server" in MISSING, "redis-server is not installed")
    def test_servers_behind_nginx(self):
        words = command(service("redis"))
        flags = [word.replace("${REDIS_PASSWORD:?}", PASSWORD.replace("%40", "@")) for word in words[1:]]
        redis = Redis(*flags)
        self.addCleanup(redis.kill)
        servers = [self.start(redis) for _ in range(2)]
        for server in servers:
            server.wait()
        text = " ".join(f"Lily saw ball number {i} in the park." for i in range(12))
        body = {"prompt": text, "max_tokens": 4, "temperature": 0}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}

        def ask(port):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["choices"][0]["text"]

        wanted = ask(servers[0].port)
        with self.assertRaises(urllib.error.HTTPError):
            servers[0].complete(text, 1)  # without the key
        if "nginx" in MISSING:
            self.skipTest("nginx is not installed")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        port = free_port()
        conf = (EXAMPLE / "nginx.conf").read_text().replace("listen 8080", f"listen 127.0.0.1:{port}")
        line = re.search(r"server server:8080 (.*?);", conf)
        conf = conf.replace(line.group(0), " ".join(f"server 127.0.0.1:{one.port} {line.group(1)};" for one in servers))
        # Folders of its own, for a test that does not run as root.
        conf = conf.replace("/tmp/nginx.pid", f"{folder.name}/pid").replace("http {", "http {" + "".join(
            f"{kind}_temp_path {folder.name}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")), 1)
        file = pathlib.Path(folder.name) / "nginx.conf"
        file.write_text(conf)
        nginx = subprocess.Popen(["nginx", "-e", "stderr", "-p", folder.name, "-c", str(file), "-g", "daemon off;"], stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (nginx.terminate(), nginx.wait()))
        for _ in range(100):
            try:
                self.assertEqual(ask(port), wanted)
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        # One goes: the other one answers.
        servers[0].kill()
        self.assertEqual(ask(port), wanted)
        self.assertEqual(ask(port), wanted)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
