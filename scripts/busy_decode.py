#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of `kvspan run` on an idle machine and beside one busy process for each core:

    scripts/busy_decode.py                                   SmolLM2, five recipes
    scripts/busy_decode.py --cache bands:bits=2 --runs 5 --json busy.json

By recipe: idle, with the threads chosen as the machine allows and with --fixed-threads, in turns; then beside the busy processes. Of idle
runs the medians count, of busy ones the slowest. Exit 1 if a recipe is slower than a quarter of its idle speed beside the others, or if
the choice of threads costs more than 3 % of the idle speed. "Idle" is as idle as the machine is: the load before each part is written down.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

TREE = pathlib.Path(__file__).resolve().parent.parent
RECIPES = ["full", "bands:bits=2", "bands:calib=online", "quant:bits=4", "quest:keep=256+bands:bits=2"]
LEAST_SHARE = 0.25
MOST_LOSS = 0.03
PROMPT = "Tell me a long story about a ship."


class BusyProcesses:
    """One endless loop for each core."""

    def __enter__(self):
        self.loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
        time.sleep(1.0)  # they run, and the scheduler has seen it
        return self

    def __exit__(self, *_):
        for loop in self.loops:
            loop.kill()
            loop.wait()


def answer(options, recipe, *more):
    command = [options.program, "run", "-m", options.model, "--cache", recipe, "-t", str(options.threads), "-p", PROMPT, "-n",
               str(options.tokens), "--ignore-eos", "--temp", "0", "--json", "-", "-q", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def measure(options, recipe):
    answer(options, recipe)  # codes are designed
    load = os.getloadavg()[0]
    chosen, fixed = [], []
    for _ in range(options.runs):
        fixed.append(answer(options, recipe, "--fixed-threads")["decode_tok_s"])
        chosen.append(answer(options, recipe)["decode_tok_s"])
    with BusyProcesses():
        busy = [answer(options, recipe)["decode_tok_s"] for _ in range(options.runs)]
    idle = statistics.median(chosen)
    return {"recipe": recipe, "load_before": load, "idle_tok_s": round(idle, 2), "idle_fixed_tok_s": round(statistics.median(fixed), 2),
            "choice_loss": round(1.0 - idle / statistics.median(fixed), 4), "busy_tok_s": [round(speed, 2) for speed in busy],
            "slowest_share": round(min(busy) / idle, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"))
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--cache", action="append", metavar="RECIPE", help="may be repeated")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("-n", "--tokens", type=int, default=200, help="of an answer (200)")
    parser.add_argument("--runs", type=int, default=3, help="of each kind (3)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    options = parser.parse_args()
    rows = []
    print(f"{'recipe':<30} {'idle, tok/s':>11} {'fixed threads':>13} {'loss':>7} {'beside others':>13} {'share':>6}")
    for recipe in options.cache or RECIPES:
        rows.append(row := measure(options, recipe))
        print(f"{recipe:<30} {row['idle_tok_s']:>11.1f} {row['idle_fixed_tok_s']:>13.1f} {row['choice_loss']:>7.1%} "
              f"{min(row['busy_tok_s']):>13.1f} {row['slowest_share']:>6.2f}", flush=True)
    if options.json:
        words = [word for word in sys.argv[1:] if word not in ("--program", options.program)]
        said = answer(options, "full")
        document = {"command": "busy_decode", "arguments": words, **{key: said[key] for key in ("version", "date", "machine")},
                    "model": options.model, "threads": options.threads, "busy_processes": os.cpu_count(), "rows": rows}
        pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["slowest_share"] < LEAST_SHARE or row["choice_loss"] > MOST_LOSS for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
