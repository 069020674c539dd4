#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts a Hugging Face folder to GGUF with llama.cpp's own converter, plus the keys it leaves out.

The converter (convert_hf_to_gguf.py of the pinned archive) drops facts of the configuration that
llama.cpp does not use but kvspan does. They are added here under names llama.cpp already reserves:

  <arch>.attention.sliding_window          Mistral: window in tokens, the token itself included
  <arch>.attention.sliding_window_pattern  Gemma 3, only when not "every sixth layer is global":
                                           bool per layer, true = sliding
  <arch>.attention.scale                   Gemma 3, only when query_pre_attn_scalar != head_dim
  <arch>.rope.freq_base                    GPT-NeoX, when not 10000
  <arch>.hidden_activation                 GPT-2, GPT-NeoX: "gelu" (exact) or "gelu_new" (tanh form)
  <arch>.feed_forward_length               GPT-2: n_inner where the folder sets it

Usage: convert_hf.py --archive LLAMA_CPP_DIR [--pre NAME] MODEL_DIR OUTFILE --outtype TYPE
--pre NAME skips the check that identifies a byte-level pre-tokenizer by the hash of a sample text
(a toy vocabulary has no known hash) and writes NAME.
"""
import argparse
import math
import sys
from pathlib import Path

TANH_GELUS = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"}


def add_missing_keys(model) -> None:
    """Adds to `model.gguf_writer` what the converter class left out. Called once, after its own keys."""
    h, w = model.hparams, model.gguf_writer
    arch = w.arch
    if arch == "llama" and h.get("sliding_window"):
        w.add_sliding_window(int(h["sliding_window"]))
    if arch == "gemma3":
        layers = h.get("layer_types")
        period = h.get("sliding_window_pattern", h.get("_sliding_window_pattern", 6))
        n = model.block_count
        sliding = [t == "sliding_attention" for t in layers] if layers else [(i + 1) % period != 0 for i in range(n)]
        if sliding != [(i + 1) % 6 != 0 for i in range(n)]:
            w.add_array("gemma3.attention.sliding_window_pattern", sliding)
        head_dim = h.get("head_dim", 256)
        scalar = h.get("query_pre_attn_scalar", head_dim)
        if scalar != head_dim:
            w.add_float32("gemma3.attention.scale", 1.0 / math.sqrt(scalar))
    if arch == "gptneox":
        base = h.get("rotary_emb_base", h.get("rope_theta", 10000))
        if base != 10000:
            w.add_rope_freq_base(float(base))
        w.add_string("gptneox.hidden_activation", "gelu_new" if h.get("hidden_act", "gelu") in TANH_GELUS else "gelu")
    if arch == "gpt2":
        act = h.get("activation_function", "gelu_new")
        w.add_string("gpt2.hidden_activation", "gelu_new" if act in TANH_GELUS else "gelu")
        if h.get("n_inner"):
            w.add_feed_forward_length(int(h["n_inner"]))


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--archive", type=Path, required=True, help="llama.cpp source folder with convert_hf_to_gguf.py")
    ap.add_argument("--pre", help="write this pre-tokenizer name instead of identifying it")
    ap.add_argument("--outtype", default="auto", choices=["f32", "f16", "bf16", "q8_0", "auto"])
    ap.add_argument("model", type=Path)
    ap.add_argument("outfile", type=Path)
    args = ap.parse_args()

    sys.path.insert(0, str(args.archive.resolve()))
    import convert_hf_to_gguf as converter
    from conversion.base import TextModel

    if args.pre:
        TextModel.get_vocab_base_pre = lambda self, tokenizer: args.pre

    original = converter.get_model_class

    def get_model_class(name, mmproj=False):
        cls = original(name, mmproj=mmproj)
        own = cls.set_gguf_parameters

        def set_gguf_parameters(self):
            if self.gguf_writer.arch == "gpt2":  # newer folders name it n_positions only
                self.hparams.setdefault("n_ctx", self.hparams.get("n_positions", 1024))
            own(self)
            add_missing_keys(self)

        cls.set_gguf_parameters = set_gguf_parameters
        return cls

    converter.get_model_class = get_model_class
    sys.argv = ["convert_hf_to_gguf.py", str(args.model), "--outfile", str(args.outfile), "--outtype", args.outtype]
    converter.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
