# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face by the program, from a local server: -hf, pull, list, rm."""

import json
import subprocess
import sys

from program_support import PROGRAM, STORIES, STORY, TREE, ProgramTest, environment

sys.path.insert(0, str(TREE / "tests/scripts"))
from hub_server import HubServer  # noqa: E402

REPO = "someone/Stories-GGUF"
START = "Once upon a time"


class Hub(ProgramTest):
    def setUp(self):
        super().setUp()
        self.server = HubServer(REPO, {"stories-Q8_0.gguf": STORIES.read_bytes(), "notes.txt": b"x"})
        self.addCleanup(self.server.close)
        self.env = {key: value for key, value in environment(self.folder).items()
                    if not key.startswith(("HF_", "HUGGINGFACE", "LLAMA_")) and "proxy" not in key.lower()}
        self.env.update(HF_ENDPOINT=self.server.endpoint, KVSPAN_RETRY_S="0.01")

    def kvspan(self, *arguments, code=0, **more):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=self.folder,
                              stdin=subprocess.DEVNULL, env={**self.env, **more})
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def files_asked_for(self):
        return [path for _, path, _, _ in self.server.requests if "/resolve/" in path]

    def test_a_model_is_fetched_once_and_found_again_without_the_server(self):
        run = ("run", "-hf", f"{REPO}:Q8_0", "-p", START, "-n", "20", "--temp", "0", "-t", "1")
        first = self.kvspan(*run)
        self.assertTrue((" " + START + first.stdout.strip("\n")).startswith(STORY[:60]))
        self.assertEqual(len(self.files_asked_for()), 1)
        self.server.close()
        self.assertEqual(self.kvspan(*run).stdout, first.stdout)
        self.assertEqual(self.kvspan("run", "-hf", REPO, *run[3:]).stdout, first.stdout)
        self.assertEqual(self.kvspan("run", "-m", f"hf:{REPO}", *run[3:]).stdout, first.stdout)

    def test_list_and_rm(self):
        path = self.kvspan("pull", "-hf", REPO, "-hff", "stories-Q8_0.gguf").stdout.strip()
        self.assertIn(str(self.folder / "cache/huggingface/hub"), path)
        rows = {row["name"]: row for row in json.loads(self.kvspan("list", "--json", "-").stdout)}
        self.assertEqual(set(rows), {"stories260k", f"hf:{REPO}:Q8_0"})
        self.assertEqual(rows[f"hf:{REPO}:Q8_0"]["bytes"], STORIES.stat().st_size)
        self.assertRegex(self.kvspan("list").stdout, rf"(?m)^hf:{REPO}:Q8_0 +1\.0 MiB +no +/")
        self.kvspan("rm", f"hf:{REPO}:Q8_0")
        self.assertNotIn("hf:", self.kvspan("list").stdout)
        self.assertEqual([p for p in (self.folder / "cache/huggingface").rglob("blobs/*")], [])
        self.assertIn("is not here", self.kvspan("rm", f"hf:{REPO}:Q8_0", code=2).stderr)
        self.assertIn("comes with kvspan", self.kvspan("rm", "stories260k", code=2).stderr)
        self.assertIn("is not here", self.kvspan("rm", "smollm2", code=2).stderr)

    def test_refusals_are_one_line(self):
        run = ("run", "-p", START, "-n", "1", "-hf")
        for name, says in ((f"{REPO}:Q4_K_M", "no model of quantization 'Q4_K_M'; there are: stories-Q8_0.gguf"),
                           ("someone/else", "(404)"), ("nonsense", "nonsense")):
            errors = self.kvspan(*run, name, code=2).stderr
            self.assertRegex(errors, r"\Akvspan: [^\n]+\n\Z")
            self.assertIn(says, errors)
        self.server.token = "hf_secret"
        self.assertIn("HF_TOKEN has to be set", self.kvspan(*run, REPO, code=2).stderr)
        self.server.wrong_hash = True
        self.assertIn("it was thrown away", self.kvspan(*run, REPO, code=2, HF_TOKEN="hf_secret").stderr)
        self.server.wrong_hash = False
        self.kvspan(*run, REPO, HF_TOKEN="hf_secret")

    def test_a_download_that_breaks_goes_on(self):
        self.server.stop_after = 400_000
        self.kvspan("run", "-p", START, "-n", "1", "-hf", REPO)
        self.assertEqual([asked for _, path, asked, _ in self.server.requests if "/resolve/" in path],
                         [None, "bytes=400000-"])
