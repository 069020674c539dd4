#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of `kvspan run` on an idle machine and beside one busy process for each core:

    scripts/busy_decode.py                                   SmolLM2, five recipes
    scripts/busy_decode.py --cache bands:bits=2 --runs 5 --json busy.json

By recipe: idle, with the threads chosen as the machine allows and with --fixed-threads, in turns; then beside the busy processes. Of idle
runs the medians count, of busy ones the slowest. Exit 1 if a recipe is slower than a quarter of its idle speed beside the others, or if
the choice of threads costs more than 3 % of the idle speed. "Idle" is as idle as the machine is: the load before each part is written down.
"""

import os
import statistics
import subprocess
import sys
import time

from recipe_rows import answer, parser, rows_of

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


def speed(options, recipe, *more):
    """Decoded tokens a second of one long answer."""
    return answer(options, "--cache", recipe, "-t", str(options.threads), "-p", PROMPT, "-n", str(options.tokens), "--ignore-eos",
                  "--temp", "0", *more)["decode_tok_s"]


def measure(options, recipe):
    speed(options, recipe)  # codes are designed
    load = os.getloadavg()[0]
    chosen, fixed = [], []
    for _ in range(options.runs):
        fixed.append(speed(options, recipe, "--fixed-threads"))
        chosen.append(speed(options, recipe))
    with BusyProcesses():
        busy = [speed(options, recipe) for _ in range(options.runs)]
    idle = statistics.median(chosen)
    return {"recipe": recipe, "load_before": load, "idle_tok_s": round(idle, 2), "idle_fixed_tok_s": round(statistics.median(fixed), 2),
            "choice_loss": round(1.0 - idle / statistics.median(fixed), 4), "busy_tok_s": [round(one, 2) for one in busy],
            "slowest_share": round(min(busy) / idle, 3)}


def line(row):
    return (f"{row['recipe']:<30} {row['idle_tok_s']:>11.1f} {row['idle_fixed_tok_s']:>13.1f} {row['choice_loss']:>7.1%} "
            f"{min(row['busy_tok_s']):>13.1f} {row['slowest_share']:>6.2f}")


def main():
    flags = parser(__doc__)
    flags.add_argument("-n", "--tokens", type=int, default=200, help="of an answer (200)")
    flags.add_argument("--runs", type=int, default=3, help="of each kind (3)")
    options = flags.parse_args()
    print(f"{'recipe':<30} {'idle, tok/s':>11} {'fixed threads':>13} {'loss':>7} {'beside others':>13} {'share':>6}")
    rows = rows_of(options, RECIPES, measure, line, busy_processes=os.cpu_count())
    return 1 if any(row["slowest_share"] < LEAST_SHARE or row["choice_loss"] > MOST_LOSS for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
