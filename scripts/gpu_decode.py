#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole decode steps on a GPU: kvspan's device caches beside llama.cpp with f16, q8_0 and q4_0 caches, in one process each case.

    scripts/gpu_decode.py RESULT.json --commit COMMIT --case MODEL DEPTH BATCH RECIPE... [--case ...]

Each case is one `kvspan bench --device cuda`; --model-name NAME=PATH names a file in the result. The result file is written after
every case, with the GPU, its driver and clocks; cases that it held before stay, unless measured anew. A case that fails is told
and left out.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from gpu_machine import gpu

TREE = pathlib.Path(__file__).resolve().parent.parent


def measure(options, case, names):
    model, depth, batch, *recipes = case
    caches = [word for recipe in recipes for word in ("--cache", recipe)]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [options.program, "bench", "-m", model, "--device", "cuda", "--depth", depth, "--batch", batch, *caches,
                   "--peer", "llama.cpp", "--peer-kv", options.peer_kv, "--repeats", str(options.repeats), "-t", str(options.threads)]
        start = time.time()
        done = subprocess.run([*command, "--json", file.name, "-q"], capture_output=True, text=True, timeout=options.timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-600:]}")
        measured = json.loads(pathlib.Path(file.name).read_text(encoding="utf-8"))
    rows = [{key: row[key] for key in ("engine", "recipe", "depth", "decode_tok_s", "decode_spread", "prefill_tok_s", "kv_bytes",
                                       "kv_bytes_full", "shared_bytes")} for row in measured["rows"]]
    f16 = next((row["decode_tok_s"] for row in rows if row["recipe"] == "f16"), None)
    for row in rows:
        row["decode_vs_llama_f16"] = row["decode_tok_s"] / f16 if f16 else None
    return {"model": names.get(model, model), "batch": int(batch), "depth": int(depth), "seconds": round(time.time() - start, 1),
            "repeats": options.repeats, "commit": options.commit, "rows": rows}


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("result", type=pathlib.Path)
    flags.add_argument("--commit", required=True)
    flags.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"))
    flags.add_argument("--case", action="append", nargs="+", required=True, metavar="WORD")
    flags.add_argument("--model-name", action="append", default=[], metavar="NAME=PATH")
    flags.add_argument("--peer-kv", default="f16,q8_0,q4_0")
    flags.add_argument("--repeats", type=int, default=24)
    flags.add_argument("-t", "--threads", type=int, default=4)
    flags.add_argument("--timeout", type=float, default=600)
    options = flags.parse_args()
    names = {}
    for word in options.model_name:
        name, equals, path = word.partition("=")
        if not equals or all(path != case[0] for case in options.case):
            flags.error(f"--model-name {word}: allowed: NAME=PATH, with the path of a case's model")
        names[path] = name
    document = {"command": "gpu_decode", "gpu": gpu(), "decode": []}
    if options.result.exists():
        document["decode"] = json.loads(options.result.read_text(encoding="utf-8"))["decode"]
    failed = 0
    for case in options.case:
        if len(case) < 4:
            flags.error(f"--case {' '.join(case)}: a model, a depth, a batch and a recipe are needed")
        try:
            measured = measure(options, case, names)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr, flush=True)
            failed += 1
            continue
        key = ("model", "batch", "depth")
        document["decode"] = [old for old in document["decode"] if any(old[k] != measured[k] for k in key)] + [measured]
        options.result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"{measured['model']}, {measured['batch']} x {measured['depth']}, {measured['seconds']} s", flush=True)
        for row in measured["rows"]:
            print(f"  {row['engine']:9} {row['recipe'][:70]:70} {row['decode_tok_s']:10.1f} tok/s  {row['decode_vs_llama_f16'] or 0:5.2f}x  "
                  f"prefill {row['prefill_tok_s']:9.0f}  KV {row['kv_bytes'] / 2**20:9.1f} MiB + {row['shared_bytes'] / 2**20:.1f}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
