# SPDX-License-Identifier: Apache-2.0
"""kvspan calibrate and kvspan eval ppl: what they write, what they refuse, and Ctrl-C."""

import json
import math
import signal
import subprocess

from program_support import PROGRAM, STORIES, TREE, ProgramTest, environment

TEXT = TREE / "data/text/tinystories_head.txt"
LONG_TEXT = (TREE / "data/text/calibration.txt").read_text() * 20


class Interrupted(ProgramTest):
    def interrupt(self, *arguments):
        """Runs the program, sends Ctrl-C once it reports progress; returns (exit code, stdout)."""
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   cwd=self.folder, env=environment(self.folder))
        try:
            line = process.stderr.readline().decode()
            self.assertIn("tokens", line)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
        return process.returncode, out.decode()


class Calibrate(Interrupted):
    def test_writes_one_file_found_by_the_models_content(self):
        found = json.loads(self.output_of("calibrate", "-m", STORIES, "-t", "1", "--tokens", "1000", "--json", "-"))
        self.assertEqual((found["tokens"], found["window"], found["skip"], found["layers"]), (936, 512, 32, 5))
        folder = self.folder / "cache/kvspan/calibration"
        self.assertEqual([p.name for p in folder.iterdir()], [found["fingerprint"] + ".gguf"])
        copy = self.write("moved.gguf", STORIES.read_bytes())
        again = json.loads(self.output_of("calibrate", "-m", copy, "-t", "1", "-f", TEXT, "--tokens", "1000", "-o", "out.gguf", "--json", "-"))
        self.assertEqual(again["fingerprint"], found["fingerprint"])
        self.assertEqual((self.folder / "out.gguf").read_bytes()[:4], b"GGUF")

    def test_refuses(self):
        self.refused("calibrate", "-m", STORIES, "-t", "1", "-f", "nowhere.txt", says="nowhere.txt")
        self.refused("calibrate", "-m", STORIES, "-t", "1", "-f", self.write("short.txt", "Once"), says="tokens")
        self.refused("calibrate", "-m", STORIES, "-t", "1", "-f", self.write("bad.txt", b"a\xff"), says="bad.txt")
        self.refused("calibrate", "-m", STORIES, "-t", "1", "-o", "nowhere/out.gguf", says="nowhere")
        self.refused("calibrate", "-m", STORIES, "-t", "1", "--tokens", "5", says="--tokens")
        for neighbours in ("6", "-1", "two"):
            self.refused("calibrate", "-m", STORIES, "-t", "1", "--neighbours", neighbours,
                         says=["--neighbours", f"'{neighbours}'", "0 to 5"])

    def test_gathers_moments_with_as_many_following_layers_as_asked_for(self):
        sizes = []
        for flags, neighbours in (((), 2), (("--neighbours", "0"), 0), (("--neighbours", "1"), 1), (("--neighbours", "3"), 3)):
            found = json.loads(self.output_of("calibrate", "-m", STORIES, "-t", "1", "-f", TEXT, "--tokens", "500", "--layer-weights", "none",
                                              "-o", "out.gguf", "--json", "-", *flags))
            content = (self.folder / "out.gguf").read_bytes()
            self.assertEqual(found["neighbours"], neighbours)
            self.assertEqual(content.count(b".cross_moment."), sum(min(neighbours, 4 - layer) for layer in range(5)))
            sizes.append(len(content))
        width = 2 * 4 * 8  # keys and values of a layer
        for fewer, more, layers in ((1, 2, 4), (2, 0, 3), (0, 3, 2)):
            self.assertAlmostEqual(sizes[more] - sizes[fewer], 4 * layers * width * width, delta=1000)  # and the header's

    def test_another_number_of_neighbours_is_another_calibration(self):
        flags = ("-m", STORIES, "-t", "1", "--tokens", "1000", "--progress", "plain")
        self.output_of("calibrate", *flags, "--quick")
        done = self.run_program("calibrate", *flags, "--neighbours", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("its text is not read again", done.stderr.decode())

    def test_what_was_left_for_later_is_finished_without_reading_again(self):
        flags = ("-m", STORIES, "-t", "1", "--tokens", "1000", "--progress", "plain")
        self.output_of("calibrate", *flags, "--quick")
        done = self.run_program("calibrate", *flags)
        said = done.stderr.decode()
        self.assertEqual(done.returncode, 0, said)
        self.assertIn("its text is not read again", said)
        self.assertRegex(said, r"will take about \d+ (seconds|minutes)")
        self.assertNotIn("calibrating", said)
        self.assertIn("layer weights: measured", done.stdout.decode())
        # Now nothing is left, so that it means another calibration.
        self.assertNotIn("not read again", self.run_program("calibrate", *flags, "--quick").stderr.decode())

    def test_ctrl_c_leaves_nothing(self):
        text = self.write("long.txt", LONG_TEXT)
        code, _ = self.interrupt("calibrate", "-m", STORIES, "-t", "1", "-f", text, "--tokens", "10000000")
        self.assertEqual(code, 130)
        self.assertEqual(list((self.folder / "cache/kvspan/calibration").iterdir()), [])


class EvalPpl(Interrupted):
    def test_rows_carry_every_number_of_the_table(self):
        arguments = ("eval", "ppl", "-m", STORIES, "-t", "1", "-f", TEXT, "--ctx", "256", "--windows", "2",
                     "--cache", "full", "--cache", "full:store=f32", "--long")
        found = json.loads(self.output_of(*arguments, "--json", "-"))
        self.assertEqual([row["recipe"] for row in found["rows"]], ["full", "full:store=f32"])
        self.assertEqual((found["ctx"], found["windows"], found["cancelled"]), (256, 2, False))
        full, f32 = found["rows"]
        self.assertEqual((full["kl"], full["dppl_pct"], full["top1"], full["positions"]), (0, 0, 1, 254))
        self.assertEqual(full["kv_ratio"], full["kv_bytes_full"] / full["kv_bytes"])
        self.assertEqual(f32["bits"], 16 * f32["kv_bytes"] / f32["kv_bytes_full"])
        self.assertTrue(0 < f32["kl"] < 1e-4 and f32["kl"] < f32["kl_p99"])
        self.assertAlmostEqual(f32["dppl_pct"], 100 * (f32["ppl"] / full["ppl"] - 1), places=6)
        parts = full["by_position"]
        self.assertEqual((parts[0]["from"], parts[-1]["to"], len(parts)), (0, 256, 8))
        second = sum(math.log(p["ppl"]) * p["positions"] for p in parts[4:]) / 254
        self.assertAlmostEqual(math.exp(second), full["ppl"], places=6)
        table = self.output_of(*arguments)
        for row in found["rows"]:
            self.assertRegex(table, rf"(?m)^{row['recipe']} .* {row['ppl']:.4f} ")

    def test_blocks_are_small_unless_told_otherwise(self):
        found = json.loads(self.output_of("eval", "ppl", "-m", STORIES, "-t", "1", "-f", TEXT, "--ctx", "512", "--windows", "1",
                                          "--cache", "window:size=128", "--json", "-"))
        self.assertEqual(found["block"], 64)
        self.assertGreater(found["rows"][1]["kl"], 1e-3)
        self.assertEqual(found["rows"][1]["compressed_positions"], 255)

    def test_says_where_nothing_was_compressed(self):
        # Within sink and recent; a block in which the window does not act; a selector that keeps all.
        base = ("eval", "ppl", "-m", STORIES, "-t", "1", "-f", TEXT, "--windows", "1")
        for recipe, more in (("quant:bits=2", ("--ctx", "128")), ("window:size=256", ("--ctx", "512", "--block", "512"))):
            table = self.output_of(*base, *more, "--cache", recipe)
            self.assertRegex(table, rf"(?m)^{recipe} .* - +- +- +- +- +nothing compressed$")
            row = json.loads(self.output_of(*base, *more, "--cache", recipe, "--json", "-"))["rows"][1]
            self.assertEqual(row["compressed_positions"], 0)
            self.assertLess(row["kl"], 1e-6)
        table = self.output_of(*base, "--ctx", "256", "--cache", "quest:keep=64,skip=0")
        self.assertRegex(table, r"(?m)^quest:keep=64,skip=0 .* 0\.\d+x .* nothing compressed$")

    def test_fits_recipes_to_equal_bytes(self):
        base = ("eval", "ppl", "-m", STORIES, "-t", "1", "-f", TEXT, "--ctx", "512", "--windows", "1")
        recipes = ("--cache", "window", "--cache", "quant:sink=4", "--cache", "h2o")
        found = json.loads(self.output_of(*base, *recipes, "--at", "1.85x", "--json", "-"))
        target = round(found["rows"][0]["kv_bytes_full"] / 1.85)
        self.assertEqual({fit["target_bytes"] for fit in found["equal_bytes"]["fitted"]}, {target})
        self.assertEqual([fit["given"] for fit in found["equal_bytes"]["fitted"]], ["window", "quant:sink=4", "h2o"])
        for row, fit in zip(found["rows"][1:], found["equal_bytes"]["fitted"]):
            self.assertEqual(row["recipe"], fit["recipe"])
            self.assertAlmostEqual(row["kv_bytes"] / fit["kv_bytes"], 1.0, delta=0.002)  # how positions are listed
            self.assertTrue(0.97 * target <= row["kv_bytes"] <= target, row)
        same = json.loads(self.output_of(*base, *recipes, "--bytes", str(target), "--json", "-"))
        self.assertEqual([row["recipe"] for row in same["rows"]], [row["recipe"] for row in found["rows"]])
        both = json.loads(self.output_of(*base, "--cache", "quant", "--cache", "window", "--at", "4x", "--json", "-"))["equal_bytes"]
        self.assertEqual([[one["given"] for one in both[key]] for key in ("fitted", "refused")], [["window"], ["quant"]])
        self.refused(*base, "--at", "12x", "--cache", "quant", says=["quant", "the nearest, quant:bits=2,", "times as many"])
        self.refused(*base, "--at", "3x", "--cache", "quant:bits=3", says=["sets bits itself"])
        self.refused(*base, "--at", "3x", "--cache", "quest", says=["no key of full", "bytes"])
        self.refused(*base, "--at", "some", says=["--at: 'some'", "such as 8x"])
        self.refused(*base, "--bytes", "0", says=["--bytes: '0'", "such as 12MiB"])
        self.refused(*base, "--bytes", "1MiB", "--at", "3x", says="--at")

    def test_refuses(self):
        model = ("-m", STORIES, "-t", "1", "-f", TEXT, "--ctx", "256")
        self.refused("eval", says="ppl")
        self.refused("eval", "pl", says="'ppl'")
        self.refused("eval", "ppl", *model, "--widows", "2", says=("--widows", "--windows"))
        self.refused("eval", "ppl", *model, "--cache", "fulll", says="fulll")
        self.refused("eval", "ppl", "-m", STORIES, "-t", "1", "--ctx", "4096", says=("4096", "512"))
        self.refused("eval", "ppl", *model[:2], "-f", self.write("t", "Once upon"), "--ctx", "256", says="256")
        self.refused("eval", "ppl", *model, "--json", "nowhere/x.json", says="nowhere")

    def test_ctrl_c_prints_what_is_done(self):
        text = self.write("long.txt", LONG_TEXT)
        code, out = self.interrupt("eval", "ppl", "-m", STORIES, "-t", "1", "-f", text, "--ctx", "16", "--windows", "1000000",
                                   "--cache", "full:store=f32", "--json", "-")
        self.assertEqual(code, 130)
        found = json.loads(out)
        self.assertTrue(found["cancelled"])
        self.assertGreater(found["rows"][1]["positions"], 0)
