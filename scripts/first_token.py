#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds from the start of `kvspan run` to the first letter of its answer, by recipe:

    scripts/first_token.py                                   SmolLM2, five recipes
    scripts/first_token.py --cache bands:bits=2 --starts 5 --json first_token.json

The first start of a recipe designs its codes; later ones find them. Each recipe gets a cache folder of its own, with the model and its
calibration but no codes. Later starts take turns with `full`; exit 1 if the median of a recipe is more than 0.3 s above full's. Where the
machine is busy with other things, processor seconds (`..._cpu_s` of --json, with -t 1) say more.
"""

import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from recipe_rows import parser, rows_of

RECIPES = ["bands:bits=2.25", "bands:bits=1", "bands:calib=online", "quant:bits=4", "static"]
MOST_ABOVE_FULL_S = 0.3


def user_cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kvspan"


class Starts:
    """Starts of the program with a cache folder of their own."""

    def __init__(self, options, folder):
        self.options = options
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
        kept = folder / "kvspan"
        kept.mkdir(parents=True)
        (kept / "models").symlink_to(user_cache() / "models")
        if (user_cache() / "calibration").is_dir():
            shutil.copytree(user_cache() / "calibration", kept / "calibration")

    def start(self, recipe):
        """Seconds to the first letter, and processor seconds of the whole run, which ends after it."""
        command = [self.options.program, "run", "-m", self.options.model, "--cache", recipe, "-t", str(self.options.threads), "-p", "Hi",
                   "-n", "1", "--temp", "0"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment) as process:
            letter = process.stdout.read(1)
            seconds = time.monotonic() - begun
            _, errors = process.communicate()
        if process.returncode != 0 or not letter:
            sys.exit(f"{' '.join(command)}: {errors.decode(errors='replace').strip() or 'no answer'}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(options, recipe):
    with tempfile.TemporaryDirectory(prefix="kvspan-first-") as folder:
        starts = Starts(options, pathlib.Path(folder))
        starts.start("full")  # the model's file comes into memory
        load = os.getloadavg()[0]
        first = starts.start(recipe)
        later, full = [], []
        for _ in range(options.starts):
            full.append(starts.start("full"))
            later.append(starts.start(recipe))
    row = {"recipe": recipe, "starts": options.starts, "load_before": load}
    for i, unit in enumerate(("s", "cpu_s")):
        row[f"first_start_{unit}"] = round(first[i], 3)
        row[f"later_start_{unit}"] = round(statistics.median(one[i] for one in later), 3)
        row[f"full_start_{unit}"] = round(statistics.median(one[i] for one in full), 3)
    row["above_full_s"] = round(row["later_start_s"] - row["full_start_s"], 3)
    return row


def line(row):
    return (f"{row['recipe']:<24} {row['first_start_s']:>15.2f} {row['later_start_s']:>9.2f} {row['full_start_s']:>8.2f} "
            f"{row['above_full_s']:>14.2f}")


def main():
    flags = parser(__doc__)
    flags.add_argument("--starts", type=int, default=5, help="later starts of each recipe (5)")
    options = flags.parse_args()
    print(f"{'recipe':<24} {'first start, s':>15} {'later, s':>9} {'full, s':>8} {'above full, s':>14}")
    rows = rows_of(options, RECIPES, measure, line)
    return 1 if any(row["above_full_s"] > MOST_ABOVE_FULL_S for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
