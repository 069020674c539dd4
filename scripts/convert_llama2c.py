#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a llama2.c model (version 0 checkpoint) and its tokenizer as GGUF: architecture llama, f32.

Checkpoint, little endian: int32 dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len (vocab_size > 0:
output tied to the embedding), then f32 tensors, each for all layers: embedding, attention norm, wq, wk, wv, wo,
feed-forward norm, w1, w2, w3, last norm, two rotary tables that are skipped, and the output layer when not tied.
Tokenizer: int32 longest piece; per id f32 score, int32 length, bytes. Id 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes.

llama2.c rotates adjacent pairs, as ggml's normal rope does, so queries and keys need no permutation. Its spaces
become the SentencePiece mark U+2581 that libllama expects.

Usage: convert_llama2c.py MODEL.bin TOKENIZER.bin OUT.gguf --name NAME
"""
import argparse
import struct
import sys
from pathlib import Path

import gguf
import numpy as np


def read_tokens(path: Path, n: int):
    data, at = path.read_bytes(), 4
    pieces, scores = [], []
    for _ in range(n):
        score, size = struct.unpack_from("<fi", data, at)
        pieces.append(data[at + 8:at + 8 + size])
        scores.append(score)
        at += 8 + size
    if at != len(data):
        raise ValueError(f"{path}: {len(data) - at} bytes left after {n} pieces")
    return pieces, scores


def add_vocabulary(w: gguf.GGUFWriter, path: Path, n: int) -> None:
    pieces, scores = read_tokens(path, n)
    types = [gguf.TokenType.NORMAL] * n
    for i in range(n):
        if i == 0:
            pieces[i], types[i] = b"<unk>", gguf.TokenType.UNKNOWN
        elif i < 3:
            pieces[i], types[i] = (b"<s>", b"</s>")[i - 1], gguf.TokenType.CONTROL
        elif i < 259:
            pieces[i], types[i] = b"<0x%02X>" % (i - 3), gguf.TokenType.BYTE
        else:
            pieces[i] = pieces[i].replace(b" ", "\u2581".encode())
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(pieces)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(True)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", type=Path)
    ap.add_argument("tokenizer", type=Path)
    ap.add_argument("outfile", type=Path)
    ap.add_argument("--name", required=True)
    args = ap.parse_args()

    raw = args.model.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, seq = struct.unpack_from("<7i", raw)
    tied, vocab = vocab > 0, abs(vocab)
    head = dim // heads
    kv = head * kv_heads
    shapes = [("token_embd", (vocab, dim)), ("attn_norm", (layers, dim)), ("attn_q", (layers, dim, dim)),
              ("attn_k", (layers, kv, dim)), ("attn_v", (layers, kv, dim)), ("attn_output", (layers, dim, dim)),
              ("ffn_norm", (layers, dim)), ("ffn_gate", (layers, hidden, dim)), ("ffn_down", (layers, dim, hidden)),
              ("ffn_up", (layers, hidden, dim)), ("output_norm", (dim,)), ("skipped", (2, seq, head // 2))]
    shapes += [] if tied else [("output", (vocab, dim))]
    want = 28 + 4 * sum(int(np.prod(s)) for _, s in shapes)
    if want != len(raw):
        raise ValueError(f"{args.model}: {len(raw)} bytes, its header asks for {want}")

    w = gguf.GGUFWriter(args.outfile, "llama")
    w.add_name(args.name)
    w.add_license("mit")
    w.add_context_length(seq)
    w.add_embedding_length(dim)
    w.add_block_count(layers)
    w.add_feed_forward_length(hidden)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(head)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(vocab)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_vocabulary(w, args.tokenizer, vocab)

    at = 28
    for name, shape in shapes:
        n = int(np.prod(shape))
        t = np.frombuffer(raw, dtype="<f4", count=n, offset=at).reshape(shape)
        at += 4 * n
        if name in ("token_embd", "output_norm", "output"):
            w.add_tensor(f"{name}.weight", t)
        elif name != "skipped":
            for i in range(layers):
                w.add_tensor(f"blk.{i}.{name}.weight", t[i])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
