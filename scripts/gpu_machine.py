# SPDX-License-Identifier: Apache-2.0
"""The GPU that something was measured on, as results tell it."""

import subprocess

FIELDS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit,memory.total"


def gpu():
    done = subprocess.run(["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    return dict(zip(FIELDS.split(","), (word.strip() for word in done.stdout.splitlines()[0].split(","))))
