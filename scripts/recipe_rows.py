# SPDX-License-Identifier: Apache-2.0
"""What scripts that time `kvspan run` by recipe have in common: their flags, one row a recipe, and the file of all rows."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent


def parser(about):
    flags = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"))
    flags.add_argument("-m", "--model", default="smollm2")
    flags.add_argument("--cache", action="append", metavar="RECIPE", help="may be repeated")
    flags.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    flags.add_argument("--json", metavar="FILE", help="write all numbers")
    return flags


def answer(options, *flags):
    """Runs the program with these flags: what it writes as JSON."""
    command = [options.program, "run", "-m", options.model, *flags, "--json", "-", "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def rows_of(options, recipes, measure, line, **more):
    """A row for each recipe, printed as soon as it is there; all of them in options.json, with `more` beside them."""
    rows = []
    for recipe in options.cache or recipes:
        rows.append(measure(options, recipe))
        print(line(rows[-1]), flush=True)
    if options.json:
        said = answer(options, "--cache", "full", "-p", "Hi", "-n", "1")
        words = [word for word in sys.argv[1:] if word not in ("--program", options.program)]
        document = {"command": pathlib.Path(sys.argv[0]).stem, "arguments": words,
                    **{key: said[key] for key in ("version", "date", "machine")}, "model": options.model,
                    "threads": options.threads, **more, "rows": rows}
        pathlib.Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return rows
