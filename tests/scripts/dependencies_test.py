# SPDX-License-Identifier: Apache-2.0
"""scripts/dependencies.sh with stand-ins for python3 and cmake: what it leaves behind, and what not.

The archive here is a small one, and the script is a copy that expects its hash; nothing else differs.
"""

import hashlib
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
import unittest

from fakes import TREE, FakeToolsTest

SCRIPT = TREE / "scripts/dependencies.sh"


class DependenciesTest(FakeToolsTest):
    def setUp(self):
        super().setUp()
        text = SCRIPT.read_text()
        self.version = version = re.search(r"^version=(\S+)", text, re.M).group(1)
        members = re.search(r"^members=\((.*?)\)", text, re.M | re.S).group(1).split()
        self.archive = self.folder / "archive.tar.gz"
        with tarfile.open(self.archive, "w:gz") as archive:
            folders = {"include": "include/llama.h", "ggml": "ggml/include/ggml.h"}
            for member in (folders.get(member, member) for member in members):
                info = tarfile.TarInfo(f"llama_cpp_python-{version}/vendor/llama.cpp/{member}")
                info.size = len(member)
                archive.addfile(info, io.BytesIO(member.encode()))
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        (self.folder / "tree/scripts").mkdir(parents=True)
        (self.folder / "tree/cmake").mkdir()
        (self.folder / "tree/cmake/ArchiveFlags.cmake").write_text("# for the archive\n")
        self.script = self.folder / "tree/scripts/dependencies.sh"
        self.script.write_text(re.sub(r"(?m)^archive_sha256=.*", f"archive_sha256={digest}", text))
        self.script.chmod(0o755)
        self.env["XDG_CACHE_HOME"] = str(self.folder / "cache dir")
        self.root = self.folder / "cache dir/kvspan/deps"
        # python3 -m venv FOLDER makes a python whose pip hands out the archive.
        self.fake("python3", 'mkdir -p "$3/bin"; cp "$(dirname "$0")/pip" "$3/bin/python"')
        self.set_pip(f'cp "{self.archive}" "$2/llama_cpp_python-{version}.tar.gz"')
        self.set_cmake()

    def set_pip(self, body):
        self.fake("pip", f'while [ "$1" != --dest ]; do shift; done\n{body}')

    def set_cmake(self, build=""):
        # cmake -G Ninja -S SOURCE -B BUILD ..., cmake --build BUILD ... --target TARGETS
        self.fake("cmake", f'''case $1 in
            -G) mkdir -p "$6"; touch "$6/build.ninja";;
            --build) {build}
              case "$*" in *llama-server*) names="libserver-context.a llama-server test-llama-archs";; *) names=libllama.a;; esac
              for name in $names; do echo $name >"$2/$name"; done;;
            esac''')

    def run_script(self, *arguments):
        return subprocess.run([self.script, *arguments], env=self.env, capture_output=True, text=True, timeout=60)

    def complete(self):
        """What a later call would take for built."""
        return [str(path) for name in ("libllama.a", "llama-server") for path in self.root.glob(f"*/prefix/*/{name}")]

    def left(self):
        return sorted(path.name for path in self.root.iterdir())

    def builds(self):
        return sum("--build" in call for call in self.calls_of("cmake"))

    def test_builds_once_and_then_returns_at_once(self):
        path = self.run_script("--path").stdout.strip()
        self.assertFalse(self.root.exists())
        result = self.run_script()
        self.assertEqual((result.returncode, result.stdout.strip()), (0, path), result.stderr)
        for made in ("prefix/lib/libllama.a", "prefix/lib/libserver-context.a", "prefix/bin/llama-server",
                     "prefix/bin/test-llama-archs", "src/convert_hf_to_gguf.py"):
            self.assertTrue(os.path.isfile(f"{path}/{made}"), made)
        self.assertEqual(sorted(os.listdir(path)), ["prefix", "src"])
        self.assertEqual(self.left(), [".lock", "build.log", os.path.basename(path)])
        before = len(self.calls.read_text())
        for arguments in ((), ("--libraries",)):
            again = self.run_script(*arguments)
            self.assertEqual((again.returncode, again.stdout.strip(), again.stderr), (0, path, ""))
        self.assertEqual(len(self.calls.read_text()), before)

    def test_libraries_alone_are_built_without_the_server_which_comes_on_demand(self):
        path = self.run_script("--libraries").stdout.strip()
        self.assertTrue(os.path.isfile(f"{path}/prefix/lib/libllama.a"))
        self.assertFalse(os.path.exists(f"{path}/prefix/bin/llama-server"))
        self.assertEqual(self.builds(), 1)
        self.assertEqual(self.run_script().returncode, 0)
        self.assertTrue(os.path.isfile(f"{path}/prefix/bin/llama-server"))
        self.assertEqual(self.builds(), 2)
        self.assertEqual(len(self.calls_of("pip")), 1)

    def test_each_sanitizer_has_a_folder_of_its_own_and_others_are_refused(self):
        plain = self.run_script("--path").stdout
        self.env["KVSPAN_SANITIZE"] = "thread"
        self.assertNotEqual(self.run_script("--path").stdout, plain)
        self.env["KVSPAN_SANITIZE"] = "memory"
        result = self.run_script("--path")
        self.assertEqual((result.returncode, result.stderr), (2, "kvspan: KVSPAN_SANITIZE=memory; supported: thread\n"))

    def test_a_wrong_archive_is_refused(self):
        with open(self.archive, "ab") as archive:
            archive.write(b"x")
        result = self.run_script()
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "has SHA-256 .*, expected")
        self.assertEqual(self.left(), [".lock", "build.log"])

    def test_no_network_and_failing_compilers_show_the_end_of_the_log(self):
        self.set_pip("echo 'ERROR: no route' >&2; exit 1")
        result = self.run_script()
        self.assertEqual(result.returncode, 2)
        self.assertIn("ERROR: no route", result.stderr)
        self.assertRegex(result.stderr.splitlines()[-1], "failed: downloading .*; the whole log is .*build.log")
        self.assertEqual(self.left(), [".lock", "build.log"])
        self.setUp()
        self.set_cmake(build="echo 'error: no such thing'; exit 1;")
        result = self.run_script()
        self.assertEqual(result.returncode, 2)
        self.assertIn("error: no such thing", result.stderr)
        self.assertEqual(self.complete(), [])

    def test_a_missing_tool_is_named(self):
        for tool in ("bash", "sed", "head", "sha256sum", "cut", "uname", "env", "dirname", "readlink", "cat"):
            os.symlink(subprocess.check_output(["which", tool], text=True).strip(), self.bin / tool)
        self.env["PATH"] = str(self.bin)
        (self.bin / "cmake").unlink()
        (self.bin / "c++").symlink_to("/bin/true")
        result = self.run_script()
        self.assertEqual(result.returncode, 2)
        self.assertIn("'cmake' is missing", result.stderr)

    def start_and_wait_for_build(self):
        process = subprocess.Popen([self.script], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
        deadline = time.monotonic() + 30
        while not any("--build" in call for call in self.calls_of("cmake")) and time.monotonic() < deadline:
            time.sleep(0.02)
        return process

    def test_an_interrupted_build_is_resumed(self):
        for stop in (signal.SIGINT, signal.SIGKILL):
            self.set_cmake(build="sleep 60;")
            process = self.start_and_wait_for_build()
            os.killpg(process.pid, stop)
            _, errors = process.communicate(timeout=20)
            if stop == signal.SIGINT:
                self.assertEqual(process.returncode, 130, errors)
                self.assertIn("the next call resumes the build", errors)
            self.assertEqual(self.complete(), [])
            self.calls.unlink()
            self.set_cmake()
            self.assertEqual(self.run_script().returncode, 0)
            self.assertEqual(self.calls_of("pip"), [])
            self.assertFalse(any("-G" in call for call in self.calls_of("cmake")))
            shutil.rmtree(self.root)
            self.calls.unlink()

    def test_what_a_killed_download_left_is_removed_by_the_next(self):
        self.set_pip("kill -9 $PPID")
        self.assertNotEqual(self.run_script().returncode, 0)
        self.assertTrue(any(name.startswith(".unpacking-") for name in self.left()))
        self.set_pip(f'cp "{self.archive}" "$2/llama_cpp_python-{self.version}.tar.gz"')
        self.assertEqual(self.run_script().returncode, 0)
        self.assertFalse(any(name.startswith(".unpacking-") for name in self.left()))

    def test_two_calls_at_once_build_once(self):
        self.set_cmake(build="sleep 1;")
        both = [subprocess.Popen([self.script], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                for _ in range(2)]
        outputs = [process.communicate(timeout=60)[0] for process in both]
        self.assertEqual([process.returncode for process in both], [0, 0])
        self.assertEqual(outputs[0], outputs[1])
        self.assertEqual(self.builds(), 2)  # the libraries and the server


if __name__ == "__main__":
    unittest.main()
