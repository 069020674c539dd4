# SPDX-License-Identifier: Apache-2.0
"""kvspan eval --resume, and eval longbench: what is gone on from, and what is refused."""

import json

from program_support import STORIES, TREE, ProgramTest

TEXT = TREE / "data/text/tinystories_head.txt"
ROWS = "".join('{"prompt": "Once upon a time there was %s", "target": " little girl"}\n' % w for w in ("a", "the", "one", "no"))
LONG = [{"dataset": "trec", "input": "Question: How far?\nType:", "context": "Question: When?\nType: Date\n" * 60, "answers": ["Date"],
         "all_classes": ["Date", "Number"]},
        {"dataset": "lcc", "input": "", "context": "x = 1\n" * 3, "answers": ["x = 1"], "all_classes": None}]


def strip(found):
    """A result without what a run that was gone on from may name differently."""
    return {key: value for key, value in found.items() if key not in ("arguments",)}


class Resume(ProgramTest):
    def load(self, name):
        return json.loads((self.folder / name).read_text())

    def test_rows_go_on_where_they_stopped(self):
        data = self.write("rows.jsonl", ROWS)
        base = ("eval", "jsonl", "-m", STORIES, "-t", "1", "--data", data, "--cache", "quant:bits=2,sink=1,recent=1")
        self.output_of(*base, "--json", "whole.json")
        self.output_of(*base, "--limit", "2", "--json", "part.json")
        part = self.load("part.json")
        part["rows"][1]["by_row"]["nll"][0] = 7.5  # what was scored is taken as it is
        (self.folder / "part.json").write_text(json.dumps(part))
        self.output_of(*base, "--json", "part.json", "--resume")
        whole, part = self.load("whole.json"), self.load("part.json")
        self.assertEqual(part["rows"][0], whole["rows"][0])
        self.assertEqual(part["rows"][1]["by_row"]["nll"], [7.5, *whole["rows"][1]["by_row"]["nll"][1:]])
        self.assertEqual(part["rows"][1]["by_row"]["nll_weight"], whole["rows"][1]["by_row"]["nll_weight"])
        self.assertEqual(part["rows"][1]["kv_bytes"], whole["rows"][1]["kv_bytes"])

    def test_texts_and_new_recipes(self):
        base = ("eval", "passkey", "-m", STORIES, "-t", "1", "--length", "400", "--limit", "2")
        self.output_of(*base, "--json", "out.json")
        before = self.load("out.json")
        self.output_of(*base, "--cache", "full:store=f32", "--json", "out.json", "--resume")
        after = self.load("out.json")
        self.assertEqual(after["rows"][0], before["rows"][0])
        self.assertEqual(after["rows"][1]["rows"], 2)
        for old, new in zip(before["samples"]["passkey"], after["samples"]["passkey"]):
            self.assertEqual(old["texts"]["full"], new["texts"]["full"])

    def test_ppl_keeps_recipes_that_are_done(self):
        base = ("eval", "ppl", "-m", STORIES, "-t", "1", "-f", TEXT, "--ctx", "256", "--windows", "1", "--json", "out.json", "--resume")
        self.output_of(*base, "--cache", "full:store=f32")
        before = self.load("out.json")
        before["rows"][1]["kl"] = 3.25
        (self.folder / "out.json").write_text(json.dumps(before))
        self.output_of(*base, "--cache", "quant:bits=4", "--cache", "full:store=f32")
        after = self.load("out.json")
        self.assertEqual([row["recipe"] for row in after["rows"]], ["full", "quant", "full:store=f32"])
        self.assertEqual(after["rows"][2], before["rows"][1])
        self.output_of(*base, "--cache", "quant:bits=4", "--cache", "full:store=f32")
        self.assertEqual(strip(self.load("out.json")), strip(after))
        # A run that was stopped is begun anew.
        after["cancelled"] = True
        (self.folder / "out.json").write_text(json.dumps(after))
        self.output_of(*base, "--cache", "full:store=f32")
        self.assertLess(self.load("out.json")["rows"][1]["kl"], 1e-4)

    def test_another_run_is_refused(self):
        base = ("eval", "piqa", "-m", STORIES, "-t", "1", "--limit", "2")
        self.refused(*base, "--resume", says="--json")
        self.output_of(*base, "--json", "out.json", "--resume")  # nothing to go on from
        self.refused(*base, "--json", "out.json", "--resume", "--seed", "5", says=("seed (0, now 5)", "out.json"))
        self.refused("eval", "copa", "-m", STORIES, "-t", "1", "--json", "out.json", "--resume", says="task")
        self.refused("eval", "ppl", "-m", STORIES, "-t", "1", "-f", TEXT, "--ctx", "256", "--json", "out.json", "--resume", says="task")
        self.refused(*base, "--json", self.write("x.json", "[]"), "--resume", says="x.json")
        self.refused(*base, "--json", self.write("y.json", "{"), "--resume", says="y.json")
        damaged = self.load("out.json")
        del damaged["rows"][0]["by_row"]["acc"]
        self.refused(*base, "--json", self.write("z.json", json.dumps(damaged)), "--resume", says="acc")


class LongBench(ProgramTest):
    def test_scores_every_dataset_of_the_file(self):
        rows = self.write("lb.jsonl", "".join(json.dumps(row) + "\n" for row in LONG))
        found = json.loads(self.output_of("eval", "longbench", rows, "-m", STORIES, "-t", "1", "--cache", "quant:bits=4", "--json", "-"))
        self.assertEqual([(row["task"], row["recipe"]) for row in found["rows"]],
                         [("trec", "full"), ("trec", "quant"), ("lcc", "full"), ("lcc", "quant")])
        self.assertEqual(found["length"], 512)
        for row in found["rows"]:
            self.assertLessEqual(row["tokens"], 512)  # the long prompt has lost its middle
            self.assertTrue(0 <= row["score"] <= 1)
        trec = found["samples"]["trec"][0]
        self.assertEqual(trec["answers"], ["Date"])
        named = [c for c in LONG[0]["all_classes"] if c in trec["texts"]["full"].lstrip("\n").split("\n")[0]]
        self.assertEqual(found["rows"][0]["score"], 1 / len(named) if "Date" in named else 0)

    def test_refuses(self):
        good = json.dumps(LONG[1]) + "\n"
        self.refused("eval", "longbench", "-m", STORIES, "-t", "1", says="FILE")
        self.refused("eval", "longbench", self.write("a.jsonl", good + '{"dataset": "lcc"}'), "-m", STORIES, says=("a.jsonl' line 2", "'input'"))
        other = self.write("b.jsonl", json.dumps({**LONG[1], "dataset": "dureader"}))
        self.refused("eval", "longbench", other, "-m", STORIES, "-t", "1", says=("dureader", "hotpotqa"))
        rows = self.write("c.jsonl", good)
        self.refused("eval", "longbench", rows, "-m", STORIES, "-t", "1", "--length", "4096", says=("--length", "512"))
        self.refused("eval", "longbench", rows, "-m", STORIES, "-t", "1", "--length", "100", says=("--length", "128"))


class Bench(ProgramTest):
    def test_rows_stand_under_the_roof(self):
        found = json.loads(self.output_of("bench", "-m", STORIES, "-t", "1", "--depth", "16,128", "--cache", "full", "--cache", "quant:bits=4",
                                          "--repeats", "6", "--json", "-"))
        self.assertGreater(found["memory_bytes_s"], 1e8)
        for row in found["rows"]:
            self.assertEqual(row["bytes_read_per_token"], found["weight_bytes"] + row["kv_bytes"])
            self.assertAlmostEqual(row["roofline"], row["read_bytes_s"] / found["memory_bytes_s"], places=9)
        length, = found["break_even"]
        self.assertEqual((length["recipe"], length["against"]), ("quant", "full"))

    def test_sequences_are_decoded_together(self):
        arguments = ("bench", "-m", STORIES, "-t", "1", "--depth", "32", "--repeats", "6", "--json", "-")
        one, four = (json.loads(self.output_of(*arguments, "--batch", n))["rows"][0] for n in ("1", "4"))
        self.assertEqual(four["kv_bytes"], 4 * one["kv_bytes"])
        self.assertEqual(four["kv_bytes_full"], 4 * one["kv_bytes_full"])
        self.assertGreater(four["decode_tok_s"], 0)
        peers = [json.loads(self.output_of(*arguments, "--batch", n, "--peer", "llama.cpp"))["rows"][1] for n in ("1", "3")]
        self.assertEqual([row["engine"] for row in peers], ["llama.cpp"] * 2)
        self.assertEqual(peers[1]["kv_bytes"], 3 * peers[0]["kv_bytes"])
        self.refused(*arguments, "--batch", "0", says="--batch")
