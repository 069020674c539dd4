#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the server tests of the pinned llama.cpp archive against kvspan serve and the stock server:

    scripts/server_suite.py                                  full, quant, bands and stock; prints a table
    scripts/server_suite.py --cache full --tests completion  one recipe, one file
    scripts/server_suite.py --json docs/results/server_suite.json

The tests are those of tools/server/tests, unchanged, with the model stories260K (data/models) in place of the download that
they make; a test that needs another model is counted apart, with the model's name. They need Python packages, which are
installed once into a virtual environment in the user's cache folder. Exit 1 if a test fails with kvspan that passes
with stock, other than those of context shift, which the caches do not do.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

TREE = pathlib.Path(__file__).resolve().parent.parent
FILES = ("basic completion chat_completion ctx_shift slot_save tokenize metrics security stream template ignore_eos "
         "kv_keep_only_active sleep compat_anthropic compat_oai_responses").split()
RECIPES = ["full", "quant:bits=8", "bands:calib=online"]
PACKAGES = ["pytest~=8.3", "aiohttp", "filelock", "numpy", "openai~=2.14", "prometheus-client", "requests", "wget"]
SHIFTING = {"test_ctx_shift_enabled"}  # positions of kvspan's caches are not shifted

# Loaded by pytest (-p): the model comes from a file, and nothing is downloaded.
PLUGIN = '''
import os
import pytest

def pytest_collection_modifyitems(session, config, items):
    import utils
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    start = utils.ServerProcess.start
    def start_with_file(self, *arguments, **more):
        if self.model_hf_repo and "stories260K" in f"{self.model_hf_repo} {self.model_hf_file}":
            self.model_hf_repo = self.model_hf_file = None
            self.model_file = os.environ["SUITE_MODEL"]
        elif self.model_hf_repo or self.model_url:
            pytest.skip(f"needs {self.model_hf_repo or self.model_url}")
        elif not self.model_file:
            pytest.skip("needs models of the hub, behind a router")
        return start(self, *arguments, **more)
    utils.ServerProcess.start = start_with_file
'''


def environment(cache):
    """The Python of a virtual environment with the packages of the tests."""
    venv = cache / "server-suite-venv"
    marker = venv / "packages.txt"
    wanted = "\n".join(PACKAGES)
    if not marker.is_file() or marker.read_text() != wanted:
        print(f"installing the tests' Python packages into {venv}", file=sys.stderr)
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
                       check=True)
        marker.write_text(wanted)
    return venv / "bin/python"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def run_suite(python, tests, files, command, only):
    """The outcome of every test, by name: (passed|failed|skipped, why)."""
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        shutil.copytree(tests, work / "tools/server/tests")
        (work / "models").symlink_to(tests.parents[2] / "models")  # chat templates
        (work / "suite_plugin.py").write_text(PLUGIN)
        server = work / "server"
        server.write_text("#!/bin/sh\nexec " + " ".join(command) + ' "$@"\n')
        server.chmod(0o755)
        variables = {**os.environ, "LLAMA_SERVER_BIN_PATH": str(server), "PORT": str(free_port()), "PYTHONPATH": str(work),
                     "SUITE_MODEL": str(TREE / "data/models/stories260K.gguf"), "LLAMA_CACHE": str(work / "cache")}
        arguments = [str(python), "-m", "pytest", "-q", "-p", "suite_plugin", "-p", "no:cacheprovider", "--junitxml", str(work / "out.xml"),
                     "-m", "not slow", *[f"unit/test_{name}.py" for name in files]]
        if only:
            arguments += ["-k", only]
        with open(work / "log", "w") as log:
            subprocess.run(arguments, cwd=work / "tools/server/tests", env=variables, stdout=log, stderr=subprocess.STDOUT, check=False)
        if not (work / "out.xml").is_file():
            sys.exit((work / "log").read_text()[-4000:])
        outcomes = {}
        for case in ElementTree.parse(work / "out.xml").getroot().iter("testcase"):
            name = f"{case.get('classname').split('.')[-1]}::{case.get('name')}"
            outcome = ("passed", "")
            for child in case:
                if child.tag in ("failure", "error"):
                    outcome = ("failed", (child.get("message") or "").strip().split("\n")[0][:300])
                elif child.tag == "skipped":
                    outcome = ("skipped", (child.get("message") or "").strip())
            outcomes[name] = outcome
        return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", action="append", metavar="RECIPE", help=f"recipe to test; default: {', '.join(RECIPES)}")
    parser.add_argument("--tests", action="append", metavar="NAME", choices=FILES, help="test file, as completion; default: all")
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match, as pytest's -k")
    parser.add_argument("--no-stock", action="store_true", help="leave the stock server out")
    parser.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"), help="kvspan's program")
    parser.add_argument("--prefix", help="where llama.cpp was installed; default: as scripts/dependencies.sh says")
    parser.add_argument("--json", metavar="FILE", help="write all outcomes there")
    flags = parser.parse_args()
    flags.program = os.path.abspath(flags.program)  # tests start it from a folder of their own
    if not os.access(flags.program, os.X_OK):
        sys.exit(f"no program {flags.program}; build it with ./run --version, or name it with --program")
    prefix = flags.prefix or subprocess.run([str(TREE / "scripts/dependencies.sh"), "--path"], check=True, text=True,
                                            capture_output=True).stdout.strip() + "/prefix"
    tests = pathlib.Path(prefix).parent / "src/tools/server/tests"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kvspan"
    python = environment(cache)
    files = flags.tests or FILES
    servers = {recipe: [flags.program, "serve", "--cache", recipe, "-t", "1"] for recipe in flags.cache or RECIPES}
    if not flags.no_stock:
        servers["stock"] = [f"{prefix}/bin/llama-server", "-t", "1"]
    outcomes = {}
    for name, command in servers.items():
        print(f"testing {name}", file=sys.stderr)
        outcomes[name] = run_suite(python, tests, files, command, flags.k)

    table, bad = [], 0
    for name, cases in outcomes.items():
        failed = {test: why for test, (kind, why) in cases.items() if kind == "failed"}
        skipped = {test: why for test, (kind, why) in cases.items() if kind == "skipped"}
        table.append({"server": name, "passed": len(cases) - len(failed) - len(skipped), "failed": failed, "skipped": skipped})
        print(f"{name:24} {table[-1]['passed']:4} passed {len(failed):4} failed {len(skipped):4} need other models")
        for test, why in failed.items():
            expected = test.split("::")[1].split("[")[0] in SHIFTING or outcomes.get("stock", {}).get(test, ("",))[0] == "failed"
            bad += name != "stock" and not expected
            print(f"    {test}: {why}")
    if flags.json:
        document = {"command": "scripts/server_suite.py", "machine": platform.machine(), "model": "stories260K",
                    "files": files, "servers": table}
        pathlib.Path(flags.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
