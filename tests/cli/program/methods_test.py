# SPDX-License-Identifier: Apache-2.0
"""kvspan methods: the table, one method explained, JSON; and recipes refused by the grammar."""

import json

from program_support import STORIES, TREE, ProgramTest

GOOD = ["run", "-m", STORIES, "-p", "Once", "-n", "1"]


class Methods(ProgramTest):
    def test_the_table_names_every_method_with_its_keys(self):
        text = self.output_of("methods")
        for method in json.loads(self.output_of("methods", "--json", "-")):
            self.assertIn(f"\n{method['name']} ", "\n" + text)
            self.assertIn(method["summary"], text)
            for key in method["keys"]:
                self.assertIn(f" {key['key']}={key['default'] or ''}", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 130)

    def test_json_has_keys_with_default_and_allowed(self):
        methods = {method["name"]: method for method in json.loads(self.output_of("methods", "--json", "-"))}
        self.assertLessEqual({"full", "static", "fd", "rotate", "oja", "spectral", "bands", "quant", "prune", "window",
                              "streaming", "h2o", "scissorhands", "snapkv", "quest", "shadowkv", "auto"}, set(methods))
        keys = {key["key"]: key for key in methods["quant"]["keys"]}
        self.assertEqual((keys["bits"]["default"], keys["bits"]["allowed"]), ("4", "8, 4, 3 or 2"))
        self.assertIsNone(keys["kbits"]["default"])
        self.assertEqual(methods["snapkv"]["kind"], "selector")
        self.assertIn("oja", methods["snapkv"]["joins"])
        self.assertNotIn("window", methods["snapkv"]["joins"])

    def test_every_method_is_described_with_its_cost_and_limits(self):
        pages = {path.name: path.read_text() for path in (TREE / "docs/methods").glob("*.md")}
        for method in json.loads(self.output_of("methods", "--json", "-")):
            name = method["name"]
            if name in ("bands", "auto"):  # bands has a page of its own form, auto is a part of it
                continue
            texts = [(page, text.split(f"\n## {name}\n")[1].split("\n## ")[0]) for page, text in pages.items()
                     if f"\n## {name}\n" in text]
            self.assertEqual(len(texts), 1, name)
            for part in ("**Cost.**", "**When it fails.**"):
                self.assertIn(part, texts[0][1], name)
            self.assertIn(f"[{name}]({texts[0][0]}#{name})", pages["README.md"])

    def test_one_is_explained(self):
        text = self.output_of("methods", "fd")
        for part in ("Frequent Directions", "source:", "example: fd:rk=d/4", "tau", "calibrated or a number",
                     "energy and ratio exclude each other", "joins with '+': h2o"):
            self.assertIn(part, text)
        self.assertEqual(json.loads(self.output_of("methods", "fd", "--json", "-"))["name"], "fd")

    def test_an_unknown_one_gives_the_nearest(self):
        self.refused("methods", "spectrl", says=["spectrl", "did you mean 'spectral'?", "bands"])


class Recipes(ProgramTest):
    def test_mistakes_are_answered_by_the_grammar_before_a_model_is_looked_for(self):
        self.refused("run", "-m", "missing.gguf", "-p", "x", "--cache", "sttaic:rk=16",
                     says=["--cache", "recipe 'sttaic:rk=16'", "did you mean 'static'?"])
        self.refused(*GOOD, "--cache", "static:rk=0", says=["rk=0", "d/4"])
        self.refused(*GOOD, "--cache", "h2o+bands", says=["h2o cannot go with bands", "tiles"])
        self.refused("bench", "-m", STORIES, "--cache", "full", "--cache", "quant:bits=5", says=["bits=5", "8, 4, 3 or 2"])

    def test_equal_recipes_are_one(self):
        self.output_of(*GOOD, "--cache", "full:store=f16")


class CompletionOfMethods(ProgramTest):
    def test_scripts_know_the_names(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.output_of("completion", shell)
            self.assertIn("scissorhands", script)
