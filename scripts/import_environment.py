# SPDX-License-Identifier: Apache-2.0
"""The Python environment of the converter: what is in it, how large it is, and making it once, if the user agrees."""
import fcntl
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from import_folder import Refusal

# transformers is the version the converter of llama-cpp-python 0.3.36 pins; the usual torch 2.8.0 package for Arm has
# no CUDA libraries, newer ones bring 5 GB of them; the gguf package is the archive's own, found by path, so only what
# it imports is listed. tiktoken is what tokenizers in Python files of a folder ask for.
REQUIREMENTS = ("torch==2.8.0", "transformers==4.57.6", "numpy", "safetensors", "sentencepiece", "protobuf", "pyyaml",
                "tqdm", "requests", "tiktoken")
# To download and on disk, with what they need; measured for Python 3.11. On x86 torch brings CUDA libraries along.
SIZES = ("4 GB", "7 GB") if platform.machine() == "x86_64" else ("160 MB", "900 MB")


def say(text: str) -> None:
    print(f"import: {text}", file=sys.stderr, flush=True)


def run_logged(command: list[str], log: Path) -> None:
    """Runs quietly; on failure names the last line it wrote and the log."""
    with open(log, "a+", encoding="utf-8", errors="replace") as f:
        start = f.tell()
        code = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
        if code != 0:
            f.seek(start)
            lines = [line for line in f.read().splitlines() if line.strip()]
            if any("No space left on device" in line for line in lines):
                raise Refusal(f"disk full while setting up {log.parent}")
            reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
            raise Refusal(f"setting up the converter failed: {reason.strip()[:200]} (log: {log})")


def announce(venv: Path, yes: bool) -> None:
    """Says what will be installed and, unless `yes`, asks; returns when the user agrees."""
    packages = ", ".join(package.replace("==", " ") for package in REQUIREMENTS)
    plan = (f"the converter needs Python packages, installed once into {venv}: {packages} and what they need, about "
            f"{SIZES[0]} to download and {SIZES[1]} on disk")
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal(f"{plan}; there is no terminal to ask on, --yes installs them")
    say(plan)
    if yes:
        return
    print("import: install them? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # the input ended
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise Refusal("nothing was installed and nothing converted")


def install(venv: Path, log: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    log.unlink(missing_ok=True)
    run_logged([sys.executable, "-m", "venv", str(venv)], log)
    extra = shlex.split(os.environ.get("KVSPAN_PIP_ARGS", ""))
    for i, package in enumerate(REQUIREMENTS):
        say(f"installing {package} ({i + 1} of {len(REQUIREMENTS)})")
        run_logged([str(venv / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", *extra, package], log)


def converter_python(yes: bool) -> Path:
    """The interpreter of the converter's environment, which is made first where needed; `yes` makes it unasked."""
    ready_made = os.environ.get("KVSPAN_IMPORT_VENV")
    if ready_made:
        python = Path(ready_made) / "bin" / "python"
        if not os.access(python, os.X_OK):
            raise Refusal(f"KVSPAN_IMPORT_VENV: {python} is not an interpreter")
        return python
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvspan"
    venv, wanted = cache / "import-venv", "\n".join(REQUIREMENTS)
    marker = venv / "kvspan-requirements.txt"

    def ready() -> bool:
        return marker.is_file() and marker.read_text() == wanted

    if not ready():
        announce(venv, yes)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "import-venv.lock", "w")
    except OSError as e:
        raise Refusal(f"{cache}: {e.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second import waits for the first one's setup
        if not ready():
            install(venv, cache / "import-venv.log")
            marker.write_text(wanted)
    return venv / "bin" / "python"
