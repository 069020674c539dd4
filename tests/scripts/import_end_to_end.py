# SPDX-License-Identifier: Apache-2.0
"""Imports freshly made tiny models with the real converter and compares with what made the fixtures.

Needs an environment with torch, transformers, tokenizers and so on, named by KVSPAN_IMPORT_VENV (making one is a
download of hundreds of MB, which a test should not do), and the llama.cpp folder of the pinned archive, named by
KVSPAN_LLAMA_CPP. KVSPAN_PROGRAM may name a kvspan, which then runs the files.
CMake adds this test when both are set; import_hf_test.py holds everything that needs neither.

    python3 -m venv V
    V/bin/pip install torch==2.8.0 transformers==4.57.6 safetensors sentencepiece protobuf pyyaml tqdm requests
    KVSPAN_IMPORT_VENV=V KVSPAN_LLAMA_CPP=.../vendor/llama.cpp python3 tests/scripts/import_end_to_end.py
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
PYTHON = pathlib.Path(os.environ["KVSPAN_IMPORT_VENV"]) / "bin" / "python"
ARCHIVE = pathlib.Path(os.environ["KVSPAN_LLAMA_CPP"])
PROGRAM = os.environ.get("KVSPAN_PROGRAM")
NAMES = ("llama", "llama3_rope", "gemma3", "phi", "mixtral")
# Models made like those of fixture_models.py, of architectures that have no fixture. (libllama looks for special tokens
# in the vocabulary of a model whose name has "phi3" in it.)
SHAPE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, tie_word_embeddings=False)
MORE = {"phi": dict(hf="Phi3", config=dict(SHAPE, original_max_position_embeddings=128), without=[]),
        "mixtral": dict(hf="Mixtral", config=dict(SHAPE, num_local_experts=4, num_experts_per_tok=2), without=[])}
MAKE = "import json, sys, make_fixtures as m; m.MODELS.update(json.loads(sys.argv.pop(1))); sys.exit(m.main())"


class ImportEndToEnd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keep = tempfile.TemporaryDirectory(prefix="kvspan test ")
        cls.addClassCleanup(cls.keep.cleanup)
        cls.folder = pathlib.Path(cls.keep.name)
        cls.made, cls.expected = cls.folder / "made", cls.folder / "expected"
        subprocess.run([PYTHON, "-c", MAKE, json.dumps(MORE), "--archive", ARCHIVE, "--out", cls.expected, "--work",
                        cls.made, *NAMES, "gpt2"], check=True, env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
                       stdout=subprocess.DEVNULL)

    def run_import(self, folder, out, *options):
        command = [sys.executable, SCRIPTS / "import_hf.py", "--archive", ARCHIVE, *options, folder, out]
        env = {**os.environ, "HF_HOME": str(self.folder / "hf")}  # transformers keeps copies of code there
        return subprocess.run(command, capture_output=True, text=True, env=env)

    def test_gives_the_same_bytes_as_the_fixtures(self):
        for name in NAMES:
            out = self.folder / f"{name}.gguf"
            result = self.run_import(self.made / name, out, "--outtype", "f32")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(out.read_bytes(), (self.expected / f"{name}.gguf").read_bytes(), name)

    @unittest.skipUnless(PROGRAM, "KVSPAN_PROGRAM names no kvspan")
    def test_what_it_wrote_runs(self):
        for name in NAMES:
            out = self.folder / f"{name}-run.gguf"
            self.assertEqual(self.run_import(self.made / name, out).returncode, 0)
            result = subprocess.run([PROGRAM, "run", "-m", out, "-p", "Hi", "-n", "5"], capture_output=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotEqual(result.stdout, b"", name)

    def test_smaller_types_give_smaller_files(self):
        for name in ("llama", "phi"):
            full = (self.expected / f"{name}.gguf").stat().st_size
            for kind in ("f16", "bf16", "q8_0", "auto"):
                out = self.folder / f"{name}-{kind}.gguf"
                result = self.run_import(self.made / name, out, "--outtype", kind)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertLess(out.stat().st_size, 0.75 * full, kind)

    def test_a_vocabulary_the_converter_does_not_know_is_refused(self):
        result = self.run_import(self.made / "gpt2", self.folder / "never.gguf")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr.splitlines()[-1], "^error: .*its tokenizer is not one the converter knows$")

    def test_code_of_the_folder_runs_only_with_trust_code(self):
        folder, ran = self.folder / "code", self.folder / "ran"
        shutil.copytree(self.made / "llama", folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "HybridDNATokenizer", "auto_map": {"AutoTokenizer": ["words.Words", None]}}))
        (folder / "words.py").write_text(f"open({str(ran)!r}, 'w')\n")
        result = self.run_import(folder, self.folder / "never.gguf")
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr.splitlines()[-1], "^error: .*--trust-code lets that code run$")
        self.assertFalse(ran.exists())
        self.run_import(folder, self.folder / "never.gguf", "--trust-code")
        self.assertTrue(ran.exists())
        self.assertFalse((self.folder / "never.gguf").exists())


if __name__ == "__main__":
    unittest.main()
