# SPDX-License-Identifier: Apache-2.0
"""What kvspan does with files, each as something that can be started, stopped or made to fail at any moment, and then looked at: what was
there before is still there, or what should come is."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/scripts"))
from hub_server import HubServer  # noqa: E402

STORIES = TREE / "data/models/stories260K.gguf"
TEXT = (TREE / "data/text/tinystories_head.txt").read_text()
MODEL = ("-m", str(STORIES), "-t", "2", "--fixed-threads")
CACHE = ("--cache", "quant:bits=4,sink=1,recent=8")
REPO = "someone/Stories-GGUF"


class Wrong(Exception):
    """Neither the old nor the new file is there, or something else that must not be."""


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


class Operation:
    """A command that replaces `files` in its folder. Subclasses say how the old ones are made, and the command."""
    files = ()
    maps_files = True  # scripts map none: their mmaps are the interpreter's

    def __init__(self, program, root):
        self.program, self.root, self.folder = program, root, root / "work"
        self.folder.mkdir(parents=True)
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("KVSPAN_", "HF_", "LLAMA_"))}
        self.env.update(HOME=str(root), XDG_CACHE_HOME=str(root / "cache"), TERM="dumb")
        self.make_old()
        shutil.copytree(self.folder, root / "old")
        self.old = contents(self.folder)
        # Made twice: what the first run leaves in the user's cache is not part of the others.
        for _ in range(2):
            self.reset()
            done = self.run()
            if done.returncode != 0:
                raise Wrong(f"{type(self).__name__}: undisturbed it fails:\n{done.stderr}")
        self.new, self.output = contents(self.folder), done.stdout

    def close(self):
        pass

    def make_old(self):
        raise NotImplementedError

    def command(self):
        raise NotImplementedError

    stdin = ""

    def reset(self):
        shutil.rmtree(self.folder)
        shutil.copytree(self.root / "old", self.folder)

    def start(self, **env):
        return subprocess.Popen(self.command(), cwd=self.folder, env={**self.env, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)

    def run(self, **env):
        process = self.start(**env)
        out, err = process.communicate(self.stdin, timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def must_succeed(self, *arguments, stdin=""):
        subprocess.run([self.program, *arguments], cwd=self.folder, env=self.env, input=stdin, check=True, capture_output=True, text=True, timeout=300)

    def check(self, done=None):
        """After a run that ended by itself (`done`), or was killed (None)."""
        now = contents(self.folder)
        for name in self.files:
            allowed = [files[name] for files in (self.old, self.new) if name in files]
            if name not in now and name in self.old:
                raise Wrong(f"{name} is gone")
            if name in now and now[name] not in allowed:
                raise Wrong(f"{name} is neither the old nor the new one: {len(now[name])} bytes")
        if done is None:
            return
        left = [name for name in now if name not in self.old and name not in self.new]
        if left:
            raise Wrong(f"{left} stay behind")
        if done.returncode == 0 and any(now.get(name) != self.new[name] for name in self.files):
            raise Wrong("it says that it succeeded, and the old file is there")


class Save(Operation):
    """A prompt cache, over that of another prompt."""
    files = ("prompt.kv",)

    def make_old(self):
        self.must_succeed("run", *MODEL, *CACHE, "-p", TEXT[200:900], "-n", "1", "--prompt-cache", "prompt.kv")

    def command(self):
        return [self.program, "run", *MODEL, *CACHE, "-p", TEXT[:700], "-n", "4", "--temp", "0", "--prompt-cache", "prompt.kv"]


class Load(Operation):
    """The same prompt again: the file is read and stays."""
    files = ("prompt.kv",)

    def make_old(self):
        subprocess.run(self.command(), cwd=self.folder, env=self.env, check=True, capture_output=True)

    def command(self):
        return [self.program, "run", *MODEL, *CACHE, "-p", TEXT[:700], "-n", "4", "--temp", "0", "--prompt-cache", "prompt.kv"]

    def check(self, done=None):
        super().check(done)
        if done is not None and done.returncode == 0 and done.stdout != self.output:
            raise Wrong(f"it succeeds with another answer: {done.stdout!r}")


class Calibrate(Operation):
    """A calibration, over one of other windows."""
    files = ("c.gguf",)

    def arguments(self, window):
        return ("calibrate", "-m", str(STORIES), "-t", "2", "-f", str(TREE / "data/text/tinystories_head.txt"), "--tokens", "128", "--ctx", window,
                "--layer-weights", "none", "-o", "c.gguf")

    def make_old(self):
        self.must_succeed(*self.arguments("128"))

    def command(self):
        return [self.program, *self.arguments("64")]


class ChatSave(Operation):
    """A conversation that goes on and is saved to where it came from, and its cache beside it."""
    files = ("talk.json", "talk.json.kv")
    stdin = "/load talk.json\n Then\n/save talk.json\n"

    def make_old(self):
        self.must_succeed("chat", *MODEL, *CACHE, "--temp", "0", "-n", "8", stdin="Once upon a time\n/save talk.json\n")

    def command(self):
        return [self.program, "chat", *MODEL, *CACHE, "--temp", "0", "-n", "8"]

    def check(self, done=None):
        # The cache is no part of the conversation: one that cannot be saved is said, and the chat goes on.
        if done is not None and done.returncode == 0 and "the cache is not saved" in done.stderr:
            self.files, whole = ("talk.json",), self.files
            try:
                super().check(done)
            finally:
                self.files = whole
        else:
            super().check(done)


class Import(Operation):
    """A folder of Hugging Face; in the converter's place a program that writes a file as slowly as that does."""
    files = ("tiny.gguf",)
    maps_files = False
    CONVERTER = """#!/usr/bin/env python3
import pathlib, sys, time
with open(sys.argv[-1], "wb") as out:
    out.write(b"GGUF")
    for i in range(20):
        out.write(bytes([i]) * 20000)
        out.flush()
        time.sleep(0.002)
"""

    def make_old(self):
        model, archive, venv = (self.root / name for name in ("tiny", "archive", "venv"))
        for folder in (model, archive / "conversion", venv / "bin"):
            folder.mkdir(parents=True)
        (archive / "convert_hf_to_gguf.py").touch()
        (archive / "conversion/__init__.py").write_text("TEXT_MODEL_MAP: dict[str, str] = {'LlamaForCausalLM': 'm'}\nMMPROJ_MODEL_MAP = {}\n")
        (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 8}))
        (model / "tokenizer.json").write_text("{}")
        header = json.dumps({"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(400))
        (venv / "bin/python").write_text(self.CONVERTER)
        (venv / "bin/python").chmod(0o755)
        self.env["KVSPAN_IMPORT_VENV"] = str(venv)
        (self.folder / "tiny.gguf").write_bytes(b"GGUF of another model")

    def command(self):
        return [sys.executable, str(TREE / "scripts/import_hf.py"), "--force", "--archive", str(self.root / "archive"), str(self.root / "tiny"),
                str(self.folder / "tiny.gguf")]

    def check(self, done=None):
        if done is not None and done.returncode != 0:  # the converter's log is named by the error
            (self.folder / "tiny.gguf.log").unlink(missing_ok=True)
        super().check(done)


class Pull(Operation):
    """A model of a hub, which is not there yet. What was fetched may stay for the next time; the model is there whole or not at all."""
    maps_files = False

    def make_old(self):
        self.server = HubServer(REPO, {"stories-Q8_0.gguf": STORIES.read_bytes()})
        self.env.update(HF_ENDPOINT=self.server.endpoint, KVSPAN_RETRY_S="0.01", HF_HOME=str(self.folder / "hf"))
        self.hash = hashlib.sha256(STORIES.read_bytes()).hexdigest()

    def close(self):
        self.server.close()

    def command(self):
        return [self.program, "pull", "-hf", REPO]

    def check(self, done=None):
        models = [path for path in self.folder.rglob("*.gguf")]
        for path in models:
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != self.hash:
                raise Wrong(f"{path} is not the model")
        if done is not None and done.returncode == 0 and not models:
            raise Wrong("it says that it succeeded, and there is no model")
        again = self.run()
        if again.returncode != 0 or not list(self.folder.rglob("*.gguf")):
            raise Wrong(f"the next pull fails: {again.stderr}")


class Store(Operation):
    """A server that keeps prompts on disk: whatever it could keep, the next one with the same folder answers the same."""

    def make_old(self):
        pass

    def command(self):
        return [sys.executable, str(TREE / "tests/faults/store_run.py"), self.program, str(STORIES), str(self.folder / "store")]

    def check(self, done=None):
        if done is not None and done.returncode == 0 and done.stdout != self.output:
            raise Wrong(f"it answers {done.stdout!r}, undisturbed {self.output!r}")
        again = self.run()
        if again.returncode != 0 or again.stdout != self.output:
            raise Wrong(f"the next server answers {again.stdout!r}, and an undisturbed one {self.output!r}: {again.stderr[-300:]}")


OPERATIONS = {"save": Save, "load": Load, "calibrate": Calibrate, "chat": ChatSave, "import": Import, "pull": Pull, "store": Store}
if os.environ.get("KVSPAN_NO_SERVER"):  # the program is built without `serve`
    del OPERATIONS["store"]


@contextlib.contextmanager
def operation(name, program, root):
    made = OPERATIONS[name](str(program), pathlib.Path(root) / name)
    try:
        yield made
    finally:
        made.close()
