#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether `kvspan bench --peer llama.cpp` does llama.cpp justice: its figures beside those of llama.cpp's own llama-bench, in turns.

    scripts/peer_check.py --llama-bench build/bin/llama-bench -m smollm2 --depth 8100 --json RESULT.json

llama-bench: built from the archive that scripts/dependencies.sh names, with llama.cpp's defaults. It reads `depth` tokens in one go for
prefill, and decodes behind as many, with flash attention and without; the best of all is what a comparison has to beat.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()[-600:]}")
    return json.loads(done.stdout)


def own_bench(options, path, flash):
    def speed(*work):
        common = ["-m", path, "-t", str(options.threads), "-r", "1", "-fa", flash, "-o", "json"]
        return run([options.llama_bench, *common, *work])[0]["avg_ts"]

    depth = str(options.depth)
    return {"prefill_tok_s": speed("-p", depth, "-n", "0"), "decode_tok_s": speed("-p", "0", "-n", "16", "-d", depth)}


def kvspan_bench(options):
    found = run([options.program, "bench", "-m", options.model, "-t", str(options.threads), "--depth", str(options.depth), "--repeats", "16",
                 *[word for recipe in options.cache for word in ("--cache", recipe)], "--peer", "llama.cpp", "--json", "-", "-q"])
    return {f"{row['engine']} {row['recipe']}": {"prefill_tok_s": row["prefill_tok_s"], "decode_tok_s": row["decode_tok_s"]}
            for row in found["rows"]}


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--llama-bench", required=True)
    flags.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"))
    flags.add_argument("-m", "--model", default="smollm2")
    flags.add_argument("--cache", action="append", default=[])
    flags.add_argument("--depth", type=int, default=8100)
    flags.add_argument("-t", "--threads", type=int, default=2)
    flags.add_argument("--turns", type=int, default=2)
    flags.add_argument("--json", type=pathlib.Path)
    options = flags.parse_args()
    options.cache = options.cache or ["full", "bands:bits=2"]
    about = run([options.program, "info", "-m", options.model, "--json", "-"])
    figures = {}
    for _ in range(options.turns):
        turn = {"llama-bench, flash attention": own_bench(options, about["path"], "on"), "llama-bench": own_bench(options, about["path"], "off"),
                **kvspan_bench(options)}
        for name, one in turn.items():
            for what, number in one.items():
                figures.setdefault(name, {}).setdefault(what, []).append(number)
    rows = [{"engine": name, **{what: statistics.median(numbers) for what, numbers in one.items()}, "turns": one} for name, one in figures.items()]
    best = {what: max(row[what] for row in rows if not row["engine"].startswith("kvspan")) for what in ("prefill_tok_s", "decode_tok_s")}
    for row in rows:
        row.update({f"{what.split('_')[0]}_vs_best": row[what] / best[what] for what in best})
        print(f"{row['engine']:32} prefill {row['prefill_tok_s']:8.1f} tok/s ({row['prefill_vs_best']:.2f} of the best llama.cpp), "
              f"decode {row['decode_tok_s']:6.1f} ({row['decode_vs_best']:.2f})", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"command": "peer_check", "model": options.model, "depth": options.depth, "threads": options.threads,
                                            "machine": about["machine"], "version": about["version"], "turns": options.turns, "rows": rows}, indent=1) + "\n",
                                encoding="utf-8")


if __name__ == "__main__":
    main()
