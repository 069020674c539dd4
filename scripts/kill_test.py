#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills kvspan at N moments of each operation (tests/faults/operations.py) and looks whether the old or the new file is there.

usage: scripts/kill_test.py N [OPERATION...] [--program FILE] [--seed S]"""

import argparse
import pathlib
import random
import sys
import tempfile
import time

TREE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "tests/faults"))
from kills_test import kills  # noqa: E402
from operations import OPERATIONS, Wrong, operation  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, metavar="N", help="moments of each operation")
    parser.add_argument("operations", nargs="*", metavar="OPERATION", help=f"{', '.join(OPERATIONS)}; all where none is named")
    parser.add_argument("--program", type=pathlib.Path, default=TREE / "build/release/bin/kvspan")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    unknown = [name for name in args.operations if name not in OPERATIONS]
    if unknown:
        parser.error(f"operation={unknown[0]}: there is no such operation; supported: {', '.join(OPERATIONS)}")
    if not args.program.is_file():
        parser.error(f"program={args.program}: there is no such file; ./run builds one")
    wrong = 0
    for name in args.operations or OPERATIONS:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kvspan-kills-") as folder:
            with operation(name, args.program, pathlib.Path(folder)) as made:
                try:
                    at_work = kills(made, args.count, random.Random(args.seed))
                    print(f"{name}: {args.count} kills, {at_work} of them before its end, {time.monotonic() - started:.0f} s", flush=True)
                except Wrong as found:
                    wrong += 1
                    print(f"{name}: {found}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
