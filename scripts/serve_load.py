#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads kvspan serve and the stock server with the same requests, and compares speed and memory:

    scripts/serve_load.py                                       kvspan (default recipe), stock f16 and q4_0
    scripts/serve_load.py --clients 1,4 --prompts 2000 --seconds 30
    scripts/serve_load.py --json load.json

Every client sends one request after the other: a prompt of that many tokens that nobody has sent before, answered with
--answer tokens. Printed by server, clients and prompt: requests a second, time to the first token (median and the 99th
part of a hundred), tokens a second, KV bytes at the end (what libllama allocates, or what /kv says), and how much the
process has grown since it was ready. Prompts are cut from the text that comes with kvspan, each from another place.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

TREE = pathlib.Path(__file__).resolve().parent.parent


class Server:
    """A running server; `command` without model, port and size."""

    def __init__(self, name, command, model, slots, context, threads):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.name = name
        self.log = tempfile.NamedTemporaryFile(prefix="kvspan-load-", suffix=".log")
        self.process = subprocess.Popen(
            [*command, "-m", model, "--port", str(self.port), "--parallel", str(slots), "-c", str(slots * context), "-t", str(threads),
             "--no-ui", "--cache-ram", "0", "-lv", "4"], stdout=self.log, stderr=self.log)
        while True:
            try:
                self.get("/health")
                break
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"{name} did not start: {pathlib.Path(self.log.name).read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
        self.ready_bytes = self.resident()

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=600) as answer:
            return json.loads(answer.read())

    def post(self, path, body):
        return urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                                             {"Content-Type": "application/json"}), timeout=3600)

    def resident(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status).group(1))

    def kv_bytes(self):
        """(held now, the f16 bytes of the same tokens), from /kv or from what libllama says it allocated."""
        try:
            kv = self.get("/kv")
            return kv["bytes"]["total"] + kv["bytes"]["shared"], kv["bytes"]["f16"]
        except OSError:
            text = pathlib.Path(self.log.name).read_text(errors="replace")
            return sum(int(float(mib) * 2**20) for mib in re.findall(r"KV buffer size\s*=\s*([\d.]+) MiB", text)), None

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def one_request(server, tokens, answer):
    """Seconds to the first token and in all, and how many tokens came."""
    start = time.monotonic()
    first, count = None, 0
    body = {"prompt": tokens, "n_predict": answer, "stream": True, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    with server.post("/completion", body) as reply:
        for line in reply:
            if line.startswith(b"data: ") and b'"stop":false' in line:
                first = first or time.monotonic() - start
                count += 1
    return first, time.monotonic() - start, count


def load(server, text, clients, prompt, answer, seconds):
    done, lock, until = [], threading.Lock(), time.monotonic() + seconds
    place = [0]

    def client():
        while time.monotonic() < until:
            with lock:
                at = place[0] = (place[0] + 997) % (len(text) - prompt)
            result = one_request(server, text[at:at + prompt], answer)
            with lock:
                done.append(result)

    start = time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    firsts = sorted(first for first, _, _ in done if first is not None)
    kv, f16 = server.kv_bytes()
    return {"server": server.name, "clients": clients, "prompt": prompt, "answer": answer, "requests": len(done), "seconds": round(took, 2),
            "requests_per_second": len(done) / took, "first_token_p50": statistics.median(firsts),
            "first_token_p99": firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
            "tokens_per_second": sum(count for _, _, count in done) / took, "kv_bytes": kv, "f16_bytes": f16,
            "grown_bytes": server.resident() - server.ready_bytes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2", help="name or GGUF file (smollm2)")
    parser.add_argument("--cache", action="append", metavar="RECIPE", help="of kvspan; default: bands:bits=2.25")
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients (1,4,16)")
    parser.add_argument("--prompts", default="2000,8000", help="tokens of prompts (2000,8000)")
    parser.add_argument("--answer", type=int, default=32, help="tokens of answers (32)")
    parser.add_argument("--seconds", type=float, default=60, help="for which clients begin requests (60)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="of a server (all cores)")
    parser.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"), help="kvspan's program")
    parser.add_argument("--prefix", help="where llama.cpp was installed; default: as scripts/dependencies.sh says")
    parser.add_argument("--no-stock", action="store_true", help="leave the stock server out")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    flags = parser.parse_args()
    prefix = flags.prefix or subprocess.run([str(TREE / "scripts/dependencies.sh"), "--path"], check=True, text=True,
                                            capture_output=True).stdout.strip() + "/prefix"
    info = json.loads(subprocess.run([flags.program, "info", "-m", flags.model, "--json", "-"], check=True, text=True,
                                     capture_output=True).stdout)
    model = info["path"] if "path" in info else info["file"]
    commands = {f"kvspan {r}": [flags.program, "serve", "--cache", r] for r in flags.cache or ["bands:bits=2.25"]}
    if not flags.no_stock:
        stock = f"{prefix}/bin/llama-server"
        commands["stock f16"] = [stock, "--fit", "off", "-fa", "on"]
        commands["stock q4_0"] = [stock, "--fit", "off", "-fa", "on", "-ctk", "q4_0", "-ctv", "q4_0"]
    text = None
    rows = []
    for clients in map(int, flags.clients.split(",")):
        for prompt in map(int, flags.prompts.split(",")):
            for name, command in commands.items():
                server = Server(name, command, model, clients, prompt + flags.answer + 256, flags.threads)
                try:
                    if text is None:
                        content = (TREE / "data/text/calibration.txt").read_text()
                        with server.post("/tokenize", {"content": content}) as reply:
                            text = json.loads(reply.read())["tokens"]
                    row = load(server, text, clients, prompt, flags.answer, flags.seconds)
                finally:
                    server.stop()
                rows.append(row)
                print(f"{name:28} {clients:3} clients {prompt:5} tokens {row['requests_per_second']:7.3f} requests/s  first "
                      f"{row['first_token_p50']:7.2f} s, p99 {row['first_token_p99']:7.2f} s {row['tokens_per_second']:7.1f} tokens/s  KV "
                      f"{row['kv_bytes'] / 2**20:8.1f} MiB  grown {row['grown_bytes'] / 2**20:8.1f} MiB", flush=True)
    if flags.json:
        document = {"command": "scripts/serve_load.py", "machine": platform.machine(), "cores": os.cpu_count(), "model": flags.model,
                    "threads": flags.threads, "rows": rows}
        pathlib.Path(flags.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
