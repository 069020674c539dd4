#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of Llama 3 8B's shape with random Q4_0 weights, for timing what no file at hand is large enough for:

    scripts/make_random_model.py OUT.gguf --tokens-of MODEL.gguf

MODEL is one with a GPT-2 tokenizer (smollm2): its tokens are the first of the vocabulary, the rest is never written.
The same MODEL gives the same bytes. OUT takes 4.5 GB. Needs numpy and gguf (gguf-py of the pinned archive will do).
"""

import argparse
import pathlib
import sys

import gguf
import numpy

LAYERS, HIDDEN, FORWARD, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 32, 4096, 14336, 32, 8, 128256, 131072
KV_WIDTH = HIDDEN // HEADS * KV_HEADS
BLOCK, BLOCK_BYTES, ALIGNMENT = 32, 18, 32  # Q4_0: a scale in f16 and 32 numbers of 4 bits
POOL = 4000037  # random blocks, which tensors begin at different places of; prime, so that no two rows are alike
STEP = 0.0035  # of a block's numbers, from -8 to 7: weights then spread by about 1 / sqrt(HIDDEN)


def shapes():
    """Name and shape of each tensor, [rows, columns]; norms have columns alone."""
    yield "token_embd.weight", (VOCABULARY, HIDDEN)
    yield "output.weight", (VOCABULARY, HIDDEN)
    yield "output_norm.weight", (HIDDEN,)
    for i in range(LAYERS):
        for name, shape in (("attn_norm", (HIDDEN,)), ("ffn_norm", (HIDDEN,)), ("attn_q", (HIDDEN, HIDDEN)), ("attn_k", (KV_WIDTH, HIDDEN)),
                            ("attn_v", (KV_WIDTH, HIDDEN)), ("attn_output", (HIDDEN, HIDDEN)), ("ffn_gate", (FORWARD, HIDDEN)),
                            ("ffn_up", (FORWARD, HIDDEN)), ("ffn_down", (HIDDEN, FORWARD))):
            yield f"blk.{i}.{name}.weight", shape


def write_head(path, model):
    """All but the weights, whose place begins where the file ends."""
    fields = gguf.GGUFReader(model).fields

    def listed(key):
        if key not in fields:
            sys.exit(f"{model}: has no {key}; a model with a GPT-2 tokenizer is needed")
        return [fields[key].parts[i] for i in fields[key].data]
    merges = [bytes(x).decode() for x in listed("tokenizer.ggml.merges")]
    tokens = [bytes(x) for x in listed("tokenizer.ggml.tokens")]
    types = [int(x[0]) for x in listed("tokenizer.ggml.token_type")]
    spare = VOCABULARY - len(tokens)
    if spare < 0:
        sys.exit(f"{model}: has {len(tokens)} tokens; allowed: up to {VOCABULARY}")
    tokens += [f"<unused{i}>".encode() for i in range(spare)]
    types += [int(gguf.TokenType.UNUSED)] * spare
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("shape")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_rope_freq_base(500000.0)
    out.add_rope_dimension_count(HIDDEN // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(VOCABULARY)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(tokens)
    out.add_token_types(types)
    out.add_token_merges(merges)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    for name, shape in shapes():
        if len(shape) == 1:
            out.add_tensor_info(name, shape, numpy.dtype(numpy.float32), 4 * shape[0])
        else:
            row = shape[1] // BLOCK * BLOCK_BYTES
            out.add_tensor_info(name, (shape[0], row), numpy.dtype(numpy.uint8), shape[0] * row, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    out.write_header_to_file(path)
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    out.close()


def write_weights(path):
    random = numpy.random.default_rng(7)
    pool = numpy.empty((POOL, BLOCK_BYTES), numpy.uint8)
    pool[:, 2:] = random.integers(0, 256, (POOL, BLOCK_BYTES - 2), dtype=numpy.uint8)
    pool[:, :2] = (random.uniform(0.7, 1.3, POOL) * STEP).astype(numpy.float16).view(numpy.uint8).reshape(-1, 2)
    with open(path, "ab") as out:
        for _, shape in shapes():
            out.write(b"\0" * (-out.tell() % ALIGNMENT))
            if len(shape) == 1:
                out.write(numpy.ones(shape, numpy.float32).tobytes())
                continue
            left, first = shape[0] * shape[1] // BLOCK, int(random.integers(0, POOL))
            while left > 0:
                blocks = pool[first:first + left]
                out.write(blocks.tobytes())
                left, first = left - len(blocks), 0


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("out", type=pathlib.Path)
    flags.add_argument("--tokens-of", type=pathlib.Path, required=True, metavar="MODEL.gguf")
    options = flags.parse_args()
    if not options.tokens_of.is_file():
        flags.error(f"--tokens-of {options.tokens_of}: no such file")
    unfinished = options.out.with_name(options.out.name + ".part")
    try:
        write_head(unfinished, options.tokens_of)
        write_weights(unfinished)
        unfinished.rename(options.out)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
