#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds words that the project does not use, in pages and comments: check_words.py [--all] [TREE]

One word for one thing makes code and pages readable for people who know llama.cpp, vLLM, faiss or FlashInfer. RULES
pairs a pattern with the word to use instead. Words that are also plain English (first, last, run, hold, turn) are
matched only in the wrong sense, by what stands beside them. Code in backquotes or fences does not count.

Checks the places in PLACES, or with --all every page and comment. scripts/check_words_exceptions.txt lists reviewed
uses that stay: `PATH: TEXT`, one a line, where TEXT is part of the line of that file. An exception that matches
nothing is a finding too. Prints one line per finding, then a count; exit 1 if there was a finding.
"""

import pathlib
import re
import sys

PLACES = ("README.md", "CONTRIBUTING.md", "bench/README.md", "docs/design", "docs/guide", "docs/methods",
          "docs/reference/c_api.md", "docs/reference/eval.md", "docs/reference/formats", "docs/reference/inspect.md",
          "docs/reference/report.md", "docs/reference/study.md", "docs/results/README.md", "docs/results/quality.md")

RULES = [
    (r"\bread in place\b", "computed on codes"),
    (r"\b(what|those) (that )?(is|are) there\b", "name the things"),
    (r"\b(wait|waits|waited|waiting) (at|in) (8 bits|int8|q8_0|full rank|f16)|\bwaiting (rows|tokens)\b|\b(rows|tokens) (that )?wait\b", "pending"),
    (r"\brooms?\b", "module (source folder), capacity or space"),
    (r"\b(a|its|their|another|the|of the) home\b|\bbrought home\b", "memory of a cache"),
    (r"\bcrowd(ed|s)?\b", "oversubscribed, busy"),
    (r"\bstretch(es)?\b(?! (of )?(positions|the|out))", "softmax step"),
    (r"\b(full-rank|exact|int8|8-bit|f16|narrow|first and last) ends\b|\bthe ends (stay|are|at|of a cache)\b", "raw rows"),
    (r"\bfull-rank (rows?|tokens?)\b|\bexact (rows?|tokens?)\b|\bstays? (exact|full rank|at full rank)\b", "raw"),
    (r"(?<!entropy-)\bcoded\b|\bto code\b|\bcodes (the )?(rows|tokens|keys|values)\b", "encoded, encode"),
    (r"\b(keys?|quer(y|ies)|rows?|vectors?|is|are|be|was|were|then) turned\b|\bturned (back|by|when|to (an|the|its|their) anchor)", "rotated"),
    (r"\b(is|are|was|were) moved (to|into) (coefficients|components|the coefficient)", "projected"),
    (r"\b(query|queries|heads?) (that )?meets?\b|\bmet by\b", "multiplied with"),
    (r"\bheld (at|against|beside)\b|\bheld to\b", "stored in, compared with"),
    (r"\bforgets?\b|\bforgot(ten)?\b|\bforgetting\b|\bforgettable\b", "free, evict or truncate"),
    (r"\bgo(es|ing)? back\b|\b(is|are|be|was|were) taken back\b", "truncate"),
    (r"\bgo(es|ing)? on\b", "continue, resume"),
    (r"\bnobody\b|\bwhoever\b|\bsomebody\b", "name the actor"),
    (r"\blearnt\b", "fitted"),
    (r"\b(codes?|code) (is|are|was|were) (designed|learned)\b|\bdesigned codes?\b|\bdesigns? (its|their|the|a|all) codes?\b", "fit a codec"),
    (r"\bwidened?\b", "dequantize"),
    (r"\brebuil(d|ds|t|ding)( all| every)? rows?\b|\brows? (is|are|was|were) rebuilt\b|\brebuilt rows?\b", "reconstruct"),
    (r"\brefus(e|es|ed|ing|al)\b", "reject"),
    (r"(^|[.;:] )Where\b(?! (time|to|they|it|is|are)\b)", "if, when"),
    (r"(?<![a-z] )\bWhat is left\b|\bwhat is left of\b", "name the remainder"),
    (r"\bmemory ends\b", "allocation fails"),
    (r"\b((?<!::)neighbour(?!s D)|colour|favour|behaviour|honour|analys(e|es|ed)|normalis|optimis|summaris|quantis|organis|recognis|initialis|centred?|artefact)", "American spelling"),
]
COMMENT = {
    ".cc": r"//(.*)$", ".h": r"//(.*)$", ".cu": r"//(.*)$", ".cuh": r"//(.*)$", ".c": r"//(.*)$",
    ".py": r"(?<!['\"\w&])#(.*)$", ".sh": r"(?:^|\s)#(.*)$", ".cmake": r"#(.*)$",
}
SKIPPED = {"build", "data", "CHANGELOG.md", "check_words.py"}


def prose_of(path, text):
    """(line number, prose) of every line that has prose in it."""
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("```"):
                fenced = not fenced
            elif not fenced and not line.startswith("    "):
                yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "`", line)
        return
    comment = re.compile(COMMENT.get(path.suffix) or COMMENT[".sh"])
    for number, line in enumerate(text.splitlines(), 1):
        if found := comment.search(line):
            yield number, re.sub(r"`[^`]*`|'[^']*'(?!\w)|\"[^\"]*\"", "`", found[1])


def files_of(tree, places):
    for place in places:
        start = tree / place
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            parts = path.relative_to(tree).parts
            if any(part in SKIPPED or part.startswith(".") for part in parts):
                continue
            if path.is_file() and (path.suffix == ".md" or path.suffix in COMMENT or path.name == "CMakeLists.txt"):
                yield path


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--all"]
    if any(argument.startswith("-") for argument in arguments) or len(arguments) > 1:
        sys.exit(__doc__)
    tree = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent).resolve()
    exceptions = {}
    listed = tree / "scripts/check_words_exceptions.txt"
    for line in listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []:
        if line and not line.startswith("#"):
            path, _, text = line.partition(": ")
            exceptions[path, text] = 0
    rules = [(re.compile(pattern), instead) for pattern, instead in RULES]
    findings, files = [], 0
    places = [path.name for path in tree.iterdir()] if "--all" in sys.argv else PLACES
    for path in files_of(tree, [place for place in places if (tree / place).exists()]):
        name, files = path.relative_to(tree).as_posix(), files + 1
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for number, prose in prose_of(path, text):
            for rule, instead in rules:
                if not (found := rule.search(prose)):
                    continue
                excused = [key for key in exceptions if key[0] == name and key[1] in lines[number - 1]]
                for key in excused:
                    exceptions[key] += 1
                if not excused:
                    findings.append(f"{name}:{number}: '{found[0].strip()}'; use: {instead}")
    if "--all" not in sys.argv:
        findings += [f"{listed.name}: '{path}: {text}' matches nothing" for (path, text), used in exceptions.items() if not used]
    print(*findings, sep="\n", end="\n" if findings else "")
    print(f"{files} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
