# SPDX-License-Identifier: Apache-2.0
"""kvspan verify --archs: one architecture of each kind, in short; `kvspan verify --archs all` is the long form."""

import json
import unittest

from program_support import ProgramTest

# One of each kind of attention: plain, windows, sinks and windows, ALiBi, chunks, M-RoPE, keys that hold the values
# (MLA), long RoPE factors, recurrent layers beside attention.
RUN = ("llama", "gemma3", "gpt-oss", "bloom", "llama4", "qwen2vl", "deepseek2", "phi3", "jamba")
REFUSED = {"deepseek32": "reads the cache beside attention", "mamba": "no FLASH_ATTN_EXT node",
           "llada": "no KV cache"}


class Architectures(ProgramTest):
    def sweep(self, names, *options):
        out = self.output_of("verify", "--archs", ",".join(names), "--tokens", "200", "-t", "1", "--json", "-", *options)
        return json.loads(out)

    def test_logits_are_nearer_to_an_f32_cache_than_those_of_an_f16_cache(self):
        found = self.sweep(RUN, "--cache", "full:store=f32")
        self.assertEqual({row["arch"] for row in found["rows"]}, set(RUN))
        self.assertEqual((found["architectures"], found["running"]), (len(RUN), len(RUN)))
        for row in found["rows"]:
            self.assertTrue(row["runs"], row)
            self.assertLess(row["max_diff"], row["max_diff_stock"], row)

    def test_what_is_not_understood_is_refused_with_the_reason(self):
        for row in self.sweep(REFUSED)["rows"]:
            self.assertFalse(row["runs"])
            self.assertIn(REFUSED[row["arch"]], row["reason"])

    def test_coded_caches_run_under_every_kind(self):
        for recipe in ("quant:bits=8", "bands:calib=online,learn=64,bits=6"):
            for row in self.sweep(RUN, "--cache", recipe)["rows"]:
                self.assertTrue(row["runs"], row)
                self.assertLess(row["max_diff"], 0.5, row)

    def test_an_unknown_name_and_a_recipe_that_needs_a_calibration_are_errors(self):
        self.assertIn("'nosuch'", self.run_program("verify", "--archs", "nosuch").stderr.decode())
        row = self.sweep(("llama",), "--cache", "full")["rows"][0]
        self.assertTrue(row["runs"])


if __name__ == "__main__":
    unittest.main()
