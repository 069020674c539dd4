#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads kvspan serve and the stock server with the same requests, and compares speed and memory:

    scripts/serve_load.py                                       kvspan (default recipe), stock f16 and q4_0
    scripts/serve_load.py --clients 1,4 --prompts 2000 --seconds 30
    scripts/serve_load.py --json load.json
    scripts/serve_load.py --mixed 30 --json mixed.json          kvspan alone, 30 minutes: does its memory stay flat?

Every client sends one request after the other: a prompt of that many tokens that nobody has sent before, answered with
--answer tokens. Printed by server, clients and prompt: requests a second, time to the first token (median and the 99th
part of a hundred), tokens a second, KV bytes at the end (what libllama allocates, or what /kv says), and how much the
process has grown since it was ready. Prompts are cut from the text that comes with kvspan, each from another place.

With --mixed clients do what people do: short and long prompts, conversations that go on, several answers to one prompt, and
answers that are left before they end. Every few seconds the process's memory and what the caches hold are written down. Memory is
flat if what the process holds beside the caches is, in the last third, within 3 % of the whole of the middle third's. Exit 1 if not.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tests/server"))
from store_servers import Server  # noqa: E402

FLAT_PERCENT = 3.0


class LoadedServer(Server):
    """`command`: the program and what makes it this server."""

    def __init__(self, name, command, model, slots, context, threads, *more):
        super().__init__(command[0], "-m", model, "--parallel", str(slots), "-c", str(slots * context), "-t", str(threads),
                         "--no-ui", "-lv", "4", *more, command=command[1:])
        self.name = name
        self.wait()
        self.ready_bytes = self.resident()

    def stream(self, path, body):
        """What comes, event by event, until it ends or is closed."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps({**body, "stream": True}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3600) as reply:
            for line in reply:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])

    def kv_bytes(self):
        """(held now, the f16 bytes of the same tokens), from /kv or from what libllama says it allocated."""
        try:
            kv = self.get("/kv")
            return kv["bytes"]["total"] + kv["bytes"]["shared"], kv["bytes"]["f16"]
        except OSError:
            return sum(int(float(mib) * 2**20) for mib in re.findall(r"KV buffer size\s*=\s*([\d.]+) MiB", self.said())), None


def one_request(server, tokens, answer):
    """Seconds to the first token and in all, and how many tokens came."""
    start = time.monotonic()
    first, count = None, 0
    body = {"prompt": tokens, "n_predict": answer, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    for event in server.stream("/completion", body):
        if not event["stop"]:
            first = first or time.monotonic() - start
            count += 1
    return first, time.monotonic() - start, count


def run_clients(clients, seconds, client):
    """client(number) again and again in each thread, until the time is over; how long it took."""
    start = time.monotonic()
    failures = []

    def work(number):
        try:
            while time.monotonic() < start + seconds and not failures:
                client(number)
        except Exception as error:  # whatever it is, the run is worth nothing
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - start


def load(server, text, clients, prompt, answer, seconds):
    done, lock = [], threading.Lock()
    place = [0]

    def client(_):
        with lock:
            at = place[0] = (place[0] + 997) % (len(text) - prompt)
        result = one_request(server, text[at:at + prompt], answer)
        with lock:
            done.append(result)

    took = run_clients(clients, seconds, client)
    firsts = sorted(first for first, _, _ in done)
    kv, f16 = server.kv_bytes()
    return {"server": server.name, "clients": clients, "prompt": prompt, "answer": answer, "requests": len(done), "seconds": round(took, 2),
            "requests_per_second": len(done) / took, "first_token_p50": statistics.median(firsts),
            "first_token_p99": firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))],
            "tokens_per_second": sum(count for _, _, count in done) / took, "kv_bytes": kv, "f16_bytes": f16,
            "grown_bytes": server.resident() - server.ready_bytes}


def mixed_client(server, text, longest, counts, lock):
    """What one client does at a time, by its own chance."""
    chances = {}

    def client(number):
        chance = chances.setdefault(number, random.Random(number))
        at = chance.randrange(len(text) - longest)
        # As many short ones as long ones, by their logarithms.
        length = int(16 * (longest / 16) ** chance.random())
        kind = chance.choice(("prompt", "prompt", "talk", "several", "left"))
        if kind == "talk":
            tokens = text[at:at + length]
            for _ in range(3):
                answer = server.complete(tokens, 24)
                tokens = tokens + answer["tokens"] + text[at:at + 16]
        elif kind == "several":
            server.post("/v1/completions", {"prompt": text[at:at + length], "max_tokens": 16, "n": 2})
        elif kind == "left":
            events = server.stream("/completion", {"prompt": text[at:at + length], "n_predict": 400, "ignore_eos": True})
            for _ in range(chance.randrange(1, 40)):
                next(events, None)
            events.close()
        else:
            server.complete(text[at:at + length], 32, cache_prompt=False)
        with lock:
            counts[kind] = counts.get(kind, 0) + 1

    return client


def mixed(server, text, clients, longest, minutes):
    counts, lock, samples = {}, threading.Lock(), []
    over = threading.Event()
    start = time.monotonic()

    def watch():
        while not over.wait(max(1.0, minutes / 3)):
            samples.append({"seconds": round(time.monotonic() - start, 1), "process_bytes": server.resident(),
                            "kv_bytes": server.get("/kv")["bytes"]["total"]})

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        took = run_clients(clients, 60 * minutes, mixed_client(server, text, longest, counts, lock))
    finally:
        over.set()
        watcher.join()
    beside = [one["process_bytes"] - one["kv_bytes"] for one in samples]
    third = len(samples) // 3
    whole = statistics.median(one["process_bytes"] for one in samples[third:2 * third])
    middle, last = statistics.median(beside[third:2 * third]), statistics.median(beside[2 * third:])
    grown = 100 * (last - middle) / whole
    return {"server": server.name, "clients": clients, "longest": longest, "seconds": round(took, 1), "requests": counts,
            "grown_percent": round(grown, 2), "flat": grown <= FLAT_PERCENT, "samples": samples}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2", help="name or GGUF file (smollm2)")
    parser.add_argument("--cache", action="append", metavar="RECIPE", help="of kvspan; default: bands:bits=2.25")
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients (1,4,16)")
    parser.add_argument("--prompts", default="2000,8000", help="tokens of prompts (2000,8000)")
    parser.add_argument("--answer", type=int, default=32, help="tokens of answers (32)")
    parser.add_argument("--seconds", type=float, default=60, help="for which clients begin requests (60)")
    parser.add_argument("--mixed", type=float, metavar="MINUTES", help="watch kvspan's memory under mixed load for so long")
    parser.add_argument("--cache-ram", type=int, default=64, metavar="MIB", help="prompts kept in memory with --mixed, which should soon "
                        "be as many as fit (64)")
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
    commands = {f"kvspan {r}": [flags.program, "serve", "--cache", r] for r in flags.cache or ["bands:bits=2.25"]}
    if not flags.no_stock and not flags.mixed:
        stock = f"{prefix}/bin/llama-server"
        commands["stock f16"] = [stock, "--fit", "off", "-fa", "on"]
        commands["stock q4_0"] = [stock, "--fit", "off", "-fa", "on", "-ctk", "q4_0", "-ctv", "q4_0"]
    content = (TREE / "data/text/calibration.txt").read_text(encoding="utf-8")
    text = None

    def started(name, command, clients, context, *more):
        nonlocal text
        server = LoadedServer(name, command, info["path"], clients, context, flags.threads, *more)
        text = text or server.post("/tokenize", {"content": content})["tokens"]
        return server

    rows = []

    def keep(row):
        """Written at once: a long series that is stopped loses nothing."""
        rows.append(row)
        if flags.json:
            document = {"command": "scripts/serve_load.py " + " ".join(sys.argv[1:]), "machine": platform.machine(),
                        "cores": os.cpu_count(), "model": flags.model, "threads": flags.threads, "rows": rows}
            pathlib.Path(flags.json).write_text(json.dumps(document, indent=1) + "\n")

    for clients in map(int, flags.clients.split(",")) if not flags.mixed else ():
        for prompt in map(int, flags.prompts.split(",")):
            for name, command in list(commands.items()):
                try:
                    server = started(name, command, clients, prompt + flags.answer + 256, "--cache-ram", "0")
                except RuntimeError as error:
                    if not name.startswith("stock"):
                        raise
                    print(f"{name:28} does not start: " + next((line for line in str(error).splitlines() if " E " in line), "no reason given"))
                    del commands[name]  # a model's heads may be too small for it
                    continue
                try:
                    row = load(server, text, clients, prompt, flags.answer, flags.seconds)
                finally:
                    server.close()
                keep(row)
                print(f"{name:28} {clients:3} clients {prompt:5} tokens {row['requests_per_second']:7.3f} requests/s  first "
                      f"{row['first_token_p50']:7.2f} s, p99 {row['first_token_p99']:7.2f} s {row['tokens_per_second']:7.1f} tokens/s  KV "
                      f"{row['kv_bytes'] / 2**20:8.1f} MiB  grown {row['grown_bytes'] / 2**20:8.1f} MiB", flush=True)
    if flags.mixed:
        clients, longest = int(flags.clients.split(",")[-1]), int(flags.prompts.split(",")[-1])
        for name, command in commands.items():
            server = started(name, command, clients, longest + 1024, "--cache-ram", str(flags.cache_ram))
            try:
                keep(mixed(server, text, clients, longest, flags.mixed))
            finally:
                server.close()
            row = rows[-1]
            process = [one["process_bytes"] / 2**20 for one in row["samples"]]
            print(f"{name:28} {clients:3} clients {sum(row['requests'].values())} requests in {row['seconds']:.0f} s; process "
                  f"{process[0]:.1f} MiB at first, {max(process):.1f} at most, {process[-1]:.1f} at the end; beside the caches it grew by "
                  f"{row['grown_percent']:.2f} % from the middle third to the last: {'flat' if row['flat'] else 'NOT flat'}", flush=True)
    return 0 if all(row.get("flat", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
