#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/import_hf.py end to end, without a test framework: exits 0 when all holds.

Needs an environment with torch 2.8.0, transformers 4.57.6, numpy, safetensors, sentencepiece and tokenizers, named
by KVSPAN_IMPORT_VENV (making one takes a download of hundreds of MB, which a test should not do), and the llama.cpp
folder of the pinned archive, named by KVSPAN_LLAMA_CPP. Both are required: nothing is skipped.

    python3 -m venv V
    V/bin/pip install torch==2.8.0 transformers==4.57.6 safetensors sentencepiece pyyaml tqdm requests
    KVSPAN_IMPORT_VENV=V KVSPAN_LLAMA_CPP=.../vendor/llama.cpp python3 scripts/tests/import_hf_test.py
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

SCRIPTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SCRIPTS))
import import_hf  # noqa: E402

VENV, ARCHIVE = Path(os.environ["KVSPAN_IMPORT_VENV"]), Path(os.environ["KVSPAN_LLAMA_CPP"])


def run_import(folder, out, *options, venv=VENV):
    env = dict(os.environ, KVSPAN_IMPORT_VENV=str(venv))
    command = [sys.executable, SCRIPTS / "import_hf.py", "--archive", ARCHIVE, *options, folder, out]
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env)
    return r.returncode, r.stderr


def expect_refusal(result, *parts):
    code, text = result
    errors = [line for line in text.splitlines() if not line.startswith("import: ")]
    assert code == 2 and len(errors) == 1 and errors[0].startswith("error: "), (code, text)
    for part in parts:
        assert part in errors[0], (part, errors[0])


def copy_of(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(folder, to))


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def check_conversions(tmp: Path, made: Path) -> None:
    names = ["llama", "mistral", "gptneo"]
    subprocess.run([str(VENV / "bin" / "python"), str(SCRIPTS / "make_fixtures.py"), "--archive", str(ARCHIVE), "--out",
                    str(tmp / "expected"), "--work", str(made), *names], check=True, capture_output=True)
    for name in names:
        out = tmp / f"{name}.gguf"
        code, text = run_import(made / name, out, "--outtype", "f32")
        assert code == 0 and f"wrote {out}" in text, text
        assert out.read_bytes() == (tmp / "expected" / f"{name}.gguf").read_bytes(), f"{name} differs"
    full = (tmp / "gptneo.gguf").stat().st_size
    for name in ("llama", "gptneo"):
        for kind in ("f16", "bf16", "q8_0", "auto"):
            code, text = run_import(made / name, tmp / f"{name}.gguf", "--outtype", kind, "--force")
            assert code == 0, text
            assert (tmp / f"{name}.gguf").stat().st_size < 0.75 * full, kind
    expect_refusal(run_import(made / "llama", tmp / "llama.gguf"), "llama.gguf: exists")
    leftovers = [p.name for p in tmp.iterdir() if p.name.endswith((".part", ".log"))]
    assert not leftovers, leftovers


def check_refusals(tmp: Path, made: Path) -> None:
    out, bad = tmp / "never.gguf", tmp / "bad"
    expect_refusal(run_import(tmp / "nowhere", out), "nowhere: no such folder")
    (tmp / "empty").mkdir()
    expect_refusal(run_import(tmp / "empty", out), "no config.json")

    copy_of(made / "llama", bad)
    (bad / "config.json").write_text("{")
    expect_refusal(run_import(bad, out), "not valid JSON")

    edit_config(copy_of(made / "llama", bad), architectures=["MambaForCausalLM"])
    expect_refusal(run_import(bad, out), "MambaForCausalLM is not supported", "GPTNeoForCausalLM", "Qwen3ForCausalLM")
    edit_config(copy_of(made / "llama", bad), rope_scaling=dict(rope_type="dynamic", factor=2.0))
    expect_refusal(run_import(bad, out), "rope scaling 'dynamic' is not supported", "llama3")
    edit_config(copy_of(made / "llama", bad), architectures=["Qwen2ForCausalLM"], use_sliding_window=True)
    expect_refusal(run_import(bad, out), "use_sliding_window")

    (copy_of(made / "llama", bad) / "model.safetensors").unlink()
    expect_refusal(run_import(bad, out), "no weights")
    index = dict(weight_map=dict(a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors"))
    (bad / "model.safetensors.index.json").write_text(json.dumps(index))
    expect_refusal(run_import(bad, out), "2 of 2 weight files are missing", "model-00001-of-00002.safetensors")
    weights = copy_of(made / "llama", bad) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000])
    expect_refusal(run_import(bad, out), "the download is incomplete")
    weights.write_bytes(whole[:4])
    expect_refusal(run_import(bad, out), "truncated")
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    expect_refusal(run_import(bad, out), "Git LFS pointer")
    (copy_of(made / "llama", bad) / "tokenizer.model").unlink()
    expect_refusal(run_import(bad, out), "no tokenizer")

    expect_refusal(run_import(made / "llama", tmp / "no" / "such.gguf"), "existing folder")
    expect_refusal(run_import(made / "llama", out, "--archive", tmp), "no convert_hf_to_gguf.py")
    expect_refusal(run_import(made / "llama", out, venv=tmp), "KVSPAN_IMPORT_VENV")

    # A weight is missing inside an otherwise whole folder: found by the converter, told in one line.
    edit_config(copy_of(made / "gptneo", bad), num_layers=6, attention_types=[[["global", "local"], 3]])
    expect_refusal(run_import(bad, out), "the folder is incomplete")

    # Disk full, foreseen and not foreseen (an interpreter that fails as Python does then).
    free = shutil.disk_usage(tmp)._replace(free=1000)
    with mock.patch.object(import_hf.shutil, "disk_usage", return_value=free):
        assert import_hf.main(["--archive", str(ARCHIVE), str(made / "llama"), str(out)]) == 2
    fake = tmp / "fake" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    fake.write_text('#!/bin/sh\necho "OSError: [Errno 28] No space left on device" >&2\nexit 1\n')
    fake.chmod(0o755)
    expect_refusal(run_import(made / "llama", out, venv=tmp / "fake"), "disk full while writing")
    assert not out.exists()


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        tmp, made = Path(name) / "work", Path(name) / "made"
        tmp.mkdir()
        check_conversions(tmp, made)
        check_refusals(tmp, made)
    print("import_hf: all checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
