#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds data/text/calibration.txt: make_calibration_text.py DATA [OUT]

DATA holds the sources (data/text/README.md names them and their licences):

    books/pride_and_prejudice.txt.xz, books/gullivers_travels.txt.xz    prose
    wikitext/wiki.valid.raw                                             encyclopedia (validation split)
    lm/c4_en_sample_1000.jsonl.xz                                       web
    code/python311_stdlib_sample.txt.xz                                 code

The text is eight parts of about 4,100 SmolLM2 tokens, each kind twice, so that half of it holds every
kind too. No part is of a text that measurements read: not WikiText's test split, not Moby Dick or The War
of the Worlds, and code only from beyond the sample's first 300,000 characters.
"""
import json
import lzma
import pathlib
import sys

# Characters of one part, about 4,100 tokens of SmolLM2 each.
PROSE, ENCYCLOPEDIA, WEB, CODE = 17_600, 17_400, 18_600, 15_200


def cut(text, start, length):
    """About `length` characters from the first line break at or after `start` to a line's end."""
    begin = text.index("\n", start) + 1
    return text[begin:text.index("\n", begin + length)].strip("\n")


def main(data, out):
    def read(name):
        opener = lzma.open if name.endswith(".xz") else open
        with opener(data / name, "rt", encoding="utf-8") as file:
            return file.read()

    wiki = read("wikitext/wiki.valid.raw")
    web = "\n\n".join(json.loads(line)["text"] for line in read("lm/c4_en_sample_1000.jsonl.xz").splitlines())
    code = read("code/python311_stdlib_sample.txt.xz")
    parts = [
        cut(read("books/pride_and_prejudice.txt.xz"), 40_000, PROSE), cut(wiki, 0, ENCYCLOPEDIA),
        cut(web, 0, WEB), cut(code, code.index("# ===== heapq.py"), CODE),
        cut(read("books/gullivers_travels.txt.xz"), 90_000, PROSE), cut(wiki, 600_000, ENCYCLOPEDIA),
        cut(web, 1_000_000, WEB), cut(code, code.index("# ===== subprocess.py") + 40_000, CODE)]
    out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    tree = pathlib.Path(__file__).resolve().parent.parent
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if len(sys.argv) == 3
         else tree / "data" / "text" / "calibration.txt")
