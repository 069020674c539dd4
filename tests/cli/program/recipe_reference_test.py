# SPDX-License-Identifier: Apache-2.0
"""docs/reference/recipes.md is what scripts/make_recipe_reference.py writes for this program."""

import subprocess
import sys

from program_support import TREE, ProgramTest

SCRIPT = TREE / "scripts/make_recipe_reference.py"
PAGE = TREE / "docs/reference/recipes.md"


class RecipeReference(ProgramTest):
    def test_the_page_is_up_to_date(self):
        methods = self.output_of("methods", "--json", "-")
        done = subprocess.run([sys.executable, SCRIPT], input=methods.encode(), capture_output=True, check=True)
        self.assertEqual(PAGE.read_text(encoding="utf-8").splitlines(), done.stdout.decode().splitlines(),
                         f"run: kvspan methods --json - | {SCRIPT.relative_to(TREE)} > {PAGE.relative_to(TREE)}")
