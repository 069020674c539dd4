# SPDX-License-Identifier: Apache-2.0
"""The report page as a browser shows it, on a wide screen and on a telephone; skipped where Chromium is not installed.

    KVSPAN_PICTURES=FOLDER also writes pictures of the first screens there.
"""

import os
import pathlib
import sys
import unittest

from program_support import TREE, ProgramTest

sys.path.insert(0, str(TREE / "tests/server/page"))
import browser  # noqa: E402

PICTURES = os.environ.get("KVSPAN_PICTURES")
HEIGHT = 900
BOTTOM = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"


@unittest.skipUnless(browser.installed(), "chromium and chromedriver are not installed")
class ReportLook(ProgramTest):
    def setUp(self):
        super().setUp()
        self.page = self.folder / "report.html"
        self.output_of("report", TREE / "docs/results/study_smollm2", "-o", self.page)

    def look(self, width, dark=False):
        shown = browser.Browser(width, HEIGHT, dark)
        self.addCleanup(shown.close)
        shown.open(self.page.as_uri())
        if PICTURES:
            shown.picture(pathlib.Path(PICTURES) / f"report_{width}_{'dark' if dark else 'light'}.png")
        return shown

    def test_the_first_screen_answers(self):
        for width in (1200, 360):
            shown = self.look(width)
            summary = shown.text("body")[0][:1000]
            for words in ("SmolLM2-135M-Instruct", "Machine", "How many bytes for how much quality?", "What holds?"):
                self.assertIn(words, summary)
            self.assertLess(shown.run(BOTTOM, "svg"), HEIGHT, f"the first chart is cut off at {width} px")

    def test_a_study_is_short_on_a_telephone(self):
        shown = self.look(360)
        self.assertLess(shown.run("return document.documentElement.scrollHeight"), 10_000)
        self.assertLessEqual(shown.run("return document.documentElement.scrollWidth"), 360, "the page scrolls sideways")

    def test_dark_screens_are_dark(self):
        shown = self.look(1200, dark=True)
        colour = shown.run("return getComputedStyle(document.body).backgroundColor")
        self.assertLess(sum(int(part) for part in colour[4:-1].split(",")), 200, colour)


if __name__ == "__main__":
    unittest.main()
