#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What limits each kernel of device attention, by Nsight Compute's counters:

    scripts/gpu_counters.py RESULT.json --commit COMMIT --module kvspan_cuda_bench.so --case "two bits, groups of 2, anchor 1024 16x32768" [--case ...]

Cases are those of bench/cuda/attention.py. Clocks are left alone; a kernel that is watched runs by itself, so that its time holds
the start that kernels of a call otherwise hide. Shares are of what the device can do at most.
"""

import argparse
import csv
import json
import pathlib
import re
import subprocess
import sys

from gpu_machine import gpu

TREE = pathlib.Path(__file__).resolve().parent.parent
SECTIONS = ["SpeedOfLight", "WarpStateStats", "SchedulerStats", "ComputeWorkloadAnalysis", "Occupancy"]
# Column of ncu -> name in the result.
SHARES = {"sm__throughput.avg.pct_of_peak_sustained_elapsed": "multiprocessors",
          "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "memory",
          "lts__throughput.avg.pct_of_peak_sustained_elapsed": "second_level_cache",
          "l1tex__throughput.avg.pct_of_peak_sustained_active": "shared_memory_and_first_level",
          "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_slots",
          "sm__warps_active.avg.pct_of_peak_sustained_active": "warps"}
STALL = re.compile(r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active|_per_warp_active)?\.(?:ratio|pct)$")


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def kernel_rows(text):
    """Of each watched kernel: its name and ncu's columns."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    return rows[:1], rows[1:]  # units, kernels


def summary(row, units):
    name = re.search(r"(\w+_kernel)", row["Kernel Name"])
    microseconds = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    time = number(row["gpu__time_duration.sum"])
    found = {"kernel": name.group(1) if name else row["Kernel Name"][:60],
             "us": time * microseconds[units["gpu__time_duration.sum"]], "blocks": row.get("Grid Size"), "threads": row.get("Block Size")}
    for column, what in SHARES.items():
        if (share := number(row.get(column, ""))) is not None:
            found[what] = round(share / 100, 4)
    stalls = {}
    for column, value in row.items():
        match = STALL.match(column or "")
        if match and "not_issued" not in column and (cycles := number(value)):
            stalls[match.group(1)] = round(cycles, 3)
    # Cycles that a warp waits between two instructions, by what it waits for.
    found["waits"] = dict(sorted(stalls.items(), key=lambda item: -item[1])[:5])
    return found


def watch(options, case, *which):
    """Summaries of the kernels that ncu is told to watch, by name; the last of each, whose tables are in the cache."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    command = [options.ncu, "--clock-control", "none", *sections, *which, "--csv", "--page", "raw",
               sys.executable, str(TREE / "bench/cuda/attention.py"), options.module, "--profile", "--only", case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    units, kernels = kernel_rows(done.stdout)
    if not kernels:
        raise RuntimeError(f"{case}: ncu saw no kernel: {(done.stdout + done.stderr)[-400:]}")
    summaries = [summary(row, units[0]) for row in kernels]
    return {one["kernel"]: one for one in summaries}


def measure(options, case):
    coding = watch(options, case, "-k", "regex:encode_kernel", "--launch-skip", "4", "--launch-count", "1")
    attention = watch(options, case, "-k", "regex:prepare_kernel|attend_bands_kernel|finish_kernel")
    return {"case": case, "kernels": [*attention.values(), *coding.values()]}


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("result", type=pathlib.Path)
    flags.add_argument("--commit", required=True)
    flags.add_argument("--module", required=True)
    flags.add_argument("--case", action="append", required=True)
    flags.add_argument("--ncu", default="ncu")
    flags.add_argument("--timeout", type=float, default=300)
    options = flags.parse_args()
    document = {"command": "scripts/gpu_counters.py RESULT.json --commit COMMIT --module MODULE " +
                " ".join(f'--case "{case}"' for case in options.case), "commit": options.commit, "gpu": gpu(), "counters": []}
    for case in options.case:
        measured = measure(options, case)
        document["counters"].append(measured)
        options.result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        for kernel in measured["kernels"]:
            print(case, kernel, flush=True)


if __name__ == "__main__":
    main()
