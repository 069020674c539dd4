#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what coding errors of each KV head cost, where they are: with all layers coded.

    kvspan tokenize -m smollm2 --no-bos -q -f data/text/calibration.txt > ids.txt
    scripts/measure_head_weights.py MODEL.gguf --weights data/calibration/layer_weights.json --tokens ids.txt > heads.json

Prints `key_head_factors` and `value_head_factors` of data/calibration/layer_weights.json: by how much more than the weights
of its layer say a head's errors cost. For models of the llama architecture. Needs torch, numpy and gguf, and is slow without a
GPU.

Every layer is coded as bands codes it (directions by the metric, bits by one slope), its quantizer replaced by a channel
that adds Gaussian noise of the trellis' distortion. With k^ = k + (1 + s) e for each head, half the derivative of the KL
divergence by s, at s = 0, is the head's part of it; over what the metric predicts, that is the head's factor. Codes change
with the factors, so it is measured again with the new ones, some rounds.
"""

import argparse
import json
import math
import pathlib
import sys

import gguf
import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SINK, RECENT, SKIP = 32, 128, 32  # tokens that stay exact, and that moments leave out
# Of a Gaussian of variance 1, by bits: src/codec/bands/trellis.cc.
DISTORTION = {0: 1.0, 1: 0.29556, 2: 0.08041, 3: 0.02167, 4: 0.00593, 5: 0.00203, 6: 0.00075, 8: 0.00008}
FULL_BITS = 16  # of a number that stays exact
GAIN_BITS = 8
LEAST_SHARE = 0.05  # of the mean: a head that seems to cost less is taken to cost that
STEPS = (0.8, 0.6, 0.6)  # powers of the measured factors, by round: they depend on each other


class Model:
    """The llama architecture with tied or own output weights, in f32."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = {name: value.contents() for name, value in reader.fields.items() if not name.startswith("tokenizer.")}
        if field["general.architecture"] != "llama":
            sys.exit(f"{path}: architecture {field['general.architecture']}; allowed: llama")
        self.layers = field["llama.block_count"]
        self.query_heads = field["llama.attention.head_count"]
        self.heads = field["llama.attention.head_count_kv"]
        self.dim = field["llama.embedding_length"] // self.query_heads
        self.epsilon = field["llama.attention.layer_norm_rms_epsilon"]
        even = torch.arange(0, self.dim, 2, dtype=torch.float64, device=DEVICE)
        self.angles = field.get("llama.rope.freq_base", 10000.0) ** (-even / self.dim)
        self.weights = {
            t.name: torch.tensor(gguf.dequantize(t.data, t.tensor_type), dtype=torch.float32, device=DEVICE)
            for t in reader.tensors
        }
        self.embedding = self.weights["token_embd.weight"]
        self.output = self.weights.get("output.weight", self.embedding)

    def turn(self, x, positions):
        """x [..., tokens, dim] by RoPE."""
        angle = positions.double()[:, None] * self.angles
        c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)

    def norm(self, x, name):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weights[name]

    def logits(self, ids, coded=None, observe=None):
        """Log probabilities. coded(layer, k0, v, t) -> what is read of old tokens, [heads, tokens, dim] each, keys before
        RoPE; observe(layer, x, q, k0, v) sees what passes."""
        t = torch.arange(len(ids), device=DEVICE)
        age = t[:, None] - t[None]
        exact = (age < RECENT) | (t[None] < SINK)
        x = self.embedding[torch.as_tensor(ids, device=DEVICE)]

        def layer(x, l):
            p, w = f"blk.{l}.", self.weights
            h = self.norm(x, p + "attn_norm.weight")
            q, k0, v = ((h @ w[f"{p}attn_{n}.weight"].T).view(len(ids), -1, self.dim).transpose(0, 1) for n in "qkv")
            q = self.turn(q, t)
            if observe:
                observe(l, x, q, k0, v)
            q = q.unflatten(0, (self.heads, -1))
            k = self.turn(k0, t)
            scores, seen = q @ k[:, None].transpose(-1, -2), v
            if coded:
                back, seen = coded(l, k0, v, t)
                scores = torch.where(exact, scores, q @ self.turn(back, t)[:, None].transpose(-1, -2))
            weight = torch.softmax((scores / math.sqrt(self.dim)).masked_fill(age < 0, -1e30), -1)
            out = (weight * exact) @ v[:, None] + (weight * ~exact) @ seen[:, None]
            x = x + out.flatten(0, 1).transpose(0, 1).reshape(len(ids), -1) @ w[p + "attn_output.weight"].T
            h = self.norm(x, p + "ffn_norm.weight")
            gate = torch.nn.functional.silu(h @ w[p + "ffn_gate.weight"].T)
            return x + (gate * (h @ w[p + "ffn_up.weight"].T)) @ w[p + "ffn_down.weight"].T

        for l in range(self.layers):
            x = checkpoint(layer, x, l, use_reentrant=False)
        return torch.log_softmax(self.norm(x, "output_norm.weight") @ self.output.T, -1)


class Moments:
    """Means, covariances of z = [anchored keys ; values] and metrics of all layers."""

    def __init__(self, model, windows, anchor):
        self.model, self.anchor = model, anchor
        shape = (model.layers, model.heads, model.dim)
        key, value, energy = (torch.zeros(shape, dtype=torch.float64, device=DEVICE) for _ in range(3))
        stream = torch.zeros(model.layers, dtype=torch.float64, device=DEVICE)
        count, rows = 0, []
        for window in windows:
            kept = []

            def observe(l, x, q, k0, v):
                kept.append((k0[:, SKIP:], v[:, SKIP:]))
                key[l] += k0[:, SKIP:].double().sum(1)
                value[l] += v[:, SKIP:].double().sum(1)
                energy[l] += q[:, SKIP:].double().unflatten(0, (model.heads, -1)).square().mean(1).sum(1)
                stream[l] += x[SKIP:].double().square().sum()

            with torch.no_grad():
                model.logits(window, observe=observe)
            rows.append((kept, torch.arange(SKIP, len(window), device=DEVICE)))
            count += len(window) - SKIP
        self.key_mean, self.value_mean = (key / count).float(), (value / count).float()
        self.second = []
        for l in range(model.layers):
            second = 0.0
            for kept, t in rows:
                for shift in range(0, anchor, anchor // 4):  # tokens meet more offsets of a block than their own
                    z = self.join(l, *kept[l], t + shift).double()
                    second = second + z.T @ z / (4 * count)
            self.second.append(second)
        pairs = (energy / count).unflatten(-1, (-1, 2)).mean(-1).repeat_interleave(2, -1)
        self.key_metric = [ridged(torch.diag(pairs[l].flatten())) / model.dim for l in range(model.layers)]
        self.value_metric = []
        for l in range(model.layers):
            w = model.weights[f"blk.{l}.attn_output.weight"].double().unflatten(1, (model.heads, -1, model.dim))
            blocks = torch.einsum("okgi,okgj->kij", w, w) / (w.shape[2] * stream[l] / count)
            self.value_metric.append(ridged(torch.block_diag(*blocks)))

    def offsets(self, t):
        return t % self.anchor - self.anchor // 2

    def join(self, l, k0, v, t):
        keys = self.model.turn(k0 - self.key_mean[l][:, None], self.offsets(t))
        values = v - self.value_mean[l][:, None]
        return torch.cat([keys.transpose(0, 1).flatten(1), values.transpose(0, 1).flatten(1)], -1)

    def part(self, l, z, t):
        heads = (self.model.heads, self.model.dim)
        keys, values = (x.unflatten(-1, heads).transpose(0, 1) for x in z.chunk(2, -1))
        keys = self.model.turn(keys, -self.offsets(t)) + self.key_mean[l][:, None]
        return keys, values + self.value_mean[l][:, None]


def ridged(metric):
    return metric + 1e-3 * metric.diagonal().mean() * torch.eye(len(metric), dtype=metric.dtype, device=DEVICE)


def choose_bits(power, slope):
    levels = torch.tensor(list(DISTORTION), dtype=power.dtype, device=DEVICE)
    error = torch.tensor(list(DISTORTION.values()), dtype=power.dtype, device=DEVICE)
    return levels[(power[:, None] * error + slope * levels).argmin(-1)]


class Codes:
    """Directions and bits of every layer, and the errors that its code would make."""

    def __init__(self, moments, metrics, bits, seed):
        self.layers, self.generator = [], torch.Generator(device=DEVICE).manual_seed(seed)
        for second, metric in zip(moments.second, metrics):
            values, vectors = torch.linalg.eigh(metric)
            root, inverse = ((vectors * values**e) @ vectors.T for e in (0.5, -0.5))
            power, turned = torch.linalg.eigh(root @ second @ root)
            power = power.flip(0).clamp_min(1e-30)
            self.layers.append([(turned.flip(1).T @ root).float(), (inverse @ turned.flip(1)).float(), power])
        every = torch.cat([power for _, _, power in self.layers])
        low, high = -60.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            spent = choose_bits(every, math.exp(middle)).mean() + GAIN_BITS * len(self.layers) / len(every)
            low, high = (middle, high) if spent > bits else (low, middle)
        self.slope = math.exp(high)
        for layer in self.layers:
            chosen = choose_bits(layer[2], self.slope)
            left = torch.tensor([DISTORTION[int(b)] for b in chosen.tolist()], device=DEVICE)
            layer += [chosen > 0, left]

    def error(self, l, z):
        analysis, synthesis, power, kept, left = self.layers[l]
        spread = power.sqrt().float()
        c = z @ analysis.T
        gain = torch.log2((c[:, kept] / spread[kept]).square().mean(-1, keepdim=True).sqrt() + 1e-4)
        noise = torch.randn(c.shape, generator=self.generator, device=DEVICE)
        off = 2 ** ((8 * gain).round() / 8) * spread * (left * (1 - left)).sqrt() * noise - left * c
        stays = off.square().sum(-1, keepdim=True) > self.slope * FULL_BITS * z.shape[1]
        return torch.where(stays, 0.0, off @ synthesis.T)


def head_parts(model, moments, codes, metrics, windows):
    """KL divergence, and by layer, side and head: its part of it, and what the metric predicts."""
    width = model.heads * model.dim
    scales = torch.zeros(model.layers, 2 * width, device=DEVICE, requires_grad=True)
    predicted = torch.zeros(model.layers, 2 * width, dtype=torch.float64, device=DEVICE)
    divergence, counted = 0.0, 0
    for window in windows:
        with torch.no_grad():
            full = model.logits(window)
        errors = {}

        def coded(l, k0, v, t):
            z = moments.join(l, k0, v, t)
            if l not in errors:  # the same when the layer is computed again for its gradient
                with torch.no_grad():
                    errors[l] = codes.error(l, z)
                    e = errors[l][SINK:].double()
                    predicted[l] += ((e @ metrics[l]) * e).sum(0)
            return moments.part(l, z + (1 + scales[l]) * errors[l], t)

        kl = (full.exp() * (full - model.logits(window, coded))).sum(-1).mean()
        kl.backward()
        divergence += kl.item() / len(windows)
        counted += len(window) - SINK
    by_head = lambda x: x.unflatten(-1, (2, model.heads, model.dim)).sum(-1)
    return divergence, by_head(scales.grad.double()) / (2 * len(windows)), by_head(predicted) / counted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="GGUF file")
    parser.add_argument("--weights", type=pathlib.Path, required=True, help="layer_weights.json")
    parser.add_argument("--name", help="of the model in that file; default: the first")
    parser.add_argument("--tokens", type=pathlib.Path, required=True, help="token ids, separated by blanks")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--bits", type=float, default=1.36, help="a number, at which errors are made")
    parser.add_argument("--anchor", type=int, default=64)
    args = parser.parse_args()
    known = [m for m in json.loads(args.weights.read_text())["models"] if args.name in (None, m["name"])]
    if not known:
        sys.exit(f"{args.weights}: no model {args.name!r}")
    ids = np.array(args.tokens.read_text().split(), np.int64)
    windows = [ids[i : i + args.window] for i in range(0, args.windows * args.window, args.window)]
    windows = [w for w in windows if len(w) == args.window]
    if not windows:
        sys.exit(f"{args.tokens}: {len(ids)} tokens; allowed: {args.window} or more")
    model = Model(args.model)
    moments = Moments(model, windows, args.anchor)
    factors = torch.ones(model.layers, 2, model.heads, dtype=torch.float64, device=DEVICE)
    for number, step in enumerate(STEPS):
        metrics = []
        for l in range(model.layers):
            scale = factors[l].flatten().sqrt().repeat_interleave(model.dim)
            sides = known[0]["key_weights"][l] * moments.key_metric[l], known[0]["value_weights"][l] * moments.value_metric[l]
            metrics.append(scale[:, None] * torch.block_diag(*sides) * scale)
        codes = Codes(moments, metrics, args.bits, number)
        divergence, part, predicted = head_parts(model, moments, codes, metrics, windows)
        mean = part.sum() / predicted.sum()
        found = part.clamp_min(LEAST_SHARE * mean * predicted) / predicted / mean
        print(f"round {number + 1}: KL {divergence:.5f}, factors differ by e^{found.log().std().item():.2f}", file=sys.stderr)
        factors *= found**step
    rounded = [float(f"{x:.4g}") for x in factors.transpose(0, 1).flatten().tolist()]
    half = len(rounded) // 2
    print(json.dumps({"key_head_factors": rounded[:half], "value_head_factors": rounded[half:]}))


if __name__ == "__main__":
    main()
