#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts a Hugging Face folder to GGUF with llama.cpp's own converter, plus the keys it leaves out.

The converter (convert_hf_to_gguf.py of the pinned archive) drops a few facts of the configuration that libllama reads;
without them a model is refused or computes something else. They are added here:

  gemma3.attention.sliding_window_pattern  when not "every sixth layer is global": bool per layer, true = sliding
  gptneox.rope.freq_base                   when not 10000
  gpt2.feed_forward_length                 n_inner where the folder sets it
  gpt2.context_length                      n_positions where the folder has no n_ctx, as newer ones have not

Some classes of the converter load the tokenizer with Python code of the folder, without a word. Here they do so only with
--trust-code.

Usage: convert_hf.py --archive LLAMA_CPP_DIR [--pre NAME] [--trust-code] MODEL_DIR OUTFILE --outtype TYPE
--pre NAME skips the check that identifies a byte-level pre-tokenizer by the hash of a sample text
(a toy vocabulary has no known hash) and writes NAME.
"""
import argparse
import sys
from pathlib import Path


def add_missing_keys(model) -> None:
    """Adds to `model.gguf_writer` what the converter class left out. Called once, after its own keys."""
    h, w = model.hparams, model.gguf_writer
    arch = w.arch
    if arch == "gemma3":
        layers = h.get("layer_types")
        period = h.get("sliding_window_pattern", h.get("_sliding_window_pattern")) or 6
        n = model.block_count
        sliding = [t == "sliding_attention" for t in layers] if layers else [(i + 1) % period != 0 for i in range(n)]
        if sliding != [(i + 1) % 6 != 0 for i in range(n)]:
            w.add_array("gemma3.attention.sliding_window_pattern", sliding)
    if arch == "gptneox":
        base = model.rope_parameters.get("rope_theta", 10000)
        if base != 10000:
            w.add_rope_freq_base(float(base))
    if arch == "gpt2" and h.get("n_inner"):
        w.add_feed_forward_length(int(h["n_inner"]))


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--archive", type=Path, required=True, help="llama.cpp source folder with convert_hf_to_gguf.py")
    ap.add_argument("--pre", help="write this pre-tokenizer name instead of identifying it")
    ap.add_argument("--trust-code", action="store_true", help="let Python code of the folder run")
    ap.add_argument("--outtype", default="auto", choices=["f32", "f16", "bf16", "q8_0", "auto"])
    ap.add_argument("model", type=Path)
    ap.add_argument("outfile", type=Path)
    args = ap.parse_args()

    sys.path.insert(0, str(args.archive.resolve()))
    import convert_hf_to_gguf as converter
    from conversion.base import TextModel

    if args.pre:
        TextModel.get_vocab_base_pre = lambda self, tokenizer: args.pre

    if not args.trust_code:
        from transformers import AutoTokenizer
        load = AutoTokenizer.from_pretrained
        AutoTokenizer.from_pretrained = lambda *given, **named: load(*given, **{**named, "trust_remote_code": False})

    original = converter.get_model_class

    def get_model_class(name, mmproj=False):
        cls = original(name, mmproj=mmproj)
        own = cls.set_gguf_parameters

        def set_gguf_parameters(self):
            if self.gguf_writer.arch == "gpt2":
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
