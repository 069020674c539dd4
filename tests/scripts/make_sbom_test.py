# SPDX-License-Identifier: Apache-2.0
"""scripts/make_sbom.py: valid by CycloneDX's rules that matter, and nothing that kvspan is made of is missing."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from fakes import TREE

SCRIPT = TREE / "scripts/make_sbom.py"
TYPES = {"application", "framework", "library", "container", "platform", "operating-system", "device", "firmware", "file"}


class SbomTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = subprocess.run([sys.executable, SCRIPT], check=True, text=True, capture_output=True).stdout
        cls.bom = json.loads(cls.text)
        cls.parts = {part["name"]: part for part in cls.bom["components"]}

    def all_parts(self):
        for part in [self.bom["metadata"]["component"], *self.bom["components"]]:
            yield part
            yield from part.get("components", [])

    def test_form(self):
        self.assertEqual((self.bom["bomFormat"], self.bom["specVersion"], self.bom["version"]), ("CycloneDX", "1.5", 1))
        references = [part["bom-ref"] for part in self.all_parts()]
        self.assertEqual(len(references), len(set(references)))
        for part in self.all_parts():
            self.assertIn(part["type"], TYPES)
            self.assertTrue(part["name"])
            self.assertEqual(len(part["licenses"]), 1, part["name"])
            one = part["licenses"][0]
            self.assertTrue(one.get("expression") or one["license"]["id"], part["name"])
            self.assertIn(part.get("scope", "required"), ("required", "optional", "excluded"))
            for one in part.get("hashes", []):
                self.assertEqual((one["alg"], bool(re.fullmatch("[0-9a-f]{64}", one["content"]))), ("SHA-256", True))
            if "purl" in part:
                self.assertRegex(part["purl"], r"^pkg:(deb/debian|pypi|generic)/[\w.+-]+(@[\w.%~+-]+)?$")
        for dependency in self.bom["dependencies"]:
            self.assertLessEqual({dependency["ref"], *dependency["dependsOn"]}, set(references))

    def test_the_archive_is_the_one_that_is_built(self):
        text = (TREE / "scripts/dependencies.sh").read_text()
        archive = self.parts["llama-cpp-python"]
        self.assertEqual(archive["version"], re.search(r"^version=(\S+)", text, re.M).group(1))
        self.assertEqual(archive["hashes"][0]["content"], re.search(r"^archive_sha256=(\w+)", text, re.M).group(1))

    def test_every_package_that_is_installed_is_in_it(self):
        script = f'tree="{TREE}"; source "{TREE}/scripts/setup.sh"; kvspan_needs'
        for line in subprocess.run(["bash", "-c", script], check=True, text=True, capture_output=True).stdout.splitlines():
            self.assertIn(line.split()[0], self.parts)

    def test_every_package_that_cmake_finds_is_in_it(self):
        names = {"fmt": "libfmt-dev", "GTest": "libgtest-dev", "benchmark": "libbenchmark-dev", "Eigen3": "libeigen3-dev", "CLI11": "libcli11-dev",
                 "nlohmann_json": "nlohmann-json3-dev", "OpenSSL": "libssl-dev", "Python3": "python3",
                 "Threads": "libc6", "Git": None, "CUDAToolkit": None}  # none: not needed to build the program
        files = [TREE / "CMakeLists.txt", *TREE.glob("cmake/*.cmake"), *TREE.glob("src/*/CMakeLists.txt")]
        for file in files:
            for name in re.findall(r"^\s*find_package\((\w+)", file.read_text(), re.M):
                self.assertIn(name, names, file)
                if names[name] is not None:
                    self.assertIn(names[name], self.parts)

    @unittest.skipUnless("KVSPAN_PROGRAM" in os.environ and shutil.which("dpkg"), "no program of a Debian system")
    def test_every_library_of_the_program_is_of_a_package_in_it(self):
        shown = subprocess.run(["ldd", os.environ["KVSPAN_PROGRAM"]], check=True, text=True, capture_output=True).stdout
        libraries = re.findall(r"=> (/\S+)", shown)
        self.assertTrue(libraries)
        # A package of headers stands for the library that it depends on, and for those that this needs itself.
        installed = set(self.parts)
        shown = subprocess.run(["apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
                                "--no-replaces", "--no-enhances", *(name for name, part in self.parts.items() if part["bom-ref"].startswith("deb/") and part["scope"] == "required")],
                               text=True, capture_output=True).stdout
        installed.update(line for line in shown.splitlines() if re.fullmatch(r"[\w.+-]+", line))
        for library in libraries:
            place = str(pathlib.Path(library).resolve())
            found = subprocess.run(["dpkg", "-S", place], text=True, capture_output=True)
            if found.returncode != 0:  # a /lib that is a link to /usr/lib
                found = subprocess.run(["dpkg", "-S", place.removeprefix("/usr")], text=True, capture_output=True)
            if found.returncode == 0:
                self.assertIn(found.stdout.split(":")[0], installed, library)

    def test_an_unknown_package_is_an_error(self):
        script = SCRIPT.read_text().replace('    "libfmt-dev": "MIT", ', "    ")
        shown = subprocess.run([sys.executable, "-c", script.replace("pathlib.Path(__file__).resolve().parent.parent", f"pathlib.Path({str(TREE)!r})")],
                               text=True, capture_output=True)
        self.assertEqual(shown.returncode, 2)
        self.assertIn("scripts/setup.sh needs libfmt-dev", shown.stderr)


if __name__ == "__main__":
    unittest.main()
