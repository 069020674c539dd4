# SPDX-License-Identifier: Apache-2.0
"""scripts/import_hf.py: what it refuses and how, and that its result is whole or absent.

An interpreter that stands in for the converter's makes this independent of torch; import_end_to_end.py
runs the real one.
"""

import contextlib
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import unittest
from unittest import mock

from fakes import TREE, FakeToolsTest

sys.path.insert(0, str(TREE / "scripts"))
import import_environment  # noqa: E402
import import_hf  # noqa: E402

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}


def safetensors(n):
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4 * n)


class ImportTest(FakeToolsTest):
    def setUp(self):
        super().setUp()
        self.model, self.out = self.folder / "tiny", self.folder / "tiny.gguf"
        self.archive = self.folder / "archive"
        self.model.mkdir()
        self.archive.mkdir()
        (self.archive / "convert_hf_to_gguf.py").touch()
        (self.archive / "conversion").mkdir()
        self.knows("LlamaForCausalLM", "GPTNeoXForCausalLM", "Qwen3ForCausalLM")
        self.config()
        (self.model / "tokenizer.json").write_text("{}")
        (self.model / "model.safetensors").write_bytes(safetensors(100))
        self.env["KVSPAN_IMPORT_VENV"] = str(self.folder)
        # The output is the last argument of the converter.
        self.fake("python", 'for last; do :; done; printf "GGUF and more" >"$last"')

    def knows(self, *names):
        """The converter's table of classes, as the archive writes it."""
        table = dict.fromkeys(names, "module")
        (self.archive / "conversion" / "__init__.py").write_text(
            f"import torch\n\nTEXT_MODEL_MAP: dict[str, str] = {table!r}\nMMPROJ_MODEL_MAP = {{'Eye': 'eye'}}\n")

    def config(self, **changes):
        (self.model / "config.json").write_text(json.dumps({**CONFIG, **changes}))

    def command(self, *options, out=None):
        return [sys.executable, TREE / "scripts" / "import_hf.py", "--archive", self.archive, *options, self.model,
                out or self.out]

    def run_import(self, *options, out=None):
        return subprocess.run(self.command(*options, out=out), env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)

    def answer(self, keys):
        """Runs with a terminal on which `keys` are typed; returns the exit code and what the terminal showed."""
        terminal, inside = pty.openpty()
        process = subprocess.Popen(self.command(), env=self.env, stdin=inside, stderr=inside, stdout=subprocess.DEVNULL,
                                   start_new_session=True)
        os.close(inside)
        shown = b""
        while True:
            try:
                block = os.read(terminal, 4096)
            except OSError:  # Linux: the other side is closed
                block = b""
            if not block:
                break
            shown += block
            if keys and b"[y/N]" in shown:
                os.write(terminal, keys.encode())
                keys = ""
        os.close(terminal)
        return process.wait(timeout=60), shown.decode()

    def without_environment(self):
        """No ready-made environment, and no packages to make one from."""
        del self.env["KVSPAN_IMPORT_VENV"]
        self.env.update(XDG_CACHE_HOME=str(self.folder / "cache"), KVSPAN_PIP_ARGS="--no-index --no-cache-dir")
        self.env.pop("PIP_FIND_LINKS", None)

    def assert_refused(self, reason, *options, out=None):
        result = self.run_import(*options, out=out)
        errors = [line for line in result.stderr.splitlines() if not line.startswith("import: ")]
        self.assertEqual((result.returncode, len(errors)), (2, 1), result.stderr)
        self.assertRegex(errors[0], f"^error: .*{reason}")
        self.assertEqual(list(self.folder.glob(".*.part")), [])

    def test_writes_the_file_and_says_so(self):
        result = self.run_import()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.out.read_text(), "GGUF and more")
        self.assertIn(f"import: wrote {self.out}", result.stderr)
        self.assertEqual([p.name for p in self.folder.glob("*tiny.gguf*")], ["tiny.gguf"])

    def test_the_type_reaches_the_converter(self):
        self.run_import("--outtype", "f16")
        (call,) = self.calls_of("python")
        self.assertIn("convert_hf.py --archive", call)
        self.assertIn("--outtype f16", call)

    def test_an_existing_file_is_replaced_only_on_demand(self):
        self.out.write_text("old")
        self.assert_refused("tiny.gguf: exists; --force replaces it")
        self.assertEqual(self.out.read_text(), "old")
        self.assertEqual(self.run_import("--force").returncode, 0)
        self.assertEqual(self.out.read_text(), "GGUF and more")

    def test_a_failing_converter_leaves_the_old_file(self):
        self.out.write_text("old")
        self.fake("python", 'for last; do :; done; printf GG >"$last"; echo "ValueError: odd" >&2; exit 1')
        self.assert_refused("the converter failed: ValueError: odd", "--force")
        self.assertEqual(self.out.read_text(), "old")

    def test_known_failures_of_the_converter_get_their_own_words(self):
        for said, reason in (("OSError: [Errno 28] No space left on device", "disk full while writing"),
                             ("NotImplementedError: BPE pre-tokenizer was not recognized - update", "tokenizer is not one"),
                             ("ModuleNotFoundError: No module named 'torch'", "lacks the Python package torch"),
                             ("ImportError: This file requires the following packages that were not found in your "
                              "environment: einops. Run pip", "lacks the Python package einops \\(log")):
            self.fake("python", f'echo "{said}" >&2; exit 1')
            self.assert_refused(reason)
        self.fake("python", 'for last; do :; done; echo no >"$last"')
        self.assert_refused("wrote no GGUF file")

    def test_code_of_the_folder_runs_only_when_asked_for(self):
        self.fake("python", 'echo "ValueError: The repository x contains custom code which must be executed to" >&2; exit 1')
        self.assert_refused("its tokenizer needs Python code of the folder; --trust-code lets that code run")
        self.assert_refused("Python code", "--trust-code")
        without, trusting = self.calls_of("python")
        self.assertNotIn("--trust-code", without)
        self.assertIn("--trust-code", trusting)

    def test_with_machine_the_reason_goes_bare_to_standard_output(self):
        self.config(architectures=["MambaForCausalLM"])
        result = self.run_import("--machine")
        self.assertEqual((result.returncode, result.stderr), (2, ""))
        self.assertRegex(result.stdout, r"^[^\n]*MambaForCausalLM is not one [^\n]*\n$")

    def test_whatever_the_converter_knows_is_accepted(self):
        self.knows("OddForCausalLM")
        self.config(architectures=["OddForCausalLM"], rope_scaling={"rope_type": "dynamic"}, use_sliding_window=True)
        self.assertEqual(self.run_import().returncode, 0)
        # Of a model of several parts the converter takes the text part's class.
        self.config(architectures=["EyeForAll"], vision_config={"architectures": ["Eye"]},
                    thinker_config={"text_config": {"architectures": ["OddForCausalLM"]}})
        self.assertIn(": OddForCausalLM, ", self.run_import("--force").stderr)

    def test_an_architecture_it_does_not_know_is_named_with_near_ones(self):
        for name, reason in (("GPTNeoForCausalLM", "; near it: GPTNeoXForCausalLM$"),
                             ("Qwen9ForCausalLM", "; near it: Qwen3ForCausalLM$"), ("MambaForCausalLM", "$")):
            self.config(architectures=[name])
            self.assert_refused(f"architecture {name} is not one llama.cpp's converter knows{reason}")
        self.config(architectures=["Eye"])
        self.assert_refused("architecture Eye is not one")
        self.assertEqual(self.calls_of("python"), [])

    def test_without_a_table_the_converter_decides(self):
        self.fake("python", 'echo "ERROR:hf-to-gguf:Model NewForCausalLM is not supported" >&2; exit 1')
        self.config(architectures=["NewForCausalLM"])
        for source in ("TEXT_MODEL_MAP = load()", "not Python", ""):
            (self.archive / "conversion" / "__init__.py").write_text(source)
            self.assert_refused("architecture NewForCausalLM is not one llama.cpp's converter knows$")
        self.assertEqual(len(self.calls_of("python")), 3)

    def test_configurations_it_refuses(self):
        for none in (None, [], "LlamaForCausalLM", [3]):
            self.config(architectures=none)
            self.assert_refused("config.json: names no architecture")
        (self.model / "config.json").write_text("{")
        self.assert_refused("config.json: not valid JSON")
        (self.model / "config.json").write_text("[]")
        self.assert_refused("config.json: an object is expected")
        (self.model / "config.json").unlink()
        self.assert_refused("no config.json")
        shutil.rmtree(self.model)
        self.assert_refused("no such folder")

    def test_weights_it_refuses(self):
        weights = self.model / "model.safetensors"
        whole = weights.read_bytes()
        for content, reason in ((whole[:-10], "the download is incomplete"), (whole + b"x", "the download is incomplete"),
                                (whole[:20], "truncated"), (b"", "truncated"),
                                (struct.pack("<Q", 4) + b"nope", "damaged safetensors header"),
                                (whole.replace(b'[0, 400]', b'[0, "x"]'), "damaged safetensors header"),
                                (b"version https://git-lfs", "Git LFS pointer")):
            weights.write_bytes(content)
            self.assert_refused(reason)
        weights.unlink()
        self.assert_refused("no weights; model.*safetensors or pytorch_model.*bin is expected")
        parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        index = {"weight_map": {"a": parts[0], "b": parts[1]}}
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))
        (self.model / parts[0]).write_bytes(whole)
        self.assert_refused(f"1 of 2 weight files are missing, first {parts[1]}")
        (self.model / parts[1]).write_bytes(whole)
        self.assert_refused("2 of 2 tensors of the index are in no file, first a")
        for index in ("[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'):
            (self.model / "model.safetensors.index.json").write_text(index)
            self.assert_refused("index.json: (no weight_map|an object is expected)")

    def test_files_of_an_index_may_have_any_name(self):
        (self.model / "model.safetensors").rename(self.model / "part.safetensors")
        index = {"weight_map": {"w": "part.safetensors"}}
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))
        (self.model / "pytorch_model.bin.index.json").write_text('{"weight_map": {"w": "not_fetched.bin"}}')
        self.assertEqual(self.run_import().returncode, 0)

    def test_vocabularies_come_in_many_files(self):
        (self.model / "tokenizer.json").unlink()
        (self.model / "tokenizer_config.json").touch()
        (self.model / "vocab.json").touch()
        self.assert_refused("no tokenizer")
        for name in ("merges.txt", "spiece.model", "qwen.tiktoken", "tekken.json", "rwkv_vocab_v20230424.txt"):
            (self.model / name).touch()
            self.assertEqual(self.run_import("--force").returncode, 0, name)
            (self.model / name).unlink()

    def test_other_things_it_refuses(self):
        self.assert_refused("the output must be a file in an existing folder", out=self.folder / "no" / "such.gguf")
        self.assert_refused("the output must be a file in an existing folder", out=self.folder)
        (self.archive / "convert_hf_to_gguf.py").unlink()
        self.assert_refused("no convert_hf_to_gguf.py; the llama.cpp source folder is expected")
        (self.archive / "convert_hf_to_gguf.py").touch()
        (self.model / "tokenizer.json").unlink()
        self.assert_refused("no tokenizer")
        (self.model / "tokenizer.model").touch()
        self.env["KVSPAN_IMPORT_VENV"] = "/nowhere"
        self.assert_refused("KVSPAN_IMPORT_VENV: /nowhere/bin/python is not an interpreter")

    def test_a_disk_too_small_is_foreseen(self):
        free = shutil.disk_usage(self.folder)._replace(free=100)
        said = io.StringIO()
        with mock.patch.object(import_hf.shutil, "disk_usage", return_value=free), contextlib.redirect_stderr(said):
            code = import_hf.main(["--archive", str(self.archive), str(self.model), str(self.out)])
        self.assertEqual(code, 2)
        self.assertIn("needed for the model", said.getvalue())

    def test_a_package_that_cannot_be_installed_is_named(self):
        self.without_environment()
        self.assert_refused("setting up the converter failed: ERROR: No matching distribution found for torch", "--yes")

    def test_packages_are_installed_only_when_the_user_agrees(self):
        self.without_environment()
        plan = r"Python packages, installed once into .*import-venv: torch 2\.8\.0, .* and what they need, about .*B on disk"
        self.assert_refused(f"{plan}; there is no terminal to ask on, --yes installs them$")
        for answer in ("n\n", "\n", "\x04"):  # the last ends the input
            code, said = self.answer(answer)
            self.assertEqual(code, 2)
            self.assertRegex(said, rf"(?s)^import: tiny: .*import: the converter needs {plan}\s+import: install them\? \[y/N\] "
                                   r"[^\n]*\nerror: nothing was installed and nothing converted\s+$")
        self.assertFalse((self.folder / "cache").exists())
        code, said = self.answer("y\n")
        self.assertEqual(code, 2)
        self.assertIn("import: installing torch==2.8.0 (1 of ", said)

    def test_an_environment_once_made_is_used_unasked(self):
        self.without_environment()
        venv = self.folder / "cache" / "kvspan" / "import-venv"
        venv.mkdir(parents=True)
        (venv / "bin").symlink_to(self.bin)
        (venv / "kvspan-requirements.txt").write_text("\n".join(import_environment.REQUIREMENTS))
        result = self.run_import()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("packages", result.stderr)
        (venv / "kvspan-requirements.txt").write_text("torch==1.0")  # that of another version is made again
        self.assert_refused("--yes installs them", "--force")


if __name__ == "__main__":
    unittest.main()
