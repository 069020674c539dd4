#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts a Hugging Face model folder to GGUF: the work behind `kvspan import`.

Runs with any Python 3.10 or later and the standard library. Every architecture that the converter knows is converted.
What the converter needs (torch, transformers, ...) lives in a virtual environment made once, after asking, under
${XDG_CACHE_HOME:-~/.cache}/kvspan/import-venv; KVSPAN_IMPORT_VENV names a ready-made environment instead, which is then
used as it is. KVSPAN_PIP_ARGS is added to the pip command: on x86 Linux, where the usual torch brings CUDA libraries
along, "--extra-index-url https://download.pytorch.org/whl/cpu" finds one without.

The file is written under a temporary name beside OUT and renamed when complete, so OUT is never half a model.
Progress goes to standard error, as lines that begin with "import:". Exit code 0, or 2 after one line that begins with
"error:" (1 only for a defect of this script, with a traceback; 130 when interrupted).

Usage: import_hf.py --archive LLAMA_CPP_DIR [--outtype auto|f32|f16|bf16|q8_0] [--force] [--yes] [--trust-code]
                    [--machine] DIR OUT.gguf
With --machine, as for `kvspan import`, that last line goes to standard output without its "error:".
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from import_environment import converter_python, say
from import_folder import (BYTES_PER_WEIGHT, OUT_TYPES, Refusal, architecture_of, check_tokenizer, count_weights,
                           read_config, unknown_architecture)

HERE = Path(__file__).resolve().parent


def size_text(n: float) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{max(n / 2**20, 0.1):.1f} MiB"


def follow(process: subprocess.Popen, log: Path) -> list[str]:
    """Keeps the converter's messages in the log, turns them into few progress lines, returns the last ones."""
    tail: list[str] = []
    tensors, shown = 0, -1
    with open(log, "w", encoding="utf-8") as f:
        for line in iter(process.stderr.readline, ""):
            for part in filter(None, (p.strip() for p in re.split(r"[\r\n]", line))):
                f.write(part + "\n")
                tail = (tail + [part])[-20:]
                if " --> " in part:
                    tensors += 1
                    if tensors % 100 == 0:
                        say(f"{tensors} tensors read")
                m = re.match(r"Writing:\s+(\d+)%", part)
                if m and int(m[1]) // 25 > shown:
                    shown = int(m[1]) // 25
                    say(f"writing, {m[1]} %")
    return tail


def reason_of(tail: list[str], out: Path, folder: Path, log: Path) -> str:
    text = "\n".join(tail)
    if "No space left on device" in text:
        return f"disk full while writing {out}"
    if "pre-tokenizer was not recognized" in text:
        return f"{folder}: its tokenizer is not one the converter knows"
    m = re.search(r"ERROR\S*:Model (\S+) is not supported", text)
    if m:
        return str(unknown_architecture(folder, m[1], set()))
    if "contains custom code which must be executed" in text:
        return f"{folder}: its tokenizer needs Python code of the folder; --trust-code lets that code run"
    m = re.search(r"No module named '([^']+)'|packages that were not found in your environment: ([\w ,-]+)", text)
    if m:
        return f"the converter's environment lacks the Python package {m[1] or m[2]} (log: {log})"
    errors = [t for t in tail if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", t)]
    last = (errors or tail or [""])[-1]
    return f"{folder}: the converter failed: {last[:200]} (log: {log})"


def convert(args, python: Path) -> None:
    part = args.out.with_name(f".{args.out.name}.{os.getpid()}.part")
    log = args.out.with_name(f"{args.out.name}.log")
    command = [python, HERE / "convert_hf.py", "--archive", args.archive, "--outtype", args.outtype,
               *(["--trust-code"] if args.trust_code else []), args.folder, part]
    env = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", PYTHONUNBUFFERED="1")
    env.pop("PYTHONPATH", None)
    process = None
    try:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, text=True, errors="replace", env=env)
        tail = follow(process, log)
        if process.wait() != 0:
            raise Refusal(reason_of(tail, args.out, args.folder, log))
        with open(part, "rb") as f:
            if f.read(4) != b"GGUF":
                raise Refusal(f"{args.folder}: the converter wrote no GGUF file (log: {log})")
            os.fsync(f.fileno())
        os.replace(part, args.out)
        log.unlink()
    except OSError as e:
        raise Refusal(f"{e.filename or args.out}: {e.strerror}") from None
    finally:
        if process and process.poll() is None:
            process.terminate()
            process.wait()
        part.unlink(missing_ok=True)


def run(args) -> None:
    if not (args.archive / "convert_hf_to_gguf.py").is_file():
        raise Refusal(f"{args.archive}: no convert_hf_to_gguf.py; the llama.cpp source folder is expected")
    arch = architecture_of(args.folder, read_config(args.folder), args.archive)
    check_tokenizer(args.folder)
    weights = count_weights(args.folder)
    if args.out.is_dir() or not args.out.parent.is_dir():
        raise Refusal(f"{args.out}: the output must be a file in an existing folder")
    if args.out.exists() and not args.force:
        raise Refusal(f"{args.out}: exists; --force replaces it")
    need, free = weights * BYTES_PER_WEIGHT[args.outtype], shutil.disk_usage(args.out.parent).free
    if need > free:
        raise Refusal(f"{args.out.parent}: {size_text(need)} needed for the model, {size_text(free)} free")
    say(f"{args.folder.resolve().name}: {arch}, {weights / 1e6:.1f} M weights, output {args.outtype}")
    convert(args, converter_python(args.yes))
    say(f"wrote {args.out}, {size_text(args.out.stat().st_size)}")


def main(argv: list[str]) -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--archive", type=Path, required=True, help="llama.cpp source folder of the pinned archive")
    ap.add_argument("--outtype", default="auto", choices=OUT_TYPES)
    ap.add_argument("--force", action="store_true", help="replace an existing file")
    ap.add_argument("--yes", action="store_true", help="install the converter's Python packages without asking")
    ap.add_argument("--trust-code", action="store_true", help="let Python code of the folder run, as some tokenizers need")
    ap.add_argument("--machine", action="store_true", help="the reason of a failure goes to standard output, bare")
    ap.add_argument("folder", type=Path)
    ap.add_argument("out", type=Path)
    args = ap.parse_args(argv)
    try:
        run(args)
        return 0
    except Refusal as e:
        reason, code = str(e), 2
    except KeyboardInterrupt:
        reason, code = "interrupted", 130
    print(reason if args.machine else f"error: {reason}", file=sys.stdout if args.machine else sys.stderr)
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
