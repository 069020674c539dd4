#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kvspan serve says its caches hold, beside what the process holds:

    scripts/serve_memory.py                             SmolLM2, bands:bits=2.25, four slots of 8,000 tokens
    scripts/serve_memory.py --cache full --slots 2 --tokens 2000
    scripts/serve_memory.py --json memory.json

The process's own memory after all slots have answered something and been emptied is what the server needs without sequences.
From there on both numbers are read together: slots are filled one by one, then all at once so that their tokens come in
turns, half of them again with shorter prompts, and emptied in part. Growth is the process's beyond what the server counts, in
hundredths of the most that it has counted: what is freed is used again, and returned where it is much. Exit 1 if that is
above --limit at any time.
"""
import argparse
import concurrent.futures
import json
import pathlib
import platform
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tests/server"))
from store_servers import Server  # noqa: E402


class Watched:
    """A server whose memory is looked at after each step."""

    def __init__(self, options, folder):
        self.options, self.rows, self.most = options, [], 0
        self.server = Server(options.program, "-m", options.model, "--cache", options.cache, "--parallel", str(options.slots), "-c",
                             str(options.slots * (options.tokens + 512)), "-t", str(options.threads), "--cache-ram", "0",
                             "--slot-save-path", folder).wait()
        text = (TREE / "data/text/calibration.txt").read_text(encoding="utf-8")[:16 * (options.slots + 8) * options.tokens]
        self.text = self.server.post("/tokenize", {"content": text})["tokens"]
        self.place = 0
        self.base = 0

    def ask(self, slot, tokens):
        self.place = (self.place + 1009) % (len(self.text) - tokens)
        self.server.complete(self.text[self.place:self.place + tokens], 4, id_slot=slot, cache_prompt=False, ignore_eos=True)

    def empty(self, slot):
        self.server.post(f"/slots/{slot}?action=erase", {})

    def look(self, what):
        counted = self.server.get("/kv")["bytes"]["total"]
        self.most = max(self.most, counted)
        held = self.server.resident() - self.base
        over = (held - counted) / self.most if self.most else 0.0
        self.rows.append({"step": what, "counted_bytes": counted, "process_bytes": held, "beyond_percent": round(100 * over, 2)})
        print(f"{what:32} counted {counted / 2**20:8.2f} MiB  process {held / 2**20:8.2f} MiB  beyond {100 * over:+6.2f} %", flush=True)

    def run(self):
        slots, tokens = range(self.options.slots), self.options.tokens
        # Batches of every kind, what attention to so many tokens works in, and the samplers of every slot.
        self.ask(0, tokens)
        for slot in slots:
            self.ask(slot, 32)
        for slot in slots:
            self.empty(slot)
        self.base = self.server.resident()
        for slot in slots:
            self.ask(slot, tokens)
            self.look(f"slot {slot}, {tokens} tokens")
        with concurrent.futures.ThreadPoolExecutor(len(slots)) as pool:
            list(pool.map(lambda slot: self.ask(slot, tokens - 100 * slot), slots))
        self.look("all again, in turns")
        for slot in slots[::2]:
            self.ask(slot, tokens // 3)
            self.look(f"slot {slot}, {tokens // 3} tokens")
        for slot in slots[::2]:
            self.empty(slot)
        self.look("half of them empty")
        for slot in slots:
            self.empty(slot)
        self.look("all empty")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2", help="name or GGUF file (smollm2)")
    parser.add_argument("--cache", default="bands:bits=2.25", metavar="RECIPE", help="(bands:bits=2.25)")
    parser.add_argument("--slots", type=int, default=4, help="sequences (4)")
    parser.add_argument("--tokens", type=int, default=8000, help="of the prompt of each (8000)")
    parser.add_argument("--limit", type=float, default=3.0, help="hundredths that the process may hold beyond (3)")
    parser.add_argument("-t", "--threads", type=int, default=1, help="of the server (1)")
    parser.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"), help="kvspan's program")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(options, folder)
        try:
            watched.run()
        finally:
            watched.server.close()
    worst = max(row["beyond_percent"] for row in watched.rows)
    print(f"at most {worst:.2f} % beyond what is counted (limit {options.limit} %)")
    if options.json:
        document = {"command": "scripts/serve_memory.py " + " ".join(sys.argv[1:]), "machine": platform.machine(), "model": options.model,
                    "cache": options.cache, "threads": options.threads, "worst_percent": worst, "rows": watched.rows}
        pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0 if worst <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
