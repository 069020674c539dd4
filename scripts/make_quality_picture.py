#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws quality against bytes from files of kvspan eval ppl:

    make_quality_picture.py FILE.json ... > quality.svg
    make_quality_picture.py --line "all heads:bands,!share" --line "two heads:share=kvgroup" FILE.json ... > groups.svg

Lower and further right is better: the divergence from the full cache (log scale) against how many times fewer
bytes than f16 a recipe holds. Lines that a file of --instead has come from it alone. One line a method, or those asked for: a recipe is on the first of them all of whose words are in
it, and none of those after an exclamation mark. Light and dark follow the reader's screen. The files have to be of one model, text,
length and form of weights.
"""

import argparse
import json
import math
import pathlib
import sys

# Those that are drawn, with their colours on light and dark ground. The first is the heaviest line.
METHODS = [("bands", "#1f6fb4", "#66a9e8"), ("quant", "#cc3311", "#ff7657"), ("turbo", "#997700", "#d9b63c"),
           ("oscar", "#aa3377", "#e07ab5"), ("kvtc", "#0f8b8d", "#4fc7c9"), ("static", "#228833", "#5fc46f"),
           ("spectral", "#6a51a3", "#b09ae0"), ("oja", "#8a5a33", "#c79a72"), ("fd", "#c06000", "#f0a050")]
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 610, 46, 350
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"


def line_of(recipe, asked):
    """The name of the line that a recipe is on, or None."""
    words = recipe.replace(":", ",").split(",")
    if not asked:
        return words[0]
    has = lambda word: any(own == word or own.split("=")[0] == word for own in words)
    return next((name for name, conditions in asked
                 if all(not has(word[1:]) if word.startswith("!") else has(word) for word in conditions)), None)


def points_of(documents, asked):
    """Line -> [(ratio, KL)]."""
    found = {}
    for row in (row for document in documents for row in document["rows"]):
        line = line_of(row["recipe"], asked)
        if row.get("kl") and row.get("kv_ratio") and "+" not in row["recipe"]:
            found.setdefault(line, []).append((row["kv_ratio"], row["kl"]))
    return found


def lines_of(documents, instead, asked):
    """Those that are drawn, each from many bytes to few."""
    found = points_of(documents, asked) | points_of(instead, asked)
    names = [name for name, _ in asked] or [method for method, *_ in METHODS]
    return {name: sorted(found[name]) for name in names if name in found}


def style():
    light = "".join(f"--c{i}:{colour};" for i, (_, colour, _) in enumerate(METHODS))
    dark = "".join(f"--c{i}:{colour};" for i, (*_, colour) in enumerate(METHODS))
    return (f":root{{color-scheme:light dark;--bg:#fff;--ink:#1b1f24;--soft:#4d5761;--grid:#e1e6eb;{light}}}"
            f"@media (prefers-color-scheme:dark){{:root{{--bg:#14181d;--ink:#e8ecf0;--soft:#aab4be;--grid:#2c343d;{dark}}}}}"
            f"text{{font:13px {FONT};fill:var(--soft)}}.t{{font-weight:600;fill:var(--ink);font-size:15px}}")


def spread(wanted, gap, low, high):
    """Places near the wanted ones, at least `gap` apart, within low..high; in the given order."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = list(wanted)
    for before, now in zip(order, order[1:]):
        places[now] = max(places[now], places[before] + gap)
    for i, now in enumerate(reversed(order)):
        places[now] = min(places[now], high - i * gap)
    return [max(low, place) for place in places]


def picture(documents, instead, asked):
    lines = lines_of(documents, instead, asked)
    colours = [name for name, _ in asked] or [method for method, *_ in METHODS]
    ratios = [ratio for points in lines.values() for ratio, _ in points]
    kls = [kl for points in lines.values() for _, kl in points]
    low, high = math.floor(math.log10(min(kls)) * 2) / 2, math.ceil(math.log10(max(kls)) * 2) / 2
    first, last = math.log2(min(ratios) * 0.93), math.log2(max(ratios) * 1.07)

    def x(ratio):
        return LEFT + (RIGHT - LEFT) * (math.log2(ratio) - first) / (last - first)

    def y(kl):
        return BOTTOM - (BOTTOM - TOP) * (math.log10(kl) - low) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           f'aria-label="Divergence from the full cache against bytes">', f"<style>{style()}</style>",
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--bg)"/>',
           f'<text class="t" x="12" y="22">How far from the full cache, for how few bytes (lower and further right is better)</text>',
           f'<text x="12" y="40">KL, nats</text>']
    for power in range(math.ceil(low), math.floor(high) + 1):
        out.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y(10.0 ** power):.1f}" y2="{y(10.0 ** power):.1f}" stroke="var(--grid)"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(10.0 ** power) + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')
    for ratio in (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16):
        if not first <= math.log2(ratio) <= last:
            continue
        out.append(f'<line x1="{x(ratio):.1f}" x2="{x(ratio):.1f}" y1="{TOP}" y2="{BOTTOM}" stroke="var(--grid)"/>')
        out.append(f'<text x="{x(ratio):.1f}" y="{BOTTOM + 18}" text-anchor="middle">{ratio:g}x</text>')
    out.append(f'<text x="{RIGHT}" y="{BOTTOM + 38}" text-anchor="end">times fewer bytes than f16, all bytes counted</text>')
    names = list(lines)
    ends = spread([y(lines[name][-1][1]) for name in names], 16, TOP + 6, BOTTOM)
    for name, points in lines.items():
        i = colours.index(name)
        places = [(x(ratio), y(kl)) for ratio, kl in points]
        heavy = 3 if i == 0 else 1.6
        out.append(f'<polyline fill="none" stroke="var(--c{i})" stroke-width="{heavy}" points="'
                   + " ".join(f"{a:.1f},{b:.1f}" for a, b in places) + '"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{heavy + 2}" fill="var(--c{i})"/>' for a, b in places]
        end = ends[names.index(name)]
        out.append(f'<line x1="{places[-1][0] + 6:.1f}" y1="{places[-1][1]:.1f}" x2="{RIGHT + 12}" y2="{end:.1f}" '
                   f'stroke="var(--c{i})" stroke-width="0.7" stroke-dasharray="2 3"/>')
        out.append(f'<text x="{RIGHT + 16}" y="{end + 4:.1f}" style="fill:var(--c{i})'
                   + (';font-weight:700' if i == 0 else "") + f'">{name}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--line", action="append", default=[], metavar="NAME:WORD,WORD", help="at most as many as there are colours")
    flags.add_argument("--instead", action="append", default=[], metavar="FILE", help="measured again: its lines are drawn from it alone")
    flags.add_argument("files", nargs="+")
    options = flags.parse_args()
    asked = [(name, words.split(",")) for name, _, words in (line.partition(":") for line in options.line)]
    if len(asked) > len(METHODS):
        flags.error(f"{len(asked)} lines; allowed: {len(METHODS)}")
    read = lambda name: json.loads(pathlib.Path(name).read_text(encoding="utf-8"))
    documents, instead = list(map(read, options.files)), list(map(read, options.instead))
    subjects = {(document["identity"]["fingerprint"], document["identity"]["text_sha256"], document["ctx"])
                for document in documents + instead}
    if len(subjects) != 1:
        sys.exit("the files are not of one model, text, length and form of weights")
    sys.stdout.write(picture(documents, instead, asked))


if __name__ == "__main__":
    main()
