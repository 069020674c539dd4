#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches a GGUF model from Hugging Face into the cache folder that other tools share.

    pull_hub.py USER/REPO[:QUANT] --endpoint URL --cache DIR [--file PATH] [--machine] [--progress bar|plain|none]

Which file: --file, or the first whose name has the quantization, or Q4_K_M, Q8_0, any, as llama.cpp chooses; of a split
model all parts. The folder has the layout of huggingface_hub (blobs, snapshots, refs), so its tools and llama.cpp find the
file too. A file is fetched as blobs/HASH.incomplete, goes on where it stopped, is checked against its SHA-256, and only
then gets its name. HF_TOKEN goes to the endpoint's host and to no other. Exit 0: the path is printed; 2: one line says why
not; 130: interrupted, what was fetched stays. With --machine that line goes to standard output, as for `kvspan -hf`, which
carries this file inside itself and runs it with python3 -c.
"""

import argparse
import fcntl
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

BLOCK = 1 << 18
MARGIN_BYTES = 32 << 20  # left free on the disk
TIMEOUT_S = 30
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


class Redirects(urllib.request.HTTPRedirectHandler):
    """Files live with another host, which must not see the token."""

    def redirect_request(self, request, answer, code, message, headers, url):
        following = super().redirect_request(request, answer, code, message, headers, url)
        if following is not None and urllib.parse.urlsplit(url).netloc != urllib.parse.urlsplit(request.full_url).netloc:
            following.remove_header("Authorization")
        return following


class Hub:
    def __init__(self, endpoint, repo):
        self.endpoint, self.repo = endpoint.rstrip("/"), repo
        self.token = os.environ.get("HF_TOKEN", "")
        self.opener = urllib.request.build_opener(Redirects)

    def open(self, url, headers=None):
        request = urllib.request.Request(url, headers={"User-Agent": "kvspan", **(headers or {})})
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        return self.opener.open(request, timeout=TIMEOUT_S)

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
        for attempt in range(ATTEMPTS):
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


def hash_of(entry):
    """The file's hash, and a fresh digest that computes it: SHA-256, or git's for small files."""
    lfs = entry.get("lfs") or {}
    oid = lfs.get("oid") or entry.get("oid") or ""
    if re.fullmatch(r"[0-9a-f]{64}", oid):
        return oid, hashlib.sha256()
    if re.fullmatch(r"[0-9a-f]{40}", oid):
        return oid, hashlib.sha1(b"blob %d\0" % entry["size"])
    raise Failed(f"the server gives no hash for {entry['path']}: it cannot be checked")


def fetch(hub, entry, url, blob, progress, before):
    """Leaves the verified file at `blob`. What an earlier call left of it is kept."""
    oid, digest = hash_of(entry)
    size, partial = entry["size"], blob.with_name(blob.name + ".incomplete")
    with open(partial, "ab") as out:
        if out.tell() > size:
            out.truncate(0)
    with open(partial, "r+b") as out:
        while block := out.read(BLOCK):
            digest.update(block)
        done, idle, reason = out.tell(), 0, ""
        while done < size:
            if idle == ATTEMPTS:
                raise Failed(f"{entry['path']}: {reason}; {done} of {size} bytes are kept, the same command goes on")
            if idle > 0:
                wait(idle - 1)
            idle += 1
            try:
                with hub.open(url, {"Range": f"bytes={done}-"} if done else {}) as answer:
                    if done and answer.status != 206:  # the server begins anew
                        _, digest = hash_of(entry)
                        done = 0
                        out.seek(0)
                        out.truncate()
                    while block := answer.read(min(BLOCK, size - done) or 1):
                        if done + len(block) > size:
                            raise Failed(f"{entry['path']} is longer than its {size} bytes")
                        out.write(block)
                        digest.update(block)
                        done += len(block)
                        idle = 1
                        progress.update(before + done)
                reason = "the connection ended early"
            except urllib.error.HTTPError as error:
                reason = hub.explain(error)
                if error.code < 500 and error.code not in (416, 429):
                    raise Failed(reason) from None
                if error.code == 416:
                    _, digest = hash_of(entry)
                    done = 0
                    out.seek(0)
                    out.truncate()
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno == 28:
                    raise
                reason = f"the connection failed ({getattr(error, 'reason', error)})"
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != oid:
        partial.unlink()
        raise Failed(f"{entry['path']} has hash {digest.hexdigest()}, expected {oid}: it was thrown away")
    os.replace(partial, blob)


def link(snapshot, path, blob):
    place = snapshot / path
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    os.symlink(os.path.relpath(blob, place.parent), fresh)
    os.replace(fresh, place)


def pull(hub, quant, file, cache, mode):
    branch, commit = hub.commit()
    entries = choose(hub.files(commit), hub.repo, quant, file)
    folder = cache / ("models--" + hub.repo.replace("/", "--"))
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    locks = cache / ".locks" / folder.name
    locks.mkdir(parents=True, exist_ok=True)
    total = sum(entry["size"] for entry in entries)
    blobs = [folder / "blobs" / hash_of(entry)[0] for entry in entries]
    there = sum(path.stat().st_size for blob in blobs for path in (blob, blob.with_name(blob.name + ".incomplete"))
                if path.exists())
    free = shutil.disk_usage(cache).free
    if free < total - there + MARGIN_BYTES:
        raise Failed(f"{cache} has {free / 1e6:.0f} MB free; {hub.repo} needs {(total - there + MARGIN_BYTES) / 1e6:.0f} MB")
    progress, before = Progress(f"downloading {hub.repo}", total, mode), 0
    try:
        for entry, blob in zip(entries, blobs):
            with open(locks / f"{blob.name}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not blob.exists():
                    url = f"{hub.endpoint}/{hub.repo}/resolve/{commit}/{urllib.parse.quote(entry['path'])}"
                    fetch(hub, entry, url, blob, progress, before)
            before += entry["size"]
    finally:
        progress.end()
    for entry, blob in zip(entries, blobs):  # only now: of a split model all parts are there, or none
        link(folder / "snapshots" / commit, entry["path"], blob)
    reference = folder / "refs" / branch
    fresh = reference.with_name(f".{branch}.{os.getpid()}")
    fresh.write_text(commit)
    os.replace(fresh, reference)
    return folder / "snapshots" / commit / entries[0]["path"]


def main():
    parser = argparse.ArgumentParser(prog="pull_hub", description="Fetch a GGUF model from Hugging Face.")
    parser.add_argument("model", help="USER/REPO[:QUANT]")
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--cache", required=True, type=pathlib.Path)
    parser.add_argument("--file", default="")
    parser.add_argument("--machine", action="store_true")
    parser.add_argument("--progress", choices=("bar", "plain", "none"))
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    repo, _, quant = options.model.partition(":")
    try:
        if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo):
            raise Failed(f"'{options.model}' is no model of Hugging Face; it is named USER/REPO or USER/REPO:QUANT")
        print(pull(Hub(options.endpoint, repo), quant, options.file, options.cache.absolute(), options.progress))
        return 0
    except KeyboardInterrupt:
        reason, code = "interrupted; what was fetched stays, and the same command goes on from there", 130
    except Failed as failure:
        reason, code = str(failure), 2
    except (OSError, KeyError, ValueError) as failure:
        reason, code = f"cannot fetch {repo}: {failure}", 2
    print(reason if options.machine else f"kvspan: {reason}", file=sys.stdout if options.machine else sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
