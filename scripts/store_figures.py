#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a shared prefix store costs and saves: store_figures.py KVSPAN [-m MODEL] [--cache RECIPE ...] [--json FILE]

Starts Redis and, for each recipe, two servers. The first reads a document and answers a question about it; the second answers
another question about the same document, which it finds in the store. Prints milliseconds to the first token and bytes in
Redis for 1,000 tokens, beside f16.
"""
import argparse
import json
import pathlib
import platform
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/server"))
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the kvspan program")
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--cache", action="append", help="recipe; may be given again (bands:bits=2, full)")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-f", "--file", required=True, help="text of the document")
    parser.add_argument("--json", help="file for the numbers")
    options = parser.parse_args()
    text = pathlib.Path(options.file).read_text(encoding="utf-8", errors="replace")[:40 * options.tokens]
    rows = []
    for recipe in options.cache or ["bands:bits=2", "full"]:
        rows.append(measure(options, recipe, text))
        print(json.dumps(rows[-1], indent=2), flush=True)
    if options.json:
        document = {"command": "scripts/store_figures.py " + " ".join(sys.argv[1:]), "machine": platform.machine(), "model": options.model, "rows": rows}
        pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
