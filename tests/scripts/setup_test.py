# SPDX-License-Identifier: Apache-2.0
"""scripts/setup.sh: what it says and installs when something is missing."""

import os
import subprocess
import unittest

from fakes import TREE, FakeToolsTest

NEEDS = "kvspan_needs() { printf '%s\\n' 'good-dev <vector>' 'header-dev <no/such.h>' 'tool no-such-tool'; }"


class SetupTest(FakeToolsTest):
    def shell(self, body):
        script = f'set -euo pipefail; tree="{self.folder}"; source "{TREE}/scripts/setup.sh"; {body}'
        return subprocess.run(["bash", "-c", script], env=self.env, capture_output=True, text=True, timeout=60)

    def only_these_tools(self, *names):
        for name in names:
            os.symlink(subprocess.check_output(["which", name], text=True).strip(), self.bin / name)
        self.env["PATH"] = str(self.bin)

    def test_nothing_is_missing_here(self):
        self.assertEqual(self.shell("missing_packages").stdout, "")
        self.fake("apt-get", "exit 1")
        result = self.shell("ensure_packages")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.calls_of("apt-get"), [])

    def test_finds_missing_headers_and_tools(self):
        self.assertEqual(self.shell(f"{NEEDS}; missing_packages").stdout.split(), ["tool", "header-dev"])

    def test_without_a_compiler_every_library_counts_as_missing(self):
        self.only_these_tools("bash", "sed", "cat", "tr")
        missing = self.shell("missing_packages").stdout.split()
        for package in ("g++", "cmake", "ninja-build", "python3", "python3-venv", "libfmt-dev", "xz-utils"):
            self.assertIn(package, missing)

    def test_without_apt_it_names_what_to_install(self):
        self.only_these_tools("bash", "sed", "tr", "c++", "python3")
        result = self.shell(f"{NEEDS}; ensure_packages")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "kvspan: please install what Debian calls: tool header-dev\n")

    def test_without_root_and_sudo_it_names_the_command(self):
        self.only_these_tools("bash", "sed", "tr", "c++", "python3")
        self.fake("apt-get", "exit 0")
        self.fake("id", "echo 1000")
        result = self.shell(f"{NEEDS}; ensure_packages")
        self.assertEqual(result.returncode, 2)
        self.assertIn("please run as root: apt-get install tool header-dev", result.stderr)

    def test_installs_only_what_is_missing_with_sudo_where_needed(self):
        self.fake("apt-get", f'[ "$3" = update ] || ln -sf /bin/true "{self.bin}/no-such-tool"')
        self.fake("sudo", 'exec "$@"')
        self.fake("id", "echo 1000")
        result = self.shell(f"kvspan_needs() {{ echo 'tool no-such-tool'; echo 'good-dev <vector>'; }}; ensure_packages")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.calls_of("sudo")), 1)
        self.assertTrue(self.calls_of("apt-get")[0].endswith("install -y --no-install-recommends tool"))

    def test_configures_again_only_when_what_it_depends_on_has_changed(self):
        self.only_these_tools("bash", "sed", "cat", "grep", "mkdir", "tail", "touch", "dirname")
        folder, prefix = self.folder / "build/release", self.folder / "deps/prefix"
        (prefix / "bin").mkdir(parents=True)
        self.fake("cmake", f'mkdir -p "{folder}"; touch "{folder}/build.ninja"; echo "one two" >"{folder}/short_targets"')
        self.fake("ninja", 'case "$*" in *" -n "*) echo "something to do";; esac')
        build = f'dependencies="{prefix.parent}"; build release kvspan short'
        for calls, server in ((1, "OFF"), (1, "OFF"), (2, "ON"), (2, "ON")):
            if server == "ON":
                (prefix / "bin/llama-server").touch()
            result = self.shell(build)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(len(self.calls_of("cmake")), calls)
            self.assertIn(f"-DKVSPAN_SERVER={server}", self.calls_of("cmake")[-1])
        self.assertTrue(self.calls_of("ninja")[-1].endswith(f"-C {folder} one two"))

    def test_a_compiler_cache_and_a_fast_linker_are_used_where_they_are_installed(self):
        self.only_these_tools("bash", "sed", "cat", "grep", "mkdir", "tail", "touch", "dirname")
        folder = self.folder / "build/release"
        self.fake("cmake", f'mkdir -p "{folder}"; touch "{folder}/build.ninja"')
        self.fake("ninja", "echo no work to do")
        build = f'dependencies="{self.folder}"; build release kvspan'
        self.shell(build)
        self.assertNotRegex(self.calls_of("cmake")[-1], "ccache|mold")
        self.fake("ccache", "true")
        self.fake("mold", "true")
        self.shell(build)
        self.assertRegex(self.calls_of("cmake")[-1], "CXX_COMPILER_LAUNCHER=ccache.*-fuse-ld=mold")

    def test_failing_installation_shows_the_log(self):
        self.fake("apt-get", "echo 'E: broken'; exit 100")
        self.fake("id", "echo 0")
        result = self.shell(f"{NEEDS}; ensure_packages")
        self.assertEqual(result.returncode, 2)
        self.assertIn("E: broken", result.stderr)
        self.assertIn("packages.log", result.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
