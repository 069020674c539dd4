#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kvspan is made of, as a CycloneDX 1.5 document: make_sbom.py [--archive SOURCES] > sbom.json

The pinned archive with its hash and what it carries, the Debian packages that the program links and that building and testing
need with the versions installed here, and the licence of each. Read from scripts/dependencies.sh, scripts/setup.sh and the
root CMakeLists.txt, so that it has what these have. --archive: the unpacked sources of the archive; default: where
scripts/dependencies.sh puts them.
The same tree and packages give the same bytes. Exit 2: something is used that this script does not know.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent

# What the archive carries in vendor/ beside llama.cpp and ggml themselves: the licence of each folder.
VENDORED = {"cpp-httplib": "MIT", "hash": "BSD-2-Clause AND MIT AND LicenseRef-public-domain", "miniaudio": "MIT-0", "nlohmann": "MIT",
            "sheredom": "Unlicense", "stb": "MIT"}
# Libraries of the system that the program is linked with or compiled from: Debian's name and licence.
LINKED = {
    "libfmt-dev": "MIT", "libcli11-dev": "BSD-3-Clause", "nlohmann-json3-dev": "MIT", "libedit-dev": "BSD-3-Clause",
    "libhiredis-dev": "BSD-3-Clause", "libssl-dev": "Apache-2.0",
}
# What building, testing or fetching models needs, and no part of the program is.
TOOLS = {
    "g++": "GPL-3.0-or-later WITH GCC-exception-3.1", "cmake": "BSD-3-Clause", "ninja-build": "Apache-2.0",
    "python3": "PSF-2.0", "python3-venv": "PSF-2.0", "xz-utils": "0BSD", "redis-server": "BSD-3-Clause",
    "libeigen3-dev": "MPL-2.0", "pkgconf": "ISC", "libgtest-dev": "BSD-3-Clause", "libbenchmark-dev": "Apache-2.0",
}
# Libraries that every program of the system has.
SYSTEM = {"libc6": "LGPL-2.1-or-later", "libstdc++6": "GPL-3.0-or-later WITH GCC-exception-3.1",
          "libgcc-s1": "GPL-3.0-or-later WITH GCC-exception-3.1"}


def found(pattern, name):
    """What the pattern's group is in a file of the tree."""
    match = re.search(pattern, (TREE / name).read_text(), re.MULTILINE | re.DOTALL)
    if match is None:
        sys.exit(f"make_sbom.py: {name} has no line like {pattern}")
    return match.group(1)


def needed_packages():
    """The packages of scripts/setup.sh: kvspan_needs, and venv, which it asks for apart."""
    listed = found(r"^kvspan_needs\(\) \{\n  cat <<'LIST'\n(.*?)^LIST$", "scripts/setup.sh")
    return [line.split()[0] for line in listed.splitlines()] + ["python3-venv"]


def licence(text):
    return [{"expression": text}] if " " in text else [{"license": {"id": text}}]


def version_of(package):
    if shutil.which("dpkg-query") is None:
        return None
    shown = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", package], text=True, capture_output=True)
    status, _, version = shown.stdout.partition(" ")
    return version if status == "installed" else None


def debian(package, text, scope):
    version = version_of(package)
    component = {"type": "library" if scope == "required" else "application", "bom-ref": f"deb/{package}", "name": package,
                 "scope": scope, "licenses": licence(text), "purl": f"pkg:deb/debian/{package}"}
    if version is not None:
        component["version"] = version
        component["purl"] += "@" + version.replace("+", "%2B").replace(":", "%3A")
    return component


def components(sources):
    archive, sha256 = found(r"^version=(\S+)$", "scripts/dependencies.sh"), found(r"^archive_sha256=(\w+)$", "scripts/dependencies.sh")
    yield {"type": "library", "bom-ref": "llama-cpp-python", "name": "llama-cpp-python", "version": archive, "scope": "required",
           "description": "source archive of which vendor/llama.cpp is unpacked: ggml, libllama, common, server",
           "hashes": [{"alg": "SHA-256", "content": sha256}], "licenses": licence("MIT"),
           "purl": f"pkg:pypi/llama-cpp-python@{archive}",
           "components": [{"type": "library", "bom-ref": f"llama-cpp-python/{name}", "name": name, "licenses": licence(text)}
                          for name, text in {"llama.cpp": "MIT", "ggml": "MIT", **VENDORED}.items()]}
    if sources is not None:
        there = {path.name for path in (sources / "vendor").iterdir() if path.is_dir()}
        if there != set(VENDORED):
            sys.exit(f"make_sbom.py: the archive's vendor/ has {sorted(there)}, known are {sorted(VENDORED)}")
    for package in needed_packages():
        if package not in LINKED and package not in TOOLS:
            print(f"make_sbom.py: scripts/setup.sh needs {package}, whose licence this script does not know", file=sys.stderr)
            sys.exit(2)
        yield debian(package, LINKED.get(package) or TOOLS[package], "required" if package in LINKED else "excluded")
    for package, text in SYSTEM.items():
        yield debian(package, text, "required")


def document(sources):
    version = found(r"^project\(kvspan VERSION (\S+)", "CMakeLists.txt")
    parts = list(components(sources))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "kvspan", "name": "kvspan", "version": version,
                                   "licenses": licence("Apache-2.0"), "purl": f"pkg:generic/kvspan@{version}"}},
        "components": parts,
        "dependencies": [{"ref": "kvspan", "dependsOn": [part["bom-ref"] for part in parts if part["scope"] == "required"]}],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=pathlib.Path, help="the archive's unpacked sources")
    sources = parser.parse_args().archive
    if sources is None:
        shown = subprocess.run([TREE / "scripts/dependencies.sh", "--path"], check=True, text=True, capture_output=True)
        sources = pathlib.Path(shown.stdout.strip()) / "src"
        if not sources.is_dir():
            sources = None
    json.dump(document(sources), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
