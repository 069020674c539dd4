#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GPT-Neo folder of Hugging Face as GGUF, which llama.cpp's converter does not cover.

Layout: docs/formats/gptneo_gguf.md. Needs numpy, gguf, torch and safetensors or a pytorch_model.bin; reads
tokenizer.json, else vocab.json and merges.txt, for the byte-level vocabulary. All weights are held in memory
once, in the output type.

Usage: convert_gptneo.py [--gguf-py DIR] [--outtype f32|f16|bf16|q8_0|auto] MODEL_DIR OUTFILE
"""
import argparse
import json
import re
import sys
from pathlib import Path

ACTIVATIONS = {"gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu": "gelu"}
OUTER = {
    "transformer.wte.weight": "token_embd.weight", "transformer.wpe.weight": "position_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight", "transformer.ln_f.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
}
INNER = {
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.attention.q_proj": "attn_q", "attn.attention.k_proj": "attn_k",
    "attn.attention.v_proj": "attn_v", "attn.attention.out_proj": "attn_output", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def gguf_name(name: str) -> str | None:
    """GGUF name of a tensor; None for mask buffers old folders carry. Raises KeyError on anything else."""
    if not name.startswith(("transformer.", "lm_head.")):
        name = "transformer." + name
    if name in OUTER:
        return OUTER[name]
    m = re.fullmatch(r"transformer\.h\.(\d+)\.(.+)\.(weight|bias)", name)
    if m and m[2] in INNER:
        return f"blk.{m[1]}.{INNER[m[2]]}.{m[3]}"
    if re.fullmatch(r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)", name):
        return None
    raise KeyError(name)


def tensors_of(folder: Path):
    """Yields (name, torch tensor) over all weight files, one tensor in memory at a time for safetensors."""
    files = sorted(folder.glob("model*.safetensors"))
    if files:
        from safetensors import safe_open
        for file in files:
            with safe_open(file, framework="pt") as f:
                for name in f.keys():
                    yield name, f.get_tensor(name)
        return
    import torch
    files = sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise FileNotFoundError(f"{folder}: no model*.safetensors and no pytorch_model*.bin")
    for file in files:
        yield from torch.load(file, map_location="cpu", weights_only=True, mmap=True).items()


def vocabulary_of(folder: Path, size: int):
    """(tokens, types, merges): id order; ids above the vocabulary file are unused padding."""
    import gguf
    if (folder / "tokenizer.json").is_file():
        model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocab = model["model"]["vocab"]
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
        added = {t["content"]: t["id"] for t in model.get("added_tokens", [])}
    else:
        vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        merges = [line for line in lines if line and not line.startswith("#version")]
        file = folder / "added_tokens.json"
        added = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    for token, i in {**vocab, **added}.items():
        if i >= size:
            raise ValueError(f"token {token!r} has id {i}, but vocab_size is {size}")
        special = token in added or (token.startswith("<|") and token.endswith("|>"))
        tokens[i], types[i] = token, gguf.TokenType.CONTROL if special else gguf.TokenType.NORMAL
    return tokens, types, merges


def convert(folder: Path, outfile: Path, outtype: str) -> None:
    import gguf
    import torch
    from gguf import GGMLQuantizationType as Q

    h = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    layers, hidden, vocab = h["num_layers"], h["hidden_size"], h["vocab_size"]
    kinds = [k for group, times in h["attention_types"] for _ in range(times) for k in group]
    if len(kinds) != layers or not set(kinds) <= {"global", "local"}:
        raise ValueError(f"attention_types gives {len(kinds)} layers of {sorted(set(kinds))}, expected {layers}")
    activation = h.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_function {activation!r}: only {', '.join(ACTIVATIONS)} are supported")

    w = gguf.GGUFWriter(outfile, "gptneo")
    w.add_name(folder.resolve().name)
    w.add_context_length(h["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    w.add_feed_forward_length(h.get("intermediate_size") or 4 * hidden)
    w.add_head_count(h["num_heads"])
    w.add_layer_norm_eps(h.get("layer_norm_epsilon", 1e-5))
    w.add_float32("gptneo.attention.scale", 1.0)
    w.add_sliding_window(h["window_size"])
    w.add_array("gptneo.attention.sliding_window_pattern", [k == "local" for k in kinds])
    w.add_string("gptneo.hidden_activation", ACTIVATIONS[activation])

    tokens, types, merges = vocabulary_of(folder, vocab)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(h.get("bos_token_id", 50256))
    w.add_eos_token_id(h.get("eos_token_id", 50256))
    w.add_add_bos_token(False)

    matrix = {"f32": Q.F32, "f16": Q.F16, "bf16": Q.BF16, "q8_0": Q.Q8_0}.get(outtype)
    found = []
    tied = h.get("tie_word_embeddings", True)
    for name, t in tensors_of(folder):
        new = gguf_name(name)
        if new is None or (new == "output.weight" and tied):
            continue
        if matrix is None:  # auto: 16 bits of the kind the folder has
            matrix = Q.BF16 if t.dtype == torch.bfloat16 else Q.F16
            w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if matrix == Q.BF16 else gguf.LlamaFileType.MOSTLY_F16)
        data = t.detach().float().numpy()
        kind = matrix if data.ndim == 2 and new != "position_embd.weight" else Q.F32
        if kind == Q.Q8_0 and data.shape[1] % 32 != 0:
            kind = Q.F16
        w.add_tensor(new, gguf.quants.quantize(data, kind), raw_dtype=kind)
        found.append(new)
        print(f"{name} -> {new} {list(data.shape)} {kind.name}", file=sys.stderr)
    if outtype != "auto":
        w.add_file_type({"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
                         "bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[outtype])
    expected = 4 + 13 * layers + (0 if tied else 1)  # two embeddings, last norm; 8 weights and 5 biases a layer
    if len(found) != expected:
        raise ValueError(f"{len(found)} tensors found, {expected} expected: the folder is incomplete")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--gguf-py", type=Path, help="folder of the gguf package to use instead of the installed one")
    ap.add_argument("--outtype", default="auto", choices=["f32", "f16", "bf16", "q8_0", "auto"])
    ap.add_argument("model", type=Path)
    ap.add_argument("outfile", type=Path)
    args = ap.parse_args()
    if args.gguf_py:
        sys.path.insert(0, str(args.gguf_py))
    convert(args.model, args.outfile, args.outtype)
    return 0


if __name__ == "__main__":
    sys.exit(main())
