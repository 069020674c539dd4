#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/results/tables.md is what scripts/make_result_tables.py writes, and what that is."""

import json
import pathlib
import re
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(TREE / "scripts"))
import make_result_tables  # noqa: E402

PERPLEXITY = {
    "task": "ppl", "model": "/models/SmolLM2-135M-Instruct.Q4_1.gguf", "weights": "f16", "ctx": 4096, "windows": 2,
    "block": 64, "arguments": ["eval", "ppl", "-f", "wiki.txt"],
    "rows": [{"recipe": "full", "ppl": 20.0},
             {"recipe": "quant", "ppl": 21.0, "dppl_pct": 5.0, "kl": 0.0123, "top1": 0.951, "bits": 5.04, "kv_ratio": 3.175,
              "kv_bytes": 2520, "kv_bytes_full": 8000},
             {"recipe": "bands", "ppl": 20.1, "dppl_pct": 0.5, "kl": 0.0034, "top1": 0.97, "bits": 2.6, "kv_ratio": 6.15,
              "kv_bytes": 1300, "kv_bytes_full": 8000, "shared_bytes": 700},
             {"recipe": "fd", "kl": None, "error": "failed"}]}
BENCH = {
    "model": "gemma3", "threads": 1, "cpu_level": "neon", "machine": {"cpu": "Some(R) Core"},
    "rows": [{"engine": "kvspan", "recipe": "full", "depth": 2048, "decode_tok_s": 50.0, "decode_spread": 0.04,
              "prefill_tok_s": 400.0, "attn_ms": 2.0, "kv_bytes": 1048576, "peak_rss_bytes": 2097152}]}


class MakeResultTables(unittest.TestCase):
    def test_the_page_is_up_to_date(self):
        page = (TREE / "docs/results/tables.md").read_text(encoding="utf-8")
        self.assertEqual(page.splitlines(), make_result_tables.page(TREE / "docs/results").splitlines(),
                         "run: scripts/make_result_tables.py > docs/results/tables.md")

    def test_result_files_name_no_folder_of_a_machine(self):
        rooted = re.compile(r'(?<![\w~.:/>-])/[\w.-]+/[\w.-]+')
        for path in sorted((TREE / "docs/results").rglob("*.json")):
            found = rooted.search(path.read_text(encoding="utf-8"))
            self.assertIsNone(found, f"{path.name}: {found and found.group()}; shorten it, as in ~/.cache/kvspan")

    def page_of(self, **documents):
        with tempfile.TemporaryDirectory(prefix="kvspan-test-") as folder:
            for name, document in documents.items():
                (pathlib.Path(folder) / f"{name}.json").write_text(json.dumps(document))
            return make_result_tables.page(pathlib.Path(folder))

    def test_perplexities_are_rows_by_bits_under_model_and_text(self):
        lines = self.page_of(ppl=PERPLEXITY).splitlines()
        self.assertIn("### smollm2, wiki.txt, windows of 4,096 tokens", lines)
        rows = [line for line in lines if line.startswith("| `")]
        self.assertEqual(rows, [
            "| `bands` | 2.60 | 6.15x | 4.00x | 20.100 (+0.50 %) | 20.000 | 0.0034 | 97.00 % | 2 | [ppl.json](ppl.json) |",
            "| `quant` | 5.04 | 3.17x | 3.17x | 21.000 (+5.00 %) | 20.000 | 0.0123 | 95.10 % | 2 | [ppl.json](ppl.json) |"])

    def test_methods_at_equal_bytes_are_rows_by_divergence(self):
        document = {**PERPLEXITY, "windows": 1, "threads": 1, "cpu_level": "neon",
                    "rows": [{**PERPLEXITY["rows"][0], "kv_bytes_full": 8000},
                             *[{**row, "by_window": {"kl": [0.002, 0.004] * 8, "count": [32] * 16}} if row["recipe"] == "bands" else row
                               for row in PERPLEXITY["rows"][1:3]]],
                    "equal_bytes": {"fitted": [{"given": given, "target_bytes": 1000, "recipe": given, "kv_bytes": 990}
                                               for given in ("quant", "bands")],
                                    "refused": [{"given": "turbo", "target_bytes": 1000, "why": "too large"}]}}
        page = self.page_of(ppl=document)
        self.assertIn("### smollm2, 4,096 tokens, 8x", page)
        self.assertIn("wiki.txt, 1 window, weights as f16, batches of 64 tokens, caches of 1,000 bytes; a processor with neon, 1 thread.", page)
        rows = [line for line in page.splitlines() if line.startswith("| `")]
        self.assertEqual(rows, ["| `bands` | 0.0034 | 0.0025 .. 0.0035 | +0.50 % | 97.00 % | 6.15x | 4.00x | `bands` | [ppl.json](ppl.json) |",
                                "| `quant` | 0.0123 |  | +5.00 % | 95.10 % | 3.17x | 3.17x | `quant` | [ppl.json](ppl.json) |"])
        self.assertIn("No setting comes near this size: `turbo`.", page)
        self.assertNotIn("## Perplexity", page)

    def test_speeds_have_their_machine(self):
        page = self.page_of(bench=BENCH)
        self.assertIn("### gemma3, Some Core, 1 thread\n", page)
        self.assertIn("| `full` | 2,048 | 50.0 | 4 % |  | 400 |  | 2.0 | 1.0 | 0.0 | 2 |\n", page)
        self.assertNotIn("## Perplexity", page)

    def test_first_tokens_and_busy_machines(self):
        machine = {"model": "smollm2", "threads": 2, "machine": {"cpu": "Some(R) Core"}}
        page = self.page_of(
            first={"command": "first_token", **machine,
                   "rows": [{"recipe": "bands", "first_start_s": 6.09, "later_start_s": 0.94, "full_start_s": 0.7, "load_before": 2.1,
                             "first_start_cpu_s": 5.0, "later_start_cpu_s": 0.6, "full_start_cpu_s": 0.5}]},
            busy={"command": "busy_decode", **machine, "busy_processes": 2,
                  "rows": [{"recipe": "full", "idle_tok_s": 120.0, "idle_fixed_tok_s": 121.0, "busy_tok_s": [60.0, 48.0],
                            "slowest_share": 0.4}]})
        self.assertIn("### smollm2, Some Core, 2 threads\n", page)
        self.assertIn("| `bands` | 6.09 | 0.94 | 0.70 | 5.00 | 0.60 | 0.50 |\n", page)
        self.assertIn("beside 2 busy processes", page)
        self.assertIn("| `full` | 120.0 | 121.0 | 48.0 | 0.40 |\n", page)

    def test_other_files_have_no_table(self):
        self.assertEqual(self.page_of(units={"recipes": []}, names=["a", "b"]), make_result_tables.HEAD)


if __name__ == "__main__":
    unittest.main()
