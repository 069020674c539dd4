#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the links between the pages of this repository: check_links.py [TREE]

Looks at every Markdown page outside build/. A link or picture without a scheme has to lead to a file or
folder of the tree, its fragment to a heading. Paths under docs/ that code and messages mention have to be
there, too. Prints one line per finding, then how many links were looked at; exit 1 if there was a finding.
"""

import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```|    .*?$)", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
MENTION = re.compile(r"\bdocs/[\w/.-]*\w")
MENTIONING = {".h", ".cc", ".c", ".md", ".cmake", ".py", ".sh", ".txt"}
MADE_FOR_TESTS = ("tests/",)  # pages and paths that tests make up


def files_of(tree):
    """The files of the tree as paths in it, without what is built or hidden."""
    for path in sorted(tree.rglob("*")):
        parts = path.relative_to(tree).parts
        if path.is_file() and parts[0] != "build" and not any(part.startswith(".") for part in parts):
            yield pathlib.PurePosixPath(*parts)


def anchor(heading):
    """The fragment that leads to a heading, as GitHub makes it."""
    text = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return text.replace(" ", "-")


def check_link(tree, page, link):
    """Yields what is wrong with one link of a page."""
    if re.match(r"[a-z]+:", link):
        return
    name, _, fragment = link.partition("#")
    target = (tree / page).parent / name if name else tree / page
    if not target.exists():
        yield f"{page}: {link} leads nowhere"
    elif fragment and fragment not in {anchor(h) for h in HEADING.findall(target.read_text(encoding="utf-8"))}:
        yield f"{page}: {link} has no such heading"


def main():
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    findings, links = [], 0
    for path in files_of(tree):
        if path.suffix not in MENTIONING:
            continue
        text = (tree / path).read_text(encoding="utf-8")
        if path.suffix == ".md":
            for link in LINK.findall(FENCE.sub("", text)):
                links += 1
                findings += check_link(tree, path, link)
        if not path.as_posix().startswith(MADE_FOR_TESTS):
            for mention in MENTION.findall(text):
                links += 1
                if not (tree / mention).exists():
                    findings.append(f"{path}: {mention} is not there")
    print("\n".join(findings), end="\n" if findings else "")
    print(f"{links} links, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
