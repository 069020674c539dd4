# SPDX-License-Identifier: Apache-2.0
"""kvspan inspect: what it writes, what it refuses, and Ctrl-C."""

import json
import math
import signal
import subprocess
import xml.etree.ElementTree

from program_support import PROGRAM, STORIES, TREE, ProgramTest, environment

TEXT = TREE / "data/text/tinystories_head.txt"
OTHER = TREE / "data/demo/text.txt"
SIDES = ["key_pre", "key_post", "key_anchored", "value"]
SVG = "{http://www.w3.org/2000/svg}"


class Inspect(ProgramTest):
    def inspected(self, *arguments):
        return json.loads(self.output_of("inspect", "-m", STORIES, "-t", "1", *arguments, "--json", "-"))

    def heads(self, found, side):
        return [head for layer in found["layers"] for head in layer["heads"] if head["side"] == side]

    def test_every_layer_head_and_side(self):
        found = self.inspected("-f", TEXT, "--tokens", "2048", "--anchor", "16")
        self.assertEqual((found["command"], found["sides"]), ("inspect", SIDES))
        self.assertEqual([layer["layer"] for layer in found["layers"]], [0, 1, 2, 3, 4])
        self.assertEqual([text["name"] for text in found["texts"]],
                         ["tinystories_head.txt, first half", "tinystories_head.txt, second half"])
        for side in SIDES:
            heads = self.heads(found, side)
            self.assertEqual(len(heads), 5 * 4)
            for head in heads:
                spectrum = head["spectrum"]
                self.assertEqual((len(spectrum), head["dim"], head["ranks"]), (8, 8, [1, 2, 4]))
                self.assertEqual(spectrum, sorted(spectrum, reverse=True))
                self.assertAlmostEqual(sum(spectrum) / head["energy"], 1, places=9)
                shares = [value / sum(spectrum) for value in spectrum]
                entropy = -sum(p * math.log(p) for p in shares if p > 0)
                self.assertAlmostEqual(head["entropy"], entropy, places=9)
                self.assertGreaterEqual(sum(shares[:head["rank95"]]), 0.95 - 1e-12)
                self.assertLess(sum(shares[:head["rank95"] - 1]), 0.95)
                for pair in head["pairs"]:
                    self.assertTrue(all(0 < x <= 1 + 1e-12 for x in pair["overlap"] + pair["retained"]))
                    self.assertEqual(pair["rer"], sorted(pair["rer"], reverse=True))
                self.assertEqual("sensitivity" in head, side in ("key_post", "value"))
                self.assertEqual([chunk["from"] for chunk in head["chunks"]], [0, 128, 256, 384])

    def test_rotations_keep_energy_and_joining_never_loses(self):
        found = self.inspected("-f", TEXT, "--tokens", "1024", "--anchor", "16")
        # A rotation moves no length, so the three kinds of keys hold the same energy.
        for pre, post, anchored in zip(*(self.heads(found, side) for side in SIDES[:3])):
            self.assertAlmostEqual(post["energy"] / pre["energy"], 1, places=5)
            self.assertAlmostEqual(anchored["energy"] / pre["energy"], 1, places=5)
        for layer in found["layers"]:
            for gain in layer["gains"]:
                self.assertLessEqual(gain["head_bits"], gain["layer_bits"] + 1e-9)
            for gain in layer["joint_gains"]:
                self.assertLessEqual(gain["head_bits"], gain["layer_bits"] + 1e-9)
                self.assertLessEqual(gain["layer_bits"], gain["key_value_bits"] + 1e-9)

    def test_residuals_agree_with_the_spectrum(self):
        found = self.inspected("-f", TEXT, "--tokens", "1024", "--rank", "2,8")
        for head in self.heads(found, "value"):
            self.assertEqual(head["ranks"], [2, 8])
            for part in head["residuals"]:
                self.assertTrue(0 < part["residual"][0] < 1)
                self.assertAlmostEqual(part["residual"][1], 0, places=6)

    def test_several_texts_are_compared_in_both_directions(self):
        found = self.inspected("-f", TEXT, "-f", OTHER, "-f", TEXT, "--tokens", "1024", "--layers", "2")
        self.assertEqual([text["name"] for text in found["texts"]],
                         ["tinystories_head.txt", "text.txt", "tinystories_head.txt"])
        head = self.heads(found, "value")[0]
        pairs = {(pair["a"], pair["b"]): pair for pair in head["pairs"]}
        self.assertEqual(len(pairs), 6)
        self.assertAlmostEqual(pairs[0, 2]["overlap"][1], 1, places=6)  # the same text
        self.assertAlmostEqual(pairs[0, 2]["retained"][1], 1, places=6)
        self.assertLess(pairs[0, 1]["overlap"][1], 1 - 1e-4)
        self.assertAlmostEqual(pairs[0, 1]["overlap"][1], pairs[1, 0]["overlap"][1], places=6)

    def test_centred_spectra_hold_less_energy(self):
        arguments = ("-f", TEXT, "--tokens", "1024", "--layers", "0")
        plain, centred = self.inspected(*arguments), self.inspected(*arguments, "--centred")
        for one, other in zip(self.heads(plain, "key_pre"), self.heads(centred, "key_pre")):
            self.assertGreater(one["energy"], other["energy"])
            self.assertEqual(one["gain_bits"], other["gain_bits"])

    def test_tables_and_charts(self):
        arguments = ("inspect", "-m", STORIES, "-t", "1", "-f", TEXT, "--tokens", "1024")
        text = self.output_of(*arguments, "--plots", "made/here", "--json", "out.json")
        found = json.loads((self.folder / "out.json").read_text())
        self.assertEqual(found["arguments"][:3], ["inspect", "-m", str(STORIES)])
        head = self.heads(found, "key_pre")[0]
        self.assertRegex(text, rf"(?m)^ +0 +0 +{head['rank90']}/{head['rank95']}/{head['rank99']} ")
        charts = {path.stem: path for path in (self.folder / "made/here").iterdir()}
        for name in ("rank95_value", "spectrum", "residual_key_post", "overlap_texts", "overlap_chunks", "gain_sides"):
            self.assertIn(name, charts)
        for path in charts.values():
            root = xml.etree.ElementTree.parse(path).getroot()
            self.assertEqual((root.tag, root.get("viewBox").split()[2]), (SVG + "svg", "360"))
        cells = xml.etree.ElementTree.parse(charts["rank95_value"]).getroot().iter(SVG + "rect")
        numbers = [float(cell.get("data-value")) for cell in cells if cell.get("data-value")]
        self.assertEqual(numbers, [head["rank95"] for head in self.heads(found, "value")])

    def test_refuses(self):
        model = ("inspect", "-m", STORIES)
        self.refused(*model, "-f", "nowhere.txt", says="nowhere.txt")
        self.refused(*model, "-f", self.write("short.txt", "Once"), says=("short.txt", "tokens"))
        self.refused(*model, "-f", self.write("bad.txt", b"a\xff"), says="bad.txt")
        self.refused(*model, "--layers", "0,5", says=("--layers 5", "0 to 4"))
        self.refused(*model, "--rank", "9", says=("--rank 9", "1 to 8"))
        self.refused(*model, "--tokens", "5", says="--tokens")
        self.refused(*model, "--chunk", "0", says="--chunk")
        self.refused(*model, "--json", "nowhere/x.json", says="nowhere")
        done = self.run_program(*model, "-f", TEXT, "--plots", self.write("file", "") / "x")
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn("file/x", done.stderr.decode())

    def test_ctrl_c(self):
        text = self.write("long.txt", (TREE / "data/text/calibration.txt").read_text() * 20)
        process = subprocess.Popen([PROGRAM, "inspect", "-m", STORIES, "-f", text, "--tokens", "10000000",
                                    "--json", "out.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   cwd=self.folder, env=environment(self.folder))
        try:
            self.assertIn("tokens", process.stderr.readline().decode())
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 130)
        self.assertFalse((self.folder / "out.json").exists())
