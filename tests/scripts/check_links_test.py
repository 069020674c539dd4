# SPDX-License-Identifier: Apache-2.0
"""scripts/check_links.py finds links that lead nowhere, and none in a tree where all lead somewhere."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from fakes import TREE

GOOD = {
    "README.md": "[a](docs/a.md), [b](docs/a.md#two-words), [c](https://example.org/x), [d](#head)\n\n# Head\n",
    "docs/a.md": "# A\n\n## `Two` words\n\n![p](p.svg)\n\n    [code](nowhere.md)\n",
    "docs/p.svg": "<svg/>",
    "src/x.h": "// docs/a.md says more\n",
    "build/b.md": "[built](nowhere.md)",
}


class CheckLinks(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory(prefix="kvspan-test-") as folder:
            for name, text in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return subprocess.run([sys.executable, TREE / "scripts/check_links.py", folder], capture_output=True, text=True)

    def test_a_good_tree_has_no_findings(self):
        done = self.check(GOOD)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"\A\d+ links, 0 findings\n\Z")

    def test_each_fault_is_found(self):
        for name, text, says in [("README.md", "[a](docs/gone.md)", "docs/gone.md leads nowhere"),
                                 ("README.md", "[a](docs/a.md#three)", "docs/a.md#three has no such heading"),
                                 ("src/x.h", "// see docs/gone.md", "src/x.h: docs/gone.md is not there")]:
            done = self.check({**GOOD, name: text})
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(says, done.stdout)


if __name__ == "__main__":
    unittest.main()
