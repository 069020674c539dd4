#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the layout rules that the compiler does not: check_rooms.py [TREE]

A room includes itself and rooms before it in ROOMS; tests of a room likewise. ggml, libllama and its
common library appear only in the rooms llama and server, CUDA only in folders called cuda. The library rooms up to method
touch no file, terminal, environment or clock. Public headers include only standard headers and each
other. What is bands' own lies in folders called bands and is named nowhere else but on the device, in the table of
methods and where recipes are written. Files that comments name are there. Every source file carries its licence tag
and stays within its length. Prints one line per finding, then how many files were looked at; exit 1 if there was a finding.
"""

import pathlib
import re
import sys

ROOMS = "base linalg subspace codec cache attention recipe method api cuda io store llama eval analysis report server cli".split()
PURE_ROOMS = ROOMS[: ROOMS.index("method") + 1]
CODE = {".h", ".cc", ".c", ".cu", ".cuh"}
TAGGED = CODE | {".py", ".sh", ".cmake", ".in"}
TAGGED_NAMES = {"run", "test"}
FOLDERS = ("include", "src", "tests", "bench", "examples", "scripts", "cmake", "bindings", ".ci")
TAG = "SPDX-License-Identifier: Apache-2.0"
TAG_WITHIN_LINES = 5
MAX_LINES, MAX_PUBLIC_HEADER_LINES = 600, 200

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ENGINE = re.compile(r"^(ggml|gguf|llama)([-.\w]*)\.h(pp)?$|"
                    r"^(arg|chat|common|json|json-schema|json-schema-to-grammar|log|sampling|speculative|jinja/\w+)\.h$")
ENGINE_ROOMS = {"llama", "server"}
C_HEADERS = {"stdbool.h", "stddef.h", "stdint.h"}  # what a C interface may need
CUDA = re.compile(r"^(cuda|cublas|cooperative_groups|nvrtc)")
IMPURE_HEADERS = {"fstream", "filesystem", "iostream", "chrono", "ctime", "time.h", "fcntl.h",
                  "sys/socket.h", "sys/stat.h", "sys/time.h"}
IMPURE_CALLS = re.compile(r"\b(getenv|secure_getenv|fopen|freopen|popen|clock_gettime|std::system)\s*\(")
LINE_COMMENT = re.compile(r"//.*$")
NAMED_FILE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(ROOMS)})/[\w/]+\.(?:h|cc|cuh|cu))\b")
BANDS = re.compile(r"bands", re.IGNORECASE)
# Its row, and where a device's cache reads its codes.
BANDS_NAMED = {"src/method/method_table.cc", "include/kvspan/cuda.h", "src/cuda/attend_call.h", "src/cuda/device_cache.h",
               "src/cuda/device_state.cc", "src/cuda/device_steps.cc", "src/cuda/recorded_step.cc"}
BANDS_RECIPES = {"eval", "cli"}  # rooms that write recipes


def room_of(parts):
    """The room of src/ROOM/... or tests/ROOM/..., else None."""
    return parts[1] if len(parts) > 2 and parts[0] in ("src", "tests") and parts[1] in ROOMS else None


def check_include(parts, kind, header):
    """Yields what is wrong with one include of the file with these path parts."""
    room, first = room_of(parts), header.split("/")[0]
    if first in ROOMS and kind == '"':
        if parts[0] == "examples":
            yield f"includes {header}; examples use public headers (kvspan/...)"
        elif room and ROOMS.index(first) > ROOMS.index(room):
            yield f"includes {header}, but room {room} comes before {first}"
    if ENGINE.match(header) and parts[0] not in ("scripts", "examples") and room not in ENGINE_ROOMS:
        yield f"includes {header}; ggml, libllama and common stay in the rooms llama and server"
    if CUDA.match(header) and "cuda" not in parts:
        yield f"includes {header}; CUDA stays in folders called cuda"
    if parts[0] == "src" and room in PURE_ROOMS and header in IMPURE_HEADERS:
        yield f"includes <{header}>; room {room} knows no file, terminal, environment or clock"
    standard = header in C_HEADERS or not ("/" in header or "." in header)
    if parts[0] == "include" and first != "kvspan" and not standard:
        yield f"includes {header}; public headers need only standard headers and each other"


def check_file(path, tree):
    """Yields the findings of one file."""
    relative = path.relative_to(tree)
    parts = relative.parts
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if not any(TAG in line for line in lines[:TAG_WITHIN_LINES]):
        yield f"{relative}: no '{TAG}' in its first {TAG_WITHIN_LINES} lines"
    limit = MAX_PUBLIC_HEADER_LINES if parts[0] == "include" else MAX_LINES
    if len(lines) > limit:
        yield f"{relative}: {len(lines)} lines, allowed are {limit}"
    if path.suffix not in CODE:
        return
    pure = parts[0] == "src" and room_of(parts) in PURE_ROOMS
    names_bands = (parts[0] not in ("src", "include") or "bands" in parts or room_of(parts) in BANDS_RECIPES
                   or relative.as_posix() in BANDS_NAMED)
    for number, line in enumerate(lines, 1):
        if not names_bands and BANDS.search(line):
            yield f"{relative}:{number}: names bands, which only folders called bands do"
        if comment := LINE_COMMENT.search(line):
            for named in NAMED_FILE.findall(comment.group()):
                if not any((tree / folder / named).is_file() for folder in ("src", "tests")):
                    yield f"{relative}:{number}: names {named}, which is no file"
        if found := INCLUDE.match(line):
            for wrong in check_include(parts, *found.groups()):
                yield f"{relative}:{number}: {wrong}"
        elif pure and (call := IMPURE_CALLS.search(LINE_COMMENT.sub("", line))):
            yield f"{relative}:{number}: calls {call.group(1)}; room {parts[1]} knows no file, environment or clock"


def source_files(tree):
    yield from (tree / name for name in sorted(TAGGED_NAMES) if (tree / name).is_file())
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            if path.is_file() and (path.suffix in TAGGED or path.parent.name == ".ci"):
                yield path


def main():
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = list(source_files(tree))
    findings = [finding for path in files for finding in check_file(path, tree)]
    for room in sorted(p.name for p in (tree / "src").glob("*") if p.is_dir() and p.name not in ROOMS):
        findings.append(f"src/{room}: not a room; rooms are {' '.join(ROOMS)}")
    for finding in findings:
        print(finding)
    print(f"{len(files)} files, {len(findings)} findings")
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main())
