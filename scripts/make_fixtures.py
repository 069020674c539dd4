#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes data/fixtures: tiny random models as GGUF with the logits transformers computes for them.

For each entry of fixture_models.MODELS: a random Hugging Face model (fixed seed), saved as a folder with a toy
tokenizer, converted to GGUF in f32 by llama.cpp's converter (scripts/convert_hf.py); and the logits of all positions of
a fixed id sequence, f32, eager attention. Then each option is switched off in transformers and the logits must move far
beyond rounding, so that an engine that ignores an option cannot pass.

Made with: Python 3.11, torch 2.8.0 (CPU), transformers 4.57.6, sentencepiece 0.2.2, tokenizers 0.22.2, gguf 0.19.0
of the archive llama-cpp-python 0.3.36. Other versions may draw other numbers; each pair of files stays consistent.

Usage: make_fixtures.py --archive LLAMA_CPP_DIR --out data/fixtures [--work DIR] [--peer DIR] [NAME ...]
--peer DIR also writes the logits llama.cpp should give (GELU through its table of f16), to be compared with
scripts/llama_logits.cc.
"""
import argparse
import io
import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers

from fixture_models import BPE_VOCAB, MIN_EFFECT, MODELS, N_TOKENS, SPM_VOCAB

HERE = Path(__file__).resolve().parent
MAGIC = 0x474C564B  # "KVLG" little endian

# Enough words to train a toy vocabulary; written for this purpose.
TEXT = """the small river runs down from the hill to the old mill and turns the wheel. the miller keeps the stones dry
and the grain in the loft. when the rain comes the river rises and the wheel turns faster than the miller can count.
then he opens the gate and lets the water run around the mill, down to the meadow where the cattle stand in the shade.
in the evening the children come down to the river and throw stones across the water, one, two, three, and the
stones jump and sink. nobody knows how many stones are there under the bridge, but the miller says there are more of
them than there are stars in the water at night."""


def write_spm(folder: Path) -> None:
    """A llama-style tokenizer.model: byte-pair pieces with byte fallback; ids 0..2 = <unk> <s> </s>."""
    import sentencepiece as spm
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")), model_writer=model, model_type="bpe", vocab_size=SPM_VOCAB,
        byte_fallback=True, character_coverage=1.0, num_threads=1, normalization_rule_name="identity",
        remove_extra_whitespaces=False, minloglevel=2)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True)))


def write_bpe(folder: Path) -> None:
    """A GPT-2 style byte-level tokenizer; the last id is <|endoftext|>."""
    from tokenizers import ByteLevelBPETokenizer
    tok = ByteLevelBPETokenizer()
    tok.train_from_iterator([TEXT], vocab_size=BPE_VOCAB - 1, min_frequency=2, show_progress=False)
    tok.add_special_tokens(["<|endoftext|>"])
    tok.save_model(str(folder))
    tok.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        tokenizer_class="GPT2Tokenizer", bos_token="<|endoftext|>", eos_token="<|endoftext|>",
        unk_token="<|endoftext|>", add_prefix_space=False)))


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


def classes_of(hf: str):
    config = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(hf, hf + "Config"))
    model = getattr(transformers, {"GPT2": "GPT2LMHeadModel"}.get(hf, hf + "ForCausalLM"))
    return config, model


def make_lively(model: torch.nn.Module, name: str) -> None:
    """Weights of every kind at a size where they matter: products of unit scale, norms spread around 1,
    biases far from 0, queries and keys large enough for attention to be sharp in places."""
    g = torch.Generator().manual_seed(seed_of(name))
    gemma = "gemma" in type(model).__name__.lower()
    with torch.no_grad():
        for key, p in sorted(model.named_parameters()):
            r = torch.randn(p.shape, generator=g)
            if key.endswith("bias"):
                p.copy_(0.3 * r)
            elif p.dim() == 1:  # norm gains; Gemma stores them minus 1
                p.copy_((0.0 if gemma else 1.0) + 0.3 * r)
            elif "embed" in key or "wte" in key or "wpe" in key:
                p.copy_(0.5 * r)
            else:
                fan_in = p.shape[0] if "GPT2" in type(model).__name__ and "lm_head" not in key else p.shape[1]
                gain = 1.6 if any(s in key for s in ("q_proj", "k_proj", "query_key_value", "c_attn")) else 1.0
                if "GPTNeoFor" in type(model).__name__ and ("q_proj" in key or "k_proj" in key):
                    gain = 0.9  # scores are not divided by sqrt(head size)
                p.copy_(gain * r / fan_in**0.5)


def logits_of(hf: str, config: dict, state: dict, ids: torch.Tensor, gelu=None) -> np.ndarray:
    make_config, make_model = classes_of(hf)
    part, value = config.get("_weights", (None, 0))
    state = {k: torch.full_like(v, value) if part and part in k else v for k, v in state.items()}
    config = {k: v for k, v in config.items() if k != "_weights"}
    model = make_model._from_config(make_config(**config), attn_implementation="eager").eval().float()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("lm_head" in m for m in missing), (missing, unexpected)
    model.tie_weights()
    for module in model.modules() if gelu else []:
        if "GELU" in type(getattr(module, "act_fn", getattr(module, "act", None))).__name__:
            setattr(module, "act_fn" if hasattr(module, "act_fn") else "act", gelu)
    with torch.no_grad():
        return model(ids[None], use_cache=False).logits[0].numpy()


class GgmlGelu(torch.nn.Module):
    """GELU as ggml's CPU code has it: tanh form, argument and result rounded to f16 within (-10, 10)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, y))


def write_logits(path: Path, ids: np.ndarray, logits: np.ndarray) -> None:
    with open(path, "wb") as f:
        f.write(np.array([MAGIC, *logits.shape], dtype="<i4").tobytes())
        f.write(ids.astype("<i4").tobytes())
        f.write(logits.astype("<f4").tobytes())


def make(name: str, work: Path, out: Path, archive: Path, peer: Path | None) -> None:
    entry = MODELS[name]
    bpe = entry.get("tokenizer") == "bpe"
    vocab = BPE_VOCAB if bpe else SPM_VOCAB
    end = vocab - 1
    special = dict(bos_token_id=end, eos_token_id=end) if bpe else dict(bos_token_id=1, eos_token_id=2)
    config = dict(entry["config"], vocab_size=vocab, pad_token_id=None, **special)
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)

    make_config, make_model = classes_of(entry["hf"])
    torch.manual_seed(seed_of(name))
    model = make_model._from_config(make_config(**config), attn_implementation="eager").eval().float()
    make_lively(model, name)
    model.save_pretrained(folder)
    (write_bpe if bpe else write_spm)(folder)
    state = model.state_dict()

    rng = np.random.default_rng(seed_of(name))
    ids = np.concatenate([[end if bpe else 1], rng.integers(3, vocab - 1, N_TOKENS - 1)])
    tensor = torch.tensor(ids)
    logits = logits_of(entry["hf"], config, state, tensor)
    assert np.isfinite(logits).all() and logits.shape == (N_TOKENS, vocab)

    gguf = out / f"{name}.gguf"
    command = [HERE / "convert_hf.py", "--archive", archive, "--outtype", "f32", folder, gguf]
    command += ["--pre", "gpt-2"] if bpe else []
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True)
    write_logits(out / f"{name}.logits", ids, logits)
    if peer:
        peer.mkdir(parents=True, exist_ok=True)
        write_logits(peer / f"{name}.logits", ids, logits_of(entry["hf"], config, state, tensor, gelu=GgmlGelu()))

    print(f"{name}: {gguf.stat().st_size} bytes, rms logit {np.sqrt((logits**2).mean()):.3f}")
    for label, change, *least in entry["without"]:
        effect = np.abs(logits_of(entry["hf"], {**config, **change}, state, tensor) - logits).max()
        print(f"  {label}: moves logits by {effect:.4f}")
        assert effect > (least or [MIN_EFFECT])[0], f"{name}: {label} hardly matters ({effect})"


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--archive", type=Path, required=True, help="llama.cpp source folder")
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--work", type=Path, help="keep the Hugging Face folders here")
    ap.add_argument("--peer", type=Path, help="also write what llama.cpp should compute here")
    ap.add_argument("names", nargs="*", help="default: all")
    args = ap.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        for name in args.names or MODELS:
            make(name, args.work or Path(tmp), args.out, args.archive, args.peer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
