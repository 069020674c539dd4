#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hardening of the program and the shared library, read from their files: hardening_test.py PROGRAM LIBRARY"""
import re
import shutil
import subprocess
import sys
import unittest

PROGRAM = LIBRARY = None


def readelf(flag, file):
    return subprocess.run(["readelf", "--wide", flag, file], check=True, text=True, capture_output=True).stdout


class HardeningTest(unittest.TestCase):
    def each(self):
        for file in (PROGRAM, LIBRARY):
            with self.subTest(file=file):
                yield file

    def test_all_symbols_are_bound_at_the_start_and_then_read_only(self):
        for file in self.each():
            dynamic = readelf("--dynamic", file)
            self.assertRegex(dynamic, r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*NOW")
            self.assertIn("GNU_RELRO", readelf("--program-headers", file))

    def test_code_lies_anywhere_and_stacks_hold_none(self):
        for file in self.each():
            self.assertRegex(readelf("--file-header", file), r"Type:\s+DYN")
            stack = re.search(r"GNU_STACK.*", readelf("--program-headers", file)).group(0)
            self.assertRegex(stack, r" RW +0x")
            self.assertNotIn("TEXTREL", readelf("--dynamic", file))
        self.assertRegex(readelf("--dynamic", PROGRAM), r"\(FLAGS_1\).*PIE")

    def test_no_library_is_looked_for_elsewhere(self):
        for file in self.each():
            self.assertNotRegex(readelf("--dynamic", file), r"\((RPATH|RUNPATH)\)")

    def test_stacks_and_buffers_are_checked(self):
        for file in self.each():
            symbols = readelf("--dyn-syms", file)
            self.assertIn("__stack_chk_fail", symbols)
            self.assertRegex(symbols, r"UND __(mem|str|s?n?printf|vs?n?printf|read|f?gets|fread|realpath|snprintf|fdelt)\w*_chk")


if __name__ == "__main__":
    PROGRAM, LIBRARY = sys.argv.pop(1), sys.argv.pop(1)
    if shutil.which("readelf") is None:
        sys.exit(77)
    unittest.main(verbosity=2)
