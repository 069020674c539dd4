#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Eigenvectors of the Gram matrices of a block of tokens, all heads and layers at once, beside torch: eigen.py MODULE [--json FILE]

512 tokens of a model with 32 layers and 8 KV heads of 128, keys and values, f16. Medians, in ms; torch's times are of
one run, its SVD of a part of the blocks.
"""
import argparse, ctypes, json

import torch

LAYERS, HEADS, TOKENS, DIM = 32, 8, 512, 128


def median_ms(call, repeats):
    call()
    times = []
    for _ in range(repeats):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); call(); b.record(); torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--json")
    args = parser.parse_args()
    lib = ctypes.CDLL(args.module)
    lib.kvspan_bench_eigen_create.restype = ctypes.c_void_p
    slabs = 2 * LAYERS
    rows = (torch.randn(slabs, TOKENS, HEADS, DIM, device="cuda") * 0.97 ** torch.arange(DIM, device="cuda")).half()
    solver = ctypes.c_void_p(lib.kvspan_bench_eigen_create(slabs * HEADS, DIM))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def ours():
        assert lib.kvspan_bench_eigen_run(solver, slabs, HEADS, TOKENS, DIM, ctypes.c_void_p(rows.data_ptr()), stream) == 0

    ms = median_ms(ours, 9)
    blocks = rows.float().permute(0, 2, 1, 3).reshape(slabs * HEADS, TOKENS, DIM)
    gram = blocks.transpose(1, 2) @ blocks
    part = blocks[:64].contiguous()
    row = {"case": f"{slabs * HEADS} blocks of {TOKENS} x {DIM}", "ms": ms,
           "torch_eigh_ms": median_ms(lambda: torch.linalg.eigh(gram), 1),
           "torch_svd_ms": median_ms(lambda: torch.linalg.svd(part, full_matrices=False), 1) * len(blocks) / len(part)}
    print(row)
    if args.json:
        with open(args.json, "w") as to: json.dump(row, to, indent=1)


if __name__ == "__main__":
    main()
