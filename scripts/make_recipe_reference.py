#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/recipes.md from what the program says about its methods:

    kvspan methods --json - | scripts/make_recipe_reference.py > docs/reference/recipes.md

Reads standard input, or the file named as the only argument. Methods that docs/methods
describes are linked to their heading. A test of the program compares the page with this script's output.
"""

import json
import pathlib
import re
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
HEAD = """# Recipes

<!-- Written by scripts/make_recipe_reference.py from `kvspan methods --json -`. Do not edit. -->

A recipe names a cache. The same text works everywhere: in `--cache`, in `CacheFactory::create`, in
`kvspan_factory_create` and in reports.

    method                          full
    method:key=value,key=value      bands:bits=2,recent=64
    selector:...+method:...         snapkv:keep=0.5+quant:bits=4

A key that is left out has its default. Every recipe has one canonical form: keys in the order of the tables
below, defaults left out. An unknown key or an impossible value is refused with the key, the value and what is
allowed. `kvspan methods` prints these tables, `kvspan methods NAME` one of them.

Kinds: a *method* learns directions, a *baseline* learns nothing, a *selector* decides which tokens are kept or
read, a *chooser* picks a recipe for you.
"""


def cell(text):
    """Text that can stand in a Markdown table."""
    return str(text).replace("|", "\\|")


def link_to(name):
    """The heading in docs/methods that describes the method, or None."""
    for page in sorted((TREE / "docs/methods").glob("*.md")):
        if re.search(rf"^##? {name}$", page.read_text(encoding="utf-8"), re.MULTILINE):
            return f"[`{name}`](../methods/{page.name}#{name})"
    return None


def overview(methods):
    yield "| name | kind | what it does |"
    yield "| --- | --- | --- |"
    for method in methods:
        yield f"| [`{method['name']}`](#{method['name']}) | {method['kind']} | {cell(method['summary'])} |"


def section(method):
    yield f"## {method['name']}"
    yield ""
    yield f"{method['summary'][0].upper()}{method['summary'][1:]}. Kind: {method['kind']}. Example: `{method['example']}`."
    if method["source"]:
        yield f"Source: {method['source']}."
    if link := link_to(method["name"]):
        yield f"How it works: {link}."
    yield ""
    yield "| key | default | allowed | what it sets |"
    yield "| --- | --- | --- | --- |"
    for key in method["keys"]:
        default = f"`{key['default']}`" if key["default"] else "not set"
        yield f"| `{key['key']}` | {default} | {cell(key['allowed'])} | {cell(key['summary'])} |"
    yield ""
    for rule in method["rules"]:
        yield f"- {rule}"
    if method["rules"]:
        yield ""
    if method["joins"]:
        yield "Joins with `+`: " + ", ".join(f"`{name}`" for name in method["joins"]) + "."
        yield ""


def page(methods):
    """The whole page for the list that `kvspan methods --json -` writes."""
    lines = [HEAD, *overview(methods), ""]
    for method in methods:
        lines += section(method)
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) == 2 else sys.stdin.read()
    sys.stdout.write(page(json.loads(text)))


if __name__ == "__main__":
    main()
