# SPDX-License-Identifier: Apache-2.0
"""A disk without room: the file is named, the exit is not 0, nothing half-written stays, and what was there before does."""

import json
import pathlib
import resource
import signal
import stat
import subprocess

from program_support import PROGRAM, STORIES, TREE, ProgramTest, environment

TEXT = TREE / "data/text/tinystories_head.txt"
MODEL = ("-m", STORIES, "-t", "1")
PPL = ("eval", "ppl", *MODEL, "-f", TEXT, "--ctx", "128", "--windows", "1", "--cache", "quant:bits=4,sink=1,recent=8")
WRITERS = [PPL,
           ("eval", "copa", *MODEL, "--limit", "1"),
           ("eval", "passkey", *MODEL, "--length", "256", "--limit", "1"),
           ("inspect", *MODEL, "-f", TEXT, "--tokens", "128", "--ctx", "128"),
           ("bench", *MODEL, "--depth", "16", "--cache", "full", "--repeats", "1"),
           ("run", *MODEL, "-p", "Once", "-n", "1"),
           ("tokenize", "-m", STORIES, "Once")]


class FullDisk(ProgramTest):
    def fails(self, *arguments, names, **options):
        done = self.run_program(*arguments, **options)
        text = done.stderr.decode()
        self.assertEqual(done.returncode, 1, text)
        self.assertRegex(text, r"kvspan: cannot write '[^\n']*" + names + r"': [^\n]+\n\Z")

    def with_room(self, size):
        """Files that this process's child writes end at `size` bytes, as on a disk with that much room."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return {"preexec_fn": limit}

    def files(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*")
                      if path.is_file() and "cache" not in path.parts)

    def test_json_on_a_full_device(self):
        for command in WRITERS:
            self.fails(*command, "--json", "/dev/full", names="/dev/full")
        self.fails("run", *MODEL, "-p", "Once", "-n", "1", "--track", "/dev/full", names="/dev/full")
        self.assertTrue(stat.S_ISCHR(pathlib.Path("/dev/full").stat().st_mode))

    def test_json_on_standard_output(self):
        for command in WRITERS:
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, *map(str, command), "--json", "-"], stdout=full, stderr=subprocess.PIPE, timeout=60,
                                      cwd=self.folder, env=environment(self.folder))
            self.assertEqual(done.returncode, 1, command)
            self.assertIn(b"cannot write to standard output", done.stderr, command)

    def test_an_earlier_result_stays(self):
        for command in (PPL, WRITERS[1], WRITERS[3]):
            self.output_of(*command, "--json", "out.json")
            before = (self.folder / "out.json").read_bytes()
            self.fails(*command, "--json", "out.json", names="out.json", **self.with_room(512))
            self.assertEqual((self.folder / "out.json").read_bytes(), before)
            self.assertEqual(self.files(), ["out.json"])

    def test_a_run_that_goes_on_loses_nothing(self):
        base = ("eval", "copa", *MODEL, "--json", "out.json", "--resume")
        self.output_of(*base, "--limit", "2")
        before = (self.folder / "out.json").read_bytes()
        self.fails(*base, "--limit", "4", names="out.json", **self.with_room(512))
        self.assertEqual((self.folder / "out.json").read_bytes(), before)
        self.output_of(*base, "--limit", "4")
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["rows"][0]["rows"], 4)

    def test_calibration(self):
        command = ("calibrate", *MODEL, "-f", TEXT, "--tokens", "128")
        self.fails(*command, "-o", "/dev/full", names="/dev/full")
        self.fails(*command, "-o", "c.gguf", names="c.gguf", **self.with_room(4096))
        self.assertEqual(self.files(), [])

    def test_a_study_keeps_its_units(self):
        command = ("study", *MODEL, "--quick", "-o", "study")
        self.output_of("calibrate", *MODEL, "-f", TEXT, "--tokens", "2048")  # is kept, and larger than a unit
        self.fails(*command, names=r"study/[a-z/_]+\.(json|txt)", **self.with_room(24000))
        kept = [name for name in self.files() if "/units/" in name]
        self.assertGreaterEqual(len(kept), 1)
        for name in self.files():
            if name.endswith(".json"):
                json.loads((self.folder / name).read_text())
            self.assertFalse(name.endswith(".tmp"), name)
        before = {name: (self.folder / name).read_bytes() for name in kept}
        done = self.run_program(*command)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn(f"{len(kept)} of ", done.stderr.decode())
        for name, content in before.items():
            self.assertEqual((self.folder / name).read_bytes(), content)

    def test_report(self):
        self.output_of(*PPL, "--json", "ppl.json")
        self.output_of("report", ".")
        names = self.files()
        before = {name: (self.folder / name).read_bytes() for name in names}
        self.fails("report", ".", names=r"report\.html", **self.with_room(1000))
        self.fails("report", ".", "--svg", "q.svg", names=r"q\.svg", **self.with_room(1000))
        self.assertEqual({name: (self.folder / name).read_bytes() for name in self.files()}, before)
        self.fails("report", ".", "--svg", "/dev/full", names="/dev/full")
