#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a shared prefix store costs and saves:

    scripts/store_figures.py                                           SmolLM2; bands:bits=2 and full
    scripts/store_figures.py --cache quant:bits=4 --tokens 2000 --json store.json
    scripts/store_figures.py --kill 1000 --json kills.json             does a killed Redis or server change an answer?

Starts Redis and, for each recipe, two servers. The first reads a document and answers a question about it; the second answers
another question about the same document, which it finds in the store. Prints milliseconds to the first token and bytes in
Redis for 1,000 tokens, beside f16.

With --kill so many requests go to two servers with one Redis, which are killed (kill -9) again and again meanwhile. Every
answer is held against that of a server without a store; exit 1 if one differs. The model is stories260K unless -m says another.
"""
import argparse
import json
import pathlib
import platform
import sys
import time

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tests/server"))
from killed_stores import KilledStores  # noqa: E402
from store_servers import Redis, Server  # noqa: E402


def tokens_of(server, text):
    return server.post("/tokenize", {"content": text})["tokens"]


def first_token_ms(server, prompt):
    start = time.monotonic()
    answer = server.complete(prompt, 1)
    return 1000 * (time.monotonic() - start), answer


def measure(options, recipe, text):
    redis = Redis()
    flags = ["-m", options.model, "--cache", recipe, "-c", str(options.tokens + 2048), "--parallel", "1", "-t", str(options.threads),
             "--no-warmup", "--cache-ram", "0"]
    first = second = None
    try:
        first = Server(options.program, *flags, "--store", redis.url).wait()
        document = tokens_of(first, text)[:options.tokens]
        questions = [tokens_of(first, q) for q in ("\n\nQuestion: What is this text about?\nAnswer:", "\n\nQuestion: Who is named in it?\nAnswer:")]
        empty = redis.used_bytes()
        computed_ms, _ = first_token_ms(first, document + questions[0])
        first.until_store(lambda numbers: numbers["saved"] == 1)
        held = redis.used_bytes() - empty
        kv = first.get("/kv")
        f16 = kv["bytes"]["f16"] / kv["tokens"]
        second = Server(options.program, *flags, "--store", redis.url).wait()
        found_ms, found = first_token_ms(second, document + questions[1])
        kv = second.get("/kv")
        return {
            "recipe": recipe, "tokens": len(document), "threads": options.threads,
            "first_token_ms_computed": round(computed_ms, 1),
            "first_token_ms_from_store": round(found_ms, 1), "times_sooner": round(computed_ms / found_ms, 1),
            "tokens_from_store": kv["counts"]["prefix_tokens"], "tokens_computed": found["timings"]["prompt_n"] - kv["counts"]["prefix_tokens"],
            "store_load_ms": round(kv["store"]["load_ms"], 1), "store_save_ms": round(first.store()["save_ms"], 1),
            "redis_bytes_per_1000_tokens": round(1000 * held / len(document)), "f16_bytes_per_1000_tokens": round(1000 * f16),
            "f16_by_redis": round(f16 * len(document) / held, 2),
        }
    finally:
        for one in (first, second):
            if one is not None:
                one.close()
        redis.kill()


def kill(options):
    row = {"model": options.model or str(TREE / "data/models/stories260K.gguf"), "recipe": (options.cache or ["full"])[0]}
    stores = KilledStores(options.program, row["model"], row["recipe"])
    try:
        row.update(stores.run(options.kill, lambda text: print(text, file=sys.stderr, flush=True)))
    finally:
        stores.close()
    row["model"] = pathlib.Path(row["model"]).name
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"), help="kvspan's program")
    parser.add_argument("-m", "--model", help="name or GGUF file (smollm2)")
    parser.add_argument("--kill", type=int, metavar="REQUESTS", help="kill Redis and servers instead")
    parser.add_argument("--cache", action="append", help="recipe; may be given again (bands:bits=2, full)")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-f", "--file", default=str(TREE / "data/text/calibration.txt"), help="text of the document (one that comes with kvspan)")
    parser.add_argument("--json", help="file for the numbers")
    options = parser.parse_args()
    rows = []
    if options.kill:
        rows.append(kill(options))
        print(json.dumps(rows[-1], indent=2))
    else:
        options.model = options.model or "smollm2"
        text = pathlib.Path(options.file).read_text(encoding="utf-8", errors="replace")[:40 * options.tokens]
        for recipe in options.cache or ["bands:bits=2", "full"]:
            rows.append(measure(options, recipe, text))
            print(json.dumps(rows[-1], indent=2), flush=True)
    if options.json:
        document = {"command": "scripts/store_figures.py " + " ".join(sys.argv[1:]), "machine": platform.machine(), "model": options.model, "rows": rows}
        pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(row.get("wrong") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
