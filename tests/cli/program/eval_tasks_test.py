# SPDX-License-Identifier: Apache-2.0
"""The tasks of kvspan eval beside ppl: what they write, what they refuse, and Ctrl-C."""

import json
import math
import re
import signal
import subprocess

from program_support import PROGRAM, STORIES, TREE, ProgramTest, environment

CHOICE_TASKS = ("piqa", "hellaswag", "arc_easy", "arc_challenge", "winogrande", "openbookqa", "boolq", "copa")
RECIPES = ("--cache", "full:store=f32", "--cache", "quant:bits=2,sink=1,recent=1")
GOOD_ROW = '{"prompt": "Once upon a time", "target": " there was a"}\n'


class Likelihoods(ProgramTest):
    def test_every_task_of_choices(self):
        for task in CHOICE_TASKS:
            found = json.loads(self.output_of("eval", task, "-m", STORIES, "-t", "1", "--limit", "3", "--json", "-"))
            row, = found["rows"]
            self.assertEqual((found["task"], row["task"], row["recipe"], row["rows"]), (task, task, "full", 3))
            self.assertEqual(row["acc"], sum(row["by_row"]["acc"]) / 3)
            self.assertEqual("acc_norm" in row, task not in ("winogrande", "boolq", "copa"))
            self.assertGreater(row["gold_nll"], 0)

    def test_rows_carry_every_number_of_the_table(self):
        arguments = ("eval", "lambada", "-m", STORIES, "-t", "1", "--limit", "6", *RECIPES, "--seed", "3")
        found = json.loads(self.output_of(*arguments, "--json", "-"))
        full, f32, quant = found["rows"]
        self.assertEqual([row["recipe"] for row in found["rows"]][:2], ["full", "full:store=f32"])
        self.assertEqual((full["ppl_diff_nats"], full["ppl_p"]), (0, 1))
        mean = sum(full["by_row"]["ppl"]) / 6
        self.assertAlmostEqual(full["ppl"] / math.exp(mean), 1, places=9)
        self.assertLessEqual(full["ppl_low"], full["ppl"])
        self.assertLess(abs(f32["ppl_diff_nats"]), abs(quant["ppl_diff_nats"]))
        self.assertLess(quant["kv_bytes"], full["kv_bytes"])
        self.assertEqual(json.loads(self.output_of(*arguments, "--json", "-")), found)
        table = self.output_of(*arguments)
        for row in found["rows"]:
            self.assertRegex(table, rf"(?m)^{row['recipe']} .* ppl +{row['ppl']:.3f} ")

    def test_weights_of_another_form_leave_no_file(self):
        model = self.write("model.gguf", STORIES.read_bytes())
        found = json.loads(self.output_of("eval", "copa", "-m", model, "--limit", "2", "--weights", "f32", "--json", "-"))
        self.assertEqual((found["weights"], found["model"]), ("f32", str(model)))
        self.assertEqual([path.name for path in self.folder.glob("model*")], ["model.gguf"])

    def test_jsonl_of_ones_own(self):
        rows = self.write("rows.jsonl", GOOD_ROW + '{"prompt": "", "target": "Once upon a time"}\n')
        found = json.loads(self.output_of("eval", "jsonl", "-m", STORIES, "-t", "1", "--data", rows, *RECIPES, "--json", "-"))
        full = found["rows"][0]
        self.assertEqual((full["token_acc"] > 0.5, full["exact"], full["rows"]), (True, sum(full["by_row"]["exact"]) / 2, 2))
        self.assertEqual(found["rows"][1]["token_acc"], full["token_acc"])

    def test_refuses(self):
        self.refused("eval", "hellaswg", says="'hellaswag'")
        self.refused("eval", "jsonl", "-m", STORIES, "-t", "1", says="--data")
        self.refused("eval", "jsonl", "-m", STORIES, "-t", "1", "--data", "none.jsonl", says="none.jsonl")
        for line, says in (('{"prompt": 1, "target": "x"}', "'prompt'"), ("{", "JSON"), ('{"prompt": "x"}', "'target'")):
            rows = self.write("bad.jsonl", GOOD_ROW + line)
            self.refused("eval", "jsonl", "-m", STORIES, "-t", "1", "--data", rows, says=("bad.jsonl' line 2", says))
        self.refused("eval", "piqa", "-m", STORIES, "-t", "1", "--data", self.write("x.jsonl", GOOD_ROW), says=("line 1", "'query'"))
        self.refused("eval", "piqa", "-m", STORIES, "-t", "1", "--data", self.write("empty.jsonl", "\n"), says="no rows")
        self.refused("eval", "piqa", "-m", STORIES, "-t", "1", "--limit", "-1", says="--limit")
        self.refused("eval", "piqa", "-m", STORIES, "-t", "1", "--json", "nowhere/x.json", says="nowhere")


class Retrieval(ProgramTest):
    def test_passkey_and_the_texts_it_got(self):
        arguments = ("eval", "passkey", "-m", STORIES, "-t", "1", "--length", "400", "--limit", "2", *RECIPES)
        found = json.loads(self.output_of(*arguments, "--json", "-"))
        self.assertEqual((found["length"], len(found["rows"])), (400, 3))
        for row in found["rows"]:
            self.assertTrue(300 < row["tokens"] <= 400)
        samples = found["samples"]["passkey"]
        self.assertEqual([len(sample["answers"][0]) for sample in samples], [5, 5])
        for i, sample in enumerate(samples):
            for row in found["rows"]:
                hit = sample["answers"][0] in sample["texts"][row["recipe"]]
                self.assertEqual(row["by_row"]["score"][i], float(hit))

    def test_several_tasks_of_ruler(self):
        table = self.output_of("eval", "ruler", "-m", STORIES, "-t", "1", "--tasks", "niah_single_1,niah_single_2", "--length", "512",
                               "--limit", "1")
        self.assertRegex(table, r"(?m)^niah_single_1 +full ")
        self.assertRegex(table, r"(?m)^niah_single_2 +full ")

    def test_refuses(self):
        self.refused("eval", "ruler", "-m", STORIES, "--tasks", "niah_sngle_1", says="'niah_single_1'")
        self.refused("eval", "ruler", "-m", STORIES, "--tasks", "qa_2", says=("HotpotQA", "--hotpotqa"))
        self.refused("eval", "ruler", "-m", STORIES, "--tasks", "qa_2", "--hotpotqa", self.write("h.json", "{}"), says="h.json")
        self.refused("eval", "ruler", "-m", STORIES, "-t", "1", "--tasks", "niah_single_1,vt", "--length", "512", says="vt")
        self.refused("eval", "passkey", "-m", STORIES, "-t", "1", "--length", "4096", says=("4096", "512"))
        self.refused("eval", "passkey", "-m", STORIES, "-t", "1", "--length", "64", says=("--length", "passkey"))
        self.refused("eval", "passkey", "-m", STORIES, "-t", "1", "--length", "400", "--chat", says="template")


class CtrlC(ProgramTest):
    def test_keeps_the_rows_that_are_done(self):
        rows = self.write("rows.jsonl", GOOD_ROW * 200000)
        process = subprocess.Popen([PROGRAM, "eval", "jsonl", "-m", STORIES, "-t", "1", "--data", rows, "--cache",
                                    "full:store=f32", "--json", "out.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   cwd=self.folder, env=environment(self.folder))
        try:
            # Lines count rows of each recipe; where the machine is busy, the first comes before both have one.
            scored = 0
            while scored < 2:
                line = process.stderr.readline().decode()
                self.assertRegex(line, r"[\d,]+ of [\d,]+ rows")
                scored = int(re.search(r"([\d,]+) of", line)[1].replace(",", ""))
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, 130)
        self.assertIn("before Ctrl-C", error.decode())
        found = json.loads((self.folder / "out.json").read_text())
        self.assertTrue(found["cancelled"])
        self.assertEqual(found["rows"][0]["rows"], found["rows"][1]["rows"])
        self.assertGreater(found["rows"][0]["rows"], 0)
        self.assertIn("full:store=f32", out.decode())
