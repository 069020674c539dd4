#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/make_quality_picture.py: every point in its place, names apart, only files that belong together."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = TREE / "scripts/make_quality_picture.py"


def document(*rows, text="a"):
    return {"ctx": 4096, "identity": {"fingerprint": "f", "text_sha256": text},
            "rows": [{"recipe": recipe, "kv_ratio": ratio, "kl": kl} for recipe, ratio, kl in rows]}


class MakeQualityPicture(unittest.TestCase):
    def draw(self, *documents, flags=()):
        with tempfile.TemporaryDirectory(prefix="kvspan-test-") as folder:
            names = []
            for i, one in enumerate(documents):
                names.append(pathlib.Path(folder) / f"{i}.json")
                names[-1].write_text(json.dumps(one))
            return subprocess.run([sys.executable, SCRIPT, *flags, *names], capture_output=True, text=True)

    def test_lower_and_further_right_is_where_it_should_be(self):
        done = self.draw(document(("full", 1.0, 0.0), ("bands:bits=3", 4.0, 0.001), ("bands:bits=1", 8.0, 0.01)),
                         document(("quant", 4.0, 0.1), ("h2o+quant", 9.0, 0.2)))
        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.etree.ElementTree.fromstring(done.stdout)
        space = "{http://www.w3.org/2000/svg}"
        points = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(space + "circle")]
        self.assertEqual(len(points), 3)  # not the reference, not a pair
        (few, exact), (many, coarse), (same, worse) = points
        self.assertEqual(few, same)
        self.assertLess(few, many)
        self.assertTrue(exact > coarse > worse)  # y grows downwards
        names = {t.text: float(t.get("y")) for t in root.iter(space + "text") if t.text in ("bands", "quant")}
        self.assertGreaterEqual(abs(names["bands"] - names["quant"]), 15)
        self.assertTrue(re.search(r"prefers-color-scheme:dark", done.stdout))

    def test_lines_that_are_asked_for(self):
        done = self.draw(document(("bands:share=kvgroup,bits=3", 4.0, 0.001), ("bands:share=kvgroup", 5.0, 0.002), ("bands:bits=1", 8.0, 0.01),
                                  ("bands:levels=0/2", 8.0, 0.3)),
                         flags=["--line", "groups:share=kvgroup", "--line", "all:bands,!levels", "--line", "none:quant"])
        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.etree.ElementTree.fromstring(done.stdout)
        space = "{http://www.w3.org/2000/svg}"
        lines = [len(line.get("points").split()) for line in root.iter(space + "polyline")]
        self.assertEqual(lines, [2, 1])
        texts = [t.text for t in root.iter(space + "text")]
        self.assertIn("groups", texts)
        self.assertNotIn("none", texts)

    def test_lines_measured_again_replace_the_older(self):
        again = document(("bands:bits=2", 5.0, 0.002))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(again, file)
            file.flush()
            done = self.draw(document(("bands:bits=3", 4.0, 0.1), ("bands:bits=1", 8.0, 0.2), ("quant", 4.0, 0.1)),
                             flags=["--instead", file.name])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, self.draw(document(("quant", 4.0, 0.1)), again).stdout)

    def test_files_of_other_texts_are_refused(self):
        done = self.draw(document(("bands", 4.0, 0.001)), document(("quant", 4.0, 0.1), text="b"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("not of one model", done.stderr)


if __name__ == "__main__":
    unittest.main()
