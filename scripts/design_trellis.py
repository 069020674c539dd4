#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Designs the tables of codec/trellis.cc and prints them as that file has them. Needs numpy; some two minutes.

    python scripts/design_trellis.py

For a code of k bits, k = 1 .. 6, the value is read from a table of 64 by an index of 6 bits: the code and, above it, the
lowest bits of the 6 - k codes before. Which levels follow which is Ungerboeck's (1982) convolutional code of that memory
in its feed-forward form: two parities of the lowest bits choose one of four subsets of 2^(k+1) levels, the other bits of
the code a level of the subset, as in trellis coded quantization (Marcellin and Fischer, 1990). From there the table is
trained as Lloyd trains a quantizer: Gaussian numbers are coded by Viterbi's algorithm, and each entry becomes the mean of
the numbers it stands for.
"""
import numpy as np

# Parity checks by memory, lowest bit the newest.
CHECKS = {0: (0b1, 0b0), 1: (0b01, 0b10), 2: (0o5, 0o2), 3: (0o13, 0o4), 4: (0o23, 0o4), 5: (0o45, 0o10)}
# Distance between neighbours of the 2^(k+1) levels to start from, for variance 1.
SPACINGS = {1: (1.0, 1.2, 1.4), 2: (0.5, 0.6, 0.7), 3: (0.25, 0.3, 0.35), 4: (0.12, 0.15, 0.18), 5: (0.07, 0.09, 0.11), 6: (0.09, 0.11, 0.13)}
LARGEST_UNITS = 126.5  # of a value in the table, which holds v for v + 1/2


def parity(bits):
    return bin(bits).count("1") & 1


def starting_levels(k):
    """Level of each index, 0 .. 2^(k+1) - 1; without memory the levels are as many as codes."""
    first, second = CHECKS[6 - k]
    levels = np.empty(64, int)
    for index in range(64):
        code, before = index & ((1 << k) - 1), index >> k
        if k == 6:
            levels[index] = code ^ 32
            continue
        bits = before << 1 | code & 1
        levels[index] = (code >> 1) * 4 + 2 * parity(bits & first) + parity(bits & second)
    return levels


def encode(numbers, k, table):
    """Index into the table of each number of [sequences, length]: the path of least squared error from state 0."""
    memory = 6 - k
    index = np.arange(64)
    to = ((index >> k) << 1 | index & 1) & ((1 << memory) - 1)
    into = np.array([np.where(to == state)[0] for state in range(1 << memory)])
    cost = np.full((len(numbers), 1 << memory), 1e9)
    cost[:, 0] = 0
    choice = np.empty((numbers.shape[1], len(numbers), 1 << memory), np.uint8)
    for t in range(numbers.shape[1]):
        paths = cost[:, into >> k] + (numbers[:, t, None, None] - table[into]) ** 2
        choice[t] = paths.argmin(2)
        cost = np.take_along_axis(paths, choice[t][:, :, None].astype(int), 2)[:, :, 0]
    state, rows, found = cost.argmin(1), np.arange(len(numbers)), np.empty(numbers.shape, int)
    for t in reversed(range(numbers.shape[1])):
        found[:, t] = into[state, choice[t, rows, state]]
        state = found[:, t] >> k
    return found


def train(k, numbers):
    levels, best = starting_levels(k), (np.inf, None)
    count = levels.max() + 1
    for spacing in SPACINGS[k]:
        table = (levels - (count - 1) / 2) * spacing
        for step in range(24):
            found = encode(numbers, k, table)
            error = np.mean((numbers - table[found]) ** 2)
            group = levels if step < 10 and k < 6 else np.arange(64)  # first equal levels together
            n = np.bincount(group[found].ravel(), minlength=64)
            mean = np.bincount(group[found].ravel(), numbers.ravel(), minlength=64) / np.maximum(n, 1)
            table = np.where(n[group] > 20, mean[group], table)
        if error < best[0]:
            best = error, table
    return best[1]


def main():
    random = np.random.default_rng(1)
    numbers, others = (random.standard_normal((192, 400)) for _ in range(2))
    tables = {k: train(k, numbers) for k in range(1, 7)}
    errors = {k: np.mean((others - tables[k][encode(others, k, tables[k])]) ** 2) for k in tables}
    # Where bits are spent best, a component's error is about the same whatever its bits: units of equal size follow.
    # Five and six bits need more range than that leaves.
    units = {k: LARGEST_UNITS / np.abs(tables[k]).max() for k in (4, 5, 6)}
    units |= {k: units[4] * np.sqrt(errors[4] / errors[k]) for k in (1, 2, 3)}
    for k, table in tables.items():
        held = np.rint(table * units[k] - 0.5).astype(int)
        error = np.mean((others - ((held + 0.5) / units[k])[encode(others, k, (held + 0.5) / units[k])]) ** 2)
        print(f"    // {k}: error {error:.5f}, {units[k]:.4f} units\n    {{{', '.join(map(str, held))}}},", flush=True)


if __name__ == "__main__":
    main()
