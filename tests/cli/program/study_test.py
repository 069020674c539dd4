# SPDX-License-Identifier: Apache-2.0
"""kvspan study: a whole quick study of the tiny model, stopped, continued, refused."""

import json
import math
import pathlib
import shutil
import signal
import subprocess
import tempfile

from program_support import PROGRAM, STORIES, TREE, ProgramTest, environment

TEXT = TREE / "data/text/tinystories_head.txt"
PLAIN = ("study", "-m", STORIES, "--quick", "-t", "1")
SHORT = (*PLAIN, "-f", TEXT)


class Study(ProgramTest):
    @classmethod
    def setUpClass(cls):
        """One study for all tests that only read, and the calibration that all need."""
        cls.home = pathlib.Path(tempfile.mkdtemp(prefix="kvspan-study-"))
        cls.addClassCleanup(shutil.rmtree, cls.home)
        done = subprocess.run([PROGRAM, *map(str, SHORT), "-o", "whole"], capture_output=True, timeout=300, cwd=cls.home,
                              env=environment(cls.home))
        assert done.returncode == 0, done.stderr.decode()
        cls.table = done.stdout.decode()
        cls.study = json.loads((cls.home / "whole/study.json").read_text())

    def setUp(self):
        super().setUp()
        shutil.copytree(self.home / "cache", self.folder / "cache")

    def copy(self):
        shutil.copytree(self.home / "whole", self.folder / "copy")
        return self.folder / "copy"

    def test_verdicts_come_first_and_carry_their_numbers(self):
        study = self.study
        self.assertEqual((study["format"], study["complete"], study["missing"]), ("kvspan-study", True, []))
        self.assertEqual([v["id"] for v in study["verdicts"]], ["F1", "F2", "F3", "F4"])
        for verdict in study["verdicts"]:
            self.assertIn(verdict["verdict"], ("holds", "refuted", "undecided"))
            self.assertTrue(verdict["claim"] and verdict["because"] and verdict["would_change"])
            self.assertTrue(any(number["decides"] for number in verdict["numbers"]))
        self.assertRegex(self.table, r"\AF1  (holds|refuted|undecided) ")
        self.assertEqual(self.table, (self.home / "whole/study.txt").read_text())
        self.assertEqual(study["settings"]["mode"], "quick")
        self.assertEqual(study["model"]["head_dim"], 8)

    def test_rows_agree_with_eval_ppl(self):
        row = next(r for r in self.study["rows"] if r["group"] == "length" and r["family"] == "quant")
        found = json.loads(self.output_of("eval", "ppl", "-m", STORIES, "-f", TEXT, "-c", "512", "--windows", "1", "--block", "64",
                                          "-t", "1", "--cache", row["recipe"], "--long", "--json", "-"))["rows"][1]
        for key in ("ppl", "dppl_pct", "kl", "kl_p99", "top1", "kv_bytes", "bits", "positions"):
            self.assertEqual(row[key], found[key], key)
        for mine, other in zip(row["by_position"], found["by_position"]):
            self.assertEqual(mine["kl"], other["kl"])
            self.assertLessEqual(mine["kl_low"], mine["kl"])

    def test_numbers_follow_from_what_is_beside_them(self):
        for row in self.study["rows"]:
            if "failed" in row:  # before anything was measured: no number, rather than a perfect 0
                self.assertEqual([row[key] for key in ("kl", "ppl", "dppl_pct", "top1", "bits")], [None] * 5)
                continue
            parts = row["by_window"]
            counted = [i for i, at in enumerate(parts["position"]) if at >= 256]
            weights = [parts["count"][i] for i in counted]
            self.assertEqual(sum(weights), row["positions"])
            kl = sum(parts["kl"][i] * parts["count"][i] for i in counted) / sum(weights)
            self.assertAlmostEqual(kl, row["kl"], places=9)
            nll = sum(parts["nll_diff"][i] * parts["count"][i] for i in counted) / sum(weights)
            self.assertAlmostEqual(100 * math.expm1(nll), row["dppl_pct"], places=6)
            self.assertLessEqual(row["kl_low"], row["kl"])
            self.assertLessEqual(row["kl"], row["kl_high"])
            self.assertEqual(row["bytes_at"]["kv_bytes"][-1], row["kv_bytes"])

    def test_bounds_are_never_below_the_error(self):
        samples = [s for s in self.study["samples"] if "logit_bound" in s]
        self.assertGreater(len(samples), 50)
        self.assertTrue(any("key_delta" in s for s in samples))
        below = sum((s["logit_bound"] < s["logit_error"]) + (s["output_bound"] < s["output_error"]) for s in samples)
        number = next(n for n in self.study["verdicts"][3]["numbers"] if n["unit"] == "count")
        self.assertEqual((below, number["value"]), (0, 0))

    def test_every_group_is_there_and_starts_with_full(self):
        groups = {g["name"] for g in self.study["groups"]}
        seen = set()
        for row in self.study["rows"]:
            if row["group"] not in seen:
                self.assertEqual(row["recipe"], "full")
            seen.add(row["group"])
        self.assertEqual(seen, groups)

    def test_a_unit_that_is_missing_is_measured_again_and_comes_out_the_same(self):
        folder = self.copy()
        before = json.loads((folder / "study.json").read_text())
        (folder / "units/length.json").unlink()
        done = self.run_program(*SHORT, "-o", folder)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn("6 of 7 units are done already", done.stderr.decode())
        after = json.loads((folder / "study.json").read_text())
        self.assertEqual(after["verdicts"], before["verdicts"])

    def test_bench_rows_give_lengths_by_speed(self):
        folder = self.copy()
        recipe = next(r["recipe"] for r in self.study["rows"] if r["family"] == "static")
        rows = [{"engine": "kvspan", "recipe": r, "depth": d, "decode_tok_s": s}
                for r, d, s in (("full", 100, 50), ("full", 300, 20), (recipe, 100, 40), (recipe, 300, 30))]
        (folder / "bench.json").write_text(json.dumps({"rows": rows}))
        self.output_of(*SHORT, "-o", folder)
        study = json.loads((folder / "study.json").read_text())
        found = next(b for b in study["break_even"] if b["by"] == "decode")
        # 5 ms slower at 100, 16.67 ms faster at 300.
        self.assertAlmostEqual(found["tokens"], 100 + 200 * 5 / (5 + 1000 / 20 - 1000 / 30), places=6)

    def test_another_study_in_the_folder_is_refused(self):
        folder = self.copy()
        self.refused(*SHORT, "-o", folder, "--seed", "1", says=["seed", "--restart"])
        self.refused(*PLAIN, "-o", folder, "-f", self.write("t.txt", TEXT.read_text()[:9000] + "."), says="text_sha256")
        (folder / "units/rank.json").write_text("{")
        self.refused(*SHORT, "-o", folder, says="rank.json")
        self.output_of(*SHORT, "-o", folder, "--seed", "1", "--restart")
        self.assertEqual(json.loads((folder / "study.json").read_text())["settings"]["seed"], 1)

    def test_ctrl_c_keeps_the_units_that_are_done(self):
        process = subprocess.Popen([PROGRAM, *map(str, SHORT), "-o", "stopped"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   cwd=self.folder, env=environment(self.folder))
        try:
            while "measuring" not in (line := process.stderr.readline().decode()):
                self.assertTrue(line)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 130, error)
        study = json.loads((self.folder / "stopped/study.json").read_text())
        done = {p.stem for p in (self.folder / "stopped/units").iterdir()}
        self.assertFalse(study["complete"])
        self.assertTrue(done and study["missing"] and not done & set(study["missing"]))
        self.output_of(*SHORT, "-o", "stopped")
        study = json.loads((self.folder / "stopped/study.json").read_text())
        self.assertTrue(study["complete"])
        self.assertEqual(study["verdicts"], self.study["verdicts"])

    def test_dry_run_lists_plan_and_cost(self):
        out = self.output_of(*SHORT, "--dry-run")
        self.assertRegex(out, r"\d+ recipes on 1 windows of 512 tokens: [\d,]+ tokens to read\n\Z")
        self.assertIn("\n  fd at 5 bits\n", out)
        self.assertIn("\nequal_bytes_3: 6 recipes, 3,584 tokens\n", out)

    def test_refuses(self):
        self.refused(*SHORT, says="-o")
        self.refused(*PLAIN, "-o", "x", "-f", "nowhere.txt", says="nowhere.txt")
        self.refused(*PLAIN, "-o", "x", "-f", self.write("short.txt", "Once upon"), says="tokens")
        self.refused(*SHORT, "-o", "x", "-c", "600", says="--ctx")
        self.refused(*SHORT, "-o", "x", "-c", "100", says="128")
        self.refused(*SHORT, "-o", self.write("file", "") / "below", says="file")
