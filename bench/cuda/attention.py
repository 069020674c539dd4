#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode attention of device caches beside torch's SDPA in f16: attention.py MODULE [--json FILE] [--only WORDS|WORDS] [--profile] [--kernels]

One layer, one query position of each sequence, all steps of it: queries moved, codes read, parts merged,
ends attended to; scores spread by 2 nats. Medians of replays of a graph over as many sets of sequences as do not fit the
second-level cache; the best of SDPA's backends in the same run is the baseline. --profile makes a few
calls of each case without a graph, for a profiler; --kernels adds the mean time of each kernel, waiting for the one before
included: kernels of a call begin before the last has ended.
"""
import argparse, ctypes, json, re, sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

LLAMA, GEMMA, SMOLLM2 = (8, 4, 128), (1, 4, 256), (3, 3, 64)  # KV heads, query heads of each, dimension
LONG, BATCH, MILLION = (1, 131072), (16, 32768), (1, 1 << 20)
COMMON = "quantizer=uniform,escape=0"


def bands(keys):
    return f"bands:{COMMON},{keys}"


# name, shape, group's KV heads, halvings of variance, (sequences, tokens), recipe
def cases():
    two = "share=kvgroup,heads={},levels=0/2,bits=1.5"
    mixed = "share=kvgroup,heads={},levels=0/2/4/6/8,bits=2,anchor={}"
    for where in (LONG, BATCH):
        for anchor in (256, 1024, 2048):
            yield f"two bits, groups of 2, anchor {anchor}", LLAMA, 2, 4, where, bands(two.format(2) + f",anchor={anchor}")
        yield "two bits, all 512 directions, groups of 2", LLAMA, 2, 4, where, bands("share=kvgroup,levels=2,bits=2,anchor=1024")
        for anchor in (256, 1024, 2048):
            yield f"even widths, groups of 2, anchor {anchor}", LLAMA, 2, 5, where, bands(mixed.format(2, anchor))
        yield "bits=2, all levels, groups of 2", LLAMA, 2, 5, where, bands("share=kvgroup,bits=2,anchor=1024")
        for anchor in (1024, 2048):
            yield f"Gemma, two bits, anchor {anchor}", GEMMA, 1, 4, where, bands(f"levels=0/2,bits=1.5,anchor={anchor}")
            yield f"Gemma, even widths, anchor {anchor}", GEMMA, 1, 5, where, bands(f"levels=0/2/4/6/8,bits=2,anchor={anchor}")
    yield "two bits, groups of 2, anchor 1024", LLAMA, 2, 4, MILLION, bands(two.format(2) + ",anchor=1024")
    for where in (LONG, BATCH):
        yield "two bits, groups of 4", LLAMA, 4, 4, where, bands(two.format(4))
        yield "even widths, groups of 4", LLAMA, 4, 5, where, bands(mixed.format(4, 256))
        yield "full", LLAMA, 1, 4, where, "full"
    for where in ((1, 1024), (1, 8192), (8, 8192)):
        yield "even widths, groups of 2, anchor 1024", LLAMA, 2, 5, where, bands(mixed.format(2, 1024))
        yield "Gemma, even widths, anchor 1024", GEMMA, 1, 5, where, bands("levels=0/2/4/6/8,bits=2,anchor=1024")
        yield "SmolLM2, even widths, anchor 1024", SMOLLM2, 3, 5, where, bands("levels=0/2/4/6/8,bits=2,anchor=1024")
        yield "SmolLM2, full", SMOLLM2, 1, 4, where, "full"


class Cache:
    def __init__(self, lib, shape, group, octaves, recipe, sequences, tokens, budget, together):
        self.lib, self.shape = lib, shape
        lib.kvspan_bench_create.restype = ctypes.c_void_p
        lib.kvspan_bench_error.restype = lib.kvspan_bench_widths.restype = ctypes.c_char_p
        lib.kvspan_bench_code_bytes.restype = lib.kvspan_bench_used_bytes.restype = ctypes.c_double
        self.handle = lib.kvspan_bench_create(*shape, group, ctypes.c_double(octaves), recipe.encode(), ctypes.c_int64(budget),
                                              sequences, tokens, ctypes.c_int64(together * tokens))
        if not self.handle: raise RuntimeError(lib.kvspan_bench_error().decode())
        self.handle = ctypes.c_void_p(self.handle)

    def ok(self, answer):
        if answer < 0: raise RuntimeError(self.lib.kvspan_bench_error().decode())
        return answer

    def stream(self):
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def fill(self, tokens, block=4096):
        """A sequence of random rows; returns its number and the seconds that coding took."""
        heads, _, dim = self.shape
        sequence, seconds = self.ok(self.lib.kvspan_bench_add(self.handle)), 0.0
        for first in range(0, tokens, block):
            n = min(block, tokens - first)
            rows = torch.randn(2, n, heads, dim, device="cuda").half() + 0.3
            a, b, c = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            self.ok(self.lib.kvspan_bench_append(self.handle, sequence, n, ctypes.c_void_p(rows[0].data_ptr()),
                                                 ctypes.c_void_p(rows[1].data_ptr()), self.stream()))
            a.record()
            self.ok(self.lib.kvspan_bench_settle(self.handle, sequence, self.stream()))
            b.record()
            torch.cuda.synchronize()
            seconds += a.elapsed_time(b) * 1e-3
        return sequence, seconds

    def attend(self, sequences, queries, out):
        numbers = (ctypes.c_int * len(sequences))(*sequences)
        self.ok(self.lib.kvspan_bench_attend(self.handle, numbers, len(sequences), ctypes.c_void_p(queries.data_ptr()),
                                             ctypes.c_void_p(out.data_ptr()), self.stream()))

    def close(self):
        self.lib.kvspan_bench_destroy(self.handle)


def graph_ms(calls, repeats=21):
    """Median, least and most milliseconds of one of the calls, which follow each other in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls: call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls: call()
    times = []
    for i in range(repeats + 3):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); graph.replay(); b.record(); torch.cuda.synchronize()
        if i >= 3: times.append(a.elapsed_time(b) / len(calls))
    times.sort()
    return times[len(times) // 2], times[0], times[-1]


def sdpa(shape, count, tokens):
    """Best median of the backends, in ms, and its name."""
    heads, repeats, dim = shape
    k, v = (torch.randn(count, heads, tokens, dim, device="cuda", dtype=torch.float16) for _ in range(2))
    q = torch.randn(count, heads * repeats, 1, dim, device="cuda", dtype=torch.float16)
    rows = q.view(count, heads, repeats, dim)
    best = None
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        for how, call in (("gqa", lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
                          ("rows", lambda: F.scaled_dot_product_attention(rows, k, v))):
            try:
                with sdpa_kernel(backend): ms = graph_ms([call])[0]
                if best is None or ms < best[0]: best = (ms, f"{name} {how}")
            except RuntimeError:
                torch.cuda.synchronize()
    return best


def kernel_us(calls):
    """Mean microseconds of each kernel, by name, over the calls."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(8):
            for call in calls: call()
        torch.cuda.synchronize()
    found = {}
    for event in trace.key_averages():
        name = re.search(r"(\w+_kernel)", event.key)
        name = name.group(1) if name else event.key[:40]
        found[name] = found.get(name, 0.0) + event.device_time_total / (8 * len(calls))
    return {name: round(us, 2) for name, us in sorted(found.items()) if name.endswith("_kernel")}


def run_case(lib, case, baselines, profile, kernels):
    name, shape, group, octaves, (count, tokens), recipe = case
    heads, repeats, dim = shape
    full_bytes = count * tokens * heads * dim * 4
    held = full_bytes if recipe == "full" else full_bytes // 6
    sets = 1 if profile else max(1, min(8, -(-(180 << 20) // held)))
    row_pages = 2 * heads * dim * 2 * (4096 + 512)
    budget = sets * (int(held * 1.35) + count * row_pages) + (64 << 20)
    if recipe == "full": budget = int(sets * count * (tokens + 128) * heads * dim * 4) + (64 << 20)
    cache = Cache(lib, shape, group, octaves, recipe, sets * count, tokens + 8192, budget, count)
    numbers, seconds = [], 0.0
    for _ in range(sets):
        filled = [cache.fill(tokens) for _ in range(count)]
        numbers.append([n for n, _ in filled])
        seconds += sum(s for _, s in filled)
    queries = (2 * torch.randn(count, heads * repeats, dim, device="cuda")).half()
    out = torch.empty_like(queries)
    row = {"case": name, "sequences": count, "tokens": tokens, "recipe": recipe,
           "chunk_widths": lib.kvspan_bench_widths(cache.handle).decode().strip(),
           "code_bytes_per_token": lib.kvspan_bench_code_bytes(cache.handle),
           "used_bytes": lib.kvspan_bench_used_bytes(cache.handle), "f16_bytes": full_bytes * sets,
           "f16_bytes_per_token": 4 * heads * dim}
    if profile:
        for _ in range(2): cache.attend(numbers[0], queries, out)
        torch.cuda.synchronize()
        cache.close()
        return row
    calls = [lambda s=s: cache.attend(s, queries, out) for s in numbers]
    row["ms"], row["ms_least"], row["ms_most"] = graph_ms(calls)
    if kernels: row["kernel_us"] = kernel_us(calls)
    if count > 1:  # a sequence alone is cut otherwise: the same but for rounding
        alone = torch.empty_like(out[:1])
        cache.attend(numbers[-1], queries, out)
        cache.attend(numbers[-1][:1], queries[:1], alone)
        row["alone_difference"] = ((alone.float() - out[:1].float()).norm() / out[:1].float().norm()).item()
    row["finite"] = bool(torch.isfinite(out).all())
    if recipe != "full": row["encode_tokens_per_s"] = sets * count * tokens / seconds
    cache.close()
    torch.cuda.empty_cache()
    key = (shape, count, tokens)
    if key not in baselines: baselines[key] = sdpa(*key)
    torch.cuda.empty_cache()
    row["sdpa_ms"], row["sdpa"] = baselines[key]
    row["speedup"] = row["sdpa_ms"] / row["ms"]
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--json")
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    lib, rows, baselines = ctypes.CDLL(args.module), [], {}
    for case in cases():
        name = f"{case[0]} {case[4][0]}x{case[4][1]}"
        if not any(words in name for words in args.only.split("|")): continue
        try:
            row = run_case(lib, case, baselines, args.profile, args.kernels)
        except RuntimeError as error:
            row = {"case": case[0], "sequences": case[4][0], "tokens": case[4][1], "recipe": case[5], "error": str(error).splitlines()[0]}
        rows.append(row)
        if args.json:
            with open(args.json, "w") as to: json.dump(rows, to, indent=1)
        if "speedup" in row:
            print(f"{row['case']:42s} {row['sequences']:3d} x {row['tokens']:7d}: {1e3 * row['ms']:7.1f} us ({1e3 * row['ms_least']:.1f}..{1e3 * row['ms_most']:.1f}), "
                  f"SDPA {1e3 * row['sdpa_ms']:7.1f} us ({row['sdpa']}), {row['speedup']:5.2f}x; {row['code_bytes_per_token']:.0f} B/token, widths {row['chunk_widths']}; "
                  f"{row.get('encode_tokens_per_s', 0) * 1e-6:.1f} Mtok/s coded, alone {row.get('alone_difference', 0):.1e} {row.get('kernel_us', '')}", flush=True)
        else:
            print(row, flush=True)
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
