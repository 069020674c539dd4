# SPDX-License-Identifier: Apache-2.0
"""Imports freshly made tiny models with the real converter and compares with what made the fixtures.

Needs an environment with torch, transformers, tokenizers and so on, named by KVSPAN_IMPORT_VENV (making one is a
download of hundreds of MB, which a test should not do), and the llama.cpp folder of the pinned archive, named by
KVSPAN_LLAMA_CPP.
CMake adds this test when both are set; import_hf_test.py holds everything that needs neither.

    python3 -m venv V
    V/bin/pip install torch==2.8.0 transformers==4.57.6 safetensors sentencepiece pyyaml tqdm requests
    KVSPAN_IMPORT_VENV=V KVSPAN_LLAMA_CPP=.../vendor/llama.cpp python3 tests/scripts/import_end_to_end.py
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
PYTHON = pathlib.Path(os.environ["KVSPAN_IMPORT_VENV"]) / "bin" / "python"
ARCHIVE = pathlib.Path(os.environ["KVSPAN_LLAMA_CPP"])
NAMES = ("llama", "mistral", "gemma3")


class ImportEndToEnd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.keep = tempfile.TemporaryDirectory(prefix="kvspan test ")
        cls.addClassCleanup(cls.keep.cleanup)
        cls.folder = pathlib.Path(cls.keep.name)
        cls.made, cls.expected = cls.folder / "made", cls.folder / "expected"
        subprocess.run([PYTHON, SCRIPTS / "make_fixtures.py", "--archive", ARCHIVE, "--out", cls.expected, "--work",
                        cls.made, *NAMES], check=True, capture_output=True)

    def run_import(self, folder, out, *options):
        command = [sys.executable, SCRIPTS / "import_hf.py", "--archive", ARCHIVE, *options, folder, out]
        return subprocess.run(command, capture_output=True, text=True)

    def test_gives_the_same_bytes_as_the_fixtures(self):
        for name in NAMES:
            out = self.folder / f"{name}.gguf"
            result = self.run_import(self.made / name, out, "--outtype", "f32")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(out.read_bytes(), (self.expected / f"{name}.gguf").read_bytes(), name)

    def test_smaller_types_give_smaller_files(self):
        for name in ("llama", "gemma3"):
            full = (self.expected / f"{name}.gguf").stat().st_size
            for kind in ("f16", "bf16", "q8_0", "auto"):
                out = self.folder / f"{name}-{kind}.gguf"
                result = self.run_import(self.made / name, out, "--outtype", kind)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertLess(out.stat().st_size, 0.75 * full, kind)


if __name__ == "__main__":
    unittest.main()
