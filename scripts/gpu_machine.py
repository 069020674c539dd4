# SPDX-License-Identifier: Apache-2.0
"""The GPU that something was measured on, as results tell it."""

import subprocess
import sys

FIELDS = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit,memory.total"


def gpu():
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"nvidia-smi does not run here, and this needs an NVIDIA GPU: {error}")
    return dict(zip(FIELDS.split(","), (word.strip() for word in done.stdout.splitlines()[0].split(","))))
