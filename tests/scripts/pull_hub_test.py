# SPDX-License-Identifier: Apache-2.0
"""scripts/pull.py hub, against a local server."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from hub_server import COMMIT, HubServer

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/pull.py"
REPO = "someone/Tiny-1.5-GGUF"
DATA = bytes(range(256)) * 4000  # a megabyte


class PullHubTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvspan hub "))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.server = HubServer(REPO, {"README.md": b"hello", "tiny-F16.gguf": b"f16", "mmproj-Q4_K_M.gguf": b"eyes",
                                       "tiny-Q4_K_M.gguf": DATA, "tiny-Q8_0.gguf": DATA[::-1],
                                       "big/big-IQ2_M-00001-of-00002.gguf": b"one",
                                       "big/big-IQ2_M-00002-of-00002.gguf": b"two"})
        self.addCleanup(self.server.close)
        self.blobs = self.folder / "models--someone--Tiny-1.5-GGUF/blobs"
        self.snapshot = self.folder / "models--someone--Tiny-1.5-GGUF/snapshots" / COMMIT
        self.env = {key: value for key, value in os.environ.items() if key != "HF_TOKEN" and "proxy" not in key.lower()}
        self.env["KVSPAN_RETRY_S"] = "0.01"

    def command(self, model=REPO, *extra):
        return [sys.executable, str(SCRIPT), "hub", model, "--endpoint", self.server.endpoint, "--cache", str(self.folder), *extra]

    def pull(self, *arguments, **environment):
        return subprocess.run(self.command(*arguments), env={**self.env, **environment}, capture_output=True, text=True,
                              timeout=60)

    def pulled(self, *arguments, **environment):
        done = self.pull(*arguments, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return pathlib.Path(done.stdout.strip())

    def assert_refused(self, done, pattern):
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, rf"\Akvspan: [^\n]*{pattern}[^\n]*\n\Z")

    def ranges(self):
        return [asked for _, path, asked, _ in self.server.requests if "/resolve/" in path]

    def test_the_usual_quantization_is_chosen_and_lies_as_other_tools_expect(self):
        path = self.pulled()
        self.assertEqual(path, self.snapshot / "tiny-Q4_K_M.gguf")
        self.assertEqual(path.read_bytes(), DATA)
        self.assertEqual(path.resolve().parent, self.blobs.resolve())
        self.assertEqual((self.blobs.parent / "refs/main").read_text(), COMMIT)
        self.assertEqual([p.name for p in self.blobs.iterdir()], [path.resolve().name])

    def test_a_quantization_or_a_file_can_be_named(self):
        self.assertEqual(self.pulled(f"{REPO}:q8_0").read_bytes(), DATA[::-1])
        self.assertEqual(self.pulled(REPO, "--file", "tiny-F16.gguf").read_bytes(), b"f16")
        self.assert_refused(self.pull(f"{REPO}:Q9_9"), r"no model of quantization 'Q9_9'; there are: tiny-F16.gguf, tiny-Q4")
        self.assert_refused(self.pull(REPO, "--file", "x.gguf"), r"no file 'x.gguf'; there are: tiny-F16")

    def test_all_parts_of_a_split_model(self):
        first = self.pulled(f"{REPO}:IQ2_M")
        self.assertEqual([p.read_bytes() for p in sorted(first.parent.iterdir())], [b"one", b"two"])
        del self.server.files["big/big-IQ2_M-00002-of-00002.gguf"]
        self.assert_refused(self.pull(f"{REPO}:IQ2_M"), "no file 'big/big-IQ2_M-00002-of-00002.gguf'")

    def test_a_tree_of_several_pages(self):
        self.server.page = 2
        self.assertEqual(self.pulled().read_bytes(), DATA)

    def test_a_broken_connection_is_taken_up_again(self):
        self.server.stop_after = 300_000
        self.assertEqual(self.pulled().read_bytes(), DATA)
        self.assertEqual(self.ranges(), [None, "bytes=300000-"])

    def test_a_server_without_ranges_begins_anew(self):
        self.server.stop_after, self.server.ranges = 300_000, False
        self.assertEqual(self.pulled().read_bytes(), DATA)

    def test_a_killed_download_goes_on(self):
        self.server.send_file = self.stall
        process = subprocess.Popen(self.command(), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_for_partial(100_000)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(errors, r"\Akvspan: interrupted; [^\n]+\n\Z")
        del self.server.send_file
        left = next(self.blobs.glob("*.incomplete")).stat().st_size
        self.assertEqual(self.pulled().read_bytes(), DATA)
        self.assertEqual(self.ranges()[-1], f"bytes={left}-")

    def stall(self, handler, data):
        """Half a megabyte, then silence."""
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:len(data) // 2])
        handler.wfile.flush()
        time.sleep(5)

    def wait_for_partial(self, size):
        end = time.monotonic() + 60
        while not any(p.stat().st_size >= size for p in self.blobs.glob("*.incomplete")):
            self.assertLess(time.monotonic(), end, "nothing was fetched")
            time.sleep(0.01)

    def test_what_was_fetched_stays_when_the_server_is_gone(self):
        self.server.stop_after = 300_000
        served = self.server.send_file

        def once(handler, data):
            served(handler, data)
            self.server.send_file = lambda h, d: self.server.send(h, 503)
        self.server.send_file = once
        self.assert_refused(self.pull(), "503.*; 300000 of 1024000 bytes are kept")

    def test_a_wrong_hash_is_thrown_away(self):
        self.server.wrong_hash = True
        self.assert_refused(self.pull(), "tiny-Q4_K_M.gguf has hash [0-9a-f]{64}, expected 0{64}")
        self.assertEqual(list(self.blobs.iterdir()), [])

    def test_a_part_of_another_file_does_not_get_in(self):
        self.server.stop_after = 300_000
        self.pulled()
        blob = next(self.blobs.iterdir())
        blob.rename(blob.with_name(blob.name + ".incomplete"))
        self.blobs.joinpath(blob.name + ".incomplete").write_bytes(b"x" * 400_000)
        self.assert_refused(self.pull(), "it was thrown away")
        self.assertEqual(self.pulled().read_bytes(), DATA)

    def test_a_present_file_is_not_fetched_again(self):
        self.pulled()
        count = len(self.ranges())
        self.pulled()
        self.assertEqual(len(self.ranges()), count)

    def test_tokens(self):
        self.server.token = "hf_secret"
        self.assert_refused(self.pull(), r"access refused \(401\); .*HF_TOKEN has to be set")
        self.assert_refused(self.pull(HF_TOKEN="hf_other"), r"\(401\); .*HF_TOKEN is not accepted")
        self.assertEqual(self.pulled(HF_TOKEN="hf_secret").read_bytes(), DATA)

    def test_the_token_stays_with_its_host(self):
        self.server.token, self.server.redirect = "hf_secret", True
        self.assertEqual(self.pulled(HF_TOKEN="hf_secret").read_bytes(), DATA)
        elsewhere = [given for host, _, _, given in self.server.requests if host in self.server.other]
        self.assertEqual(elsewhere, [None])

    def test_names_that_are_not_there(self):
        self.assert_refused(self.pull("someone/else"), r"someone/else at http://.*: there is no such repository .*\(404\)")
        for name in ("tiny", "a/b/c", "../x", "a b/c"):
            self.assert_refused(self.pull(name), "USER/REPO")

    def test_no_server(self):
        self.server.close()
        self.assert_refused(self.pull(), "cannot reach http://127")

    def test_a_path_outside_the_folder_is_not_believed(self):
        self.server.files = {"../../evil-Q4_K_M.gguf": DATA}
        self.assert_refused(self.pull(), "has no GGUF file")


if __name__ == "__main__":
    unittest.main()
