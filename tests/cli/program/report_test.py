# SPDX-License-Identifier: Apache-2.0
"""kvspan report: one page from what other commands wrote; page, CSV and JSON agree. What JSON documents say of
themselves is tested here too, because reports rest on it."""

import csv
import html.parser
import json
import re
import shutil

from program_support import STORIES, TREE, ProgramTest

TEXT = TREE / "data/text/tinystories_head.txt"
RESULTS = TREE / "docs/results"
OWN_ROW = json.dumps({"prompt": "Once upon a", "target": " time"})


class Tables(html.parser.HTMLParser):
    """Tables by id: rows of cells, exact numbers where a cell carries one."""

    def __init__(self):
        super().__init__()
        self.tables, self.tags, self.rows, self.exact = {}, set(), None, None

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        if tag == "table":
            self.rows = self.tables[attributes["id"]] = []
        elif tag == "tr" and self.rows is not None:
            self.rows.append([])
        elif tag == "td":
            self.exact = attributes.get("data-value")
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] = self.exact if self.exact is not None else self.rows[-1][-1] + data

    def handle_endtag(self, tag):
        if tag == "td":
            self.exact = None
        elif tag == "tr" and self.rows is not None and self.rows[-1]:
            self.rows.append([])  # what stands between rows is of no cell
        elif tag == "table":
            self.tables = {name: [row for row in rows if row] for name, rows in self.tables.items()}
            self.rows = None


class Report(ProgramTest):
    def setUp(self):
        super().setUp()
        self.results = self.folder / "results"
        self.results.mkdir()

    def measure(self):
        model = ("-m", STORIES, "-t", "1")
        self.output_of("inspect", *model, "-f", TEXT, "--tokens", "1024", "--json", "results/inspect.json")
        self.output_of("eval", "ppl", *model, "-f", TEXT, "--ctx", "256", "--windows", "1", "--long",
                       "--cache", "quant:bits=2,sink=4,recent=8", "--cache", "streaming:size=64",
                       "--json", "results/ppl.json")
        self.output_of("eval", "piqa", *model, "--limit", "3", "--cache", "quant:bits=2,sink=1,recent=1",
                       "--json", "results/piqa.json")
        self.output_of("run", *model, "-p", "Once upon a time", "--raw", "-n", "40", "--temp", "0",
                       "--cache", "fd:certify=on,chunk=16,min_chunk=8,rk=2,rv=4,recent=8,sink=2",
                       "--track", "results/track.jsonl")
        shutil.copy(RESULTS / "bench_smollm2_neoverse_n1.json", self.results)

    def read(self, page):
        parser = Tables()
        parser.feed(page)
        return parser

    def test_page_csv_and_json_agree(self):
        self.measure()
        out = self.output_of("report", "results")
        self.assertIn("report.html", out)
        page = (self.results / "report.html").read_text()
        self.assertLess(len(page.encode()), 2_000_000)
        parsed = self.read(page)
        self.assertFalse(parsed.tags & {"script", "link", "iframe", "img", "object"})
        self.assertNotIn("://", page)
        found = json.loads((self.results / "report.json").read_text())
        self.assertEqual([section["id"] for section in found["sections"]],
                         ["quality", "tasks", "speed", "spectra", "bounds", "sources"])
        lines = {}
        with open(self.results / "report.csv", newline="") as file:
            for line in csv.DictReader(file):
                lines[line["table"], int(line["row"]), line["column"], line["unit"]] = line["value"]
        numbers = 0
        for section in found["sections"]:
            for table in section["tables"]:
                on_page = parsed.tables[table["id"]]
                self.assertGreaterEqual(len(on_page), min(len(table["rows"]), 5), table["id"])
                for i, row in enumerate(table["rows"]):
                    for column, value, in zip(table["columns"], row):
                        key = table["id"], i, column["title"], column["unit"]
                        if value is None:
                            self.assertNotIn(key, lines)
                        elif isinstance(value, str):
                            self.assertEqual(lines[key], value)
                        else:
                            numbers += 1
                            self.assertEqual(float(lines[key]), value)
                for row, wanted in zip(on_page, table["rows"]):
                    for cell, value in zip(row, wanted):
                        if isinstance(value, (int, float)):
                            self.assertEqual(float(cell), value)
        self.assertGreater(numbers, 1000)

    def test_holds_the_numbers_that_were_measured(self):
        self.measure()
        self.output_of("report", "results", "-o", "page.html")
        found = json.loads((self.folder / "report.json").read_text())
        tables = {table["id"]: table for section in found["sections"] for table in section["tables"]}
        measured = json.loads((self.results / "ppl.json").read_text())
        table = tables["quality-ppl-json"]
        titles = [column["title"] for column in table["columns"]]
        for row, wanted in zip(table["rows"], measured["rows"], strict=True):
            for title, key in (("recipe", "recipe"), ("KL", "kl"), ("perplexity", "ppl"), ("KV cache", "kv_bytes")):
                self.assertEqual(row[titles.index(title)], wanted[key])
        sources = {row[0]: row for row in tables["sources"]["rows"]}
        self.assertEqual(sources["ppl.json"][1], "eval ppl")
        self.assertTrue(sources["ppl.json"][2].startswith("kvspan eval ppl -m "))
        self.assertEqual(sources["bench_smollm2_neoverse_n1.json"][1], "bench")  # which does not say so itself
        page = (self.folder / "page.html").read_text()
        self.assertIn("viewBox=\"0 0 360 ", page)

    def test_a_second_report_leaves_out_the_first(self):
        shutil.copy(RESULTS / "ppl_smollm2_neoverse_n1.json", self.results)
        self.output_of("report", "results")
        first = (self.results / "report.html").read_bytes()
        done = self.run_program("report", "results")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual((self.results / "report.html").read_bytes(), first)

    def test_names_what_it_leaves_out(self):
        shutil.copy(RESULTS / "verify_smollm2_f32_weights.json", self.results)
        (self.results / "broken.json").write_text("{\"rows\": [")
        (self.results / "mine.json").write_text("{\"a\": \"<script>\"}")
        (self.results / "odd.json").write_text("{\"command\": \"bench\", \"rows\": 3}")
        done = self.run_program("report", "results")
        self.assertEqual(done.returncode, 0)
        page = (self.results / "report.html").read_text()
        for name in ("broken.json", "mine.json", "odd.json"):
            self.assertIn(name, done.stderr.decode())
            self.assertIn(name, page)
        self.assertNotIn("<script", page)

    def test_refuses(self):
        self.refused("report", "results", says="no .json")
        self.refused("report", "nowhere", says="nowhere")
        self.refused("report", says="folder")
        (self.results / "mine.json").write_text("[1]")
        self.refused("report", "results", says=("nothing to report", "mine.json"))
        shutil.copy(RESULTS / "verify_smollm2_f32_weights.json", self.results)
        self.refused("report", "results", "-o", "nowhere/page.html", says="nowhere")


class Kinds(ProgramTest):
    """Every kind of `eval` has a table and a chart; runs on one model and text are drawn together."""

    def test_every_task_is_on_the_page(self):
        (self.folder / "results").mkdir()
        row = {"dataset": "trec", "input": "Question: How far?\nType:", "context": "Question: When?\nType: Date\n", "answers": ["Date"],
               "all_classes": ["Date", "Number"]}
        data = {"longbench": [self.write("rows.jsonl", json.dumps(row))], "jsonl": ["--data", self.write("own.jsonl", OWN_ROW)],
                "passkey": ["--length", "256"], "kvlookup": ["--length", "400"],
                "ruler": ["--tasks", "niah_single_1,niah_multikey_2", "--length", "512"], "lambada": [], "winogrande": []}
        for task, arguments in data.items():
            self.output_of("eval", task, *arguments, "-m", STORIES, "-t", "1", "--limit", "1", "--cache", "quant:bits=2,sink=1,recent=1",
                           "--json", f"results/{task}.json")
        self.output_of("report", "results")
        tables = json.loads((self.folder / "results/report.json").read_text())["sections"][0]["tables"]
        self.assertEqual([table["source"] for table in tables], sorted(f"{task}.json" for task in data))
        page = (self.folder / "results/report.html").read_text()
        for table in tables:
            measured = json.loads((self.folder / "results" / table["source"]).read_text())["rows"]
            titles = [column["title"] for column in table["columns"]]
            for line in table["rows"]:
                cells = dict(zip(titles, line))
                (own,) = [r for r in measured if (r["task"], r["recipe"]) == (cells["task"], cells["recipe"])]
                self.assertEqual(cells["value"], own[cells["metric"]])
                self.assertIn(f'data-group="{cells["task"]}" data-series="{cells["recipe"]}"', page)

    def test_runs_with_other_weights_are_drawn_together(self):
        (self.folder / "results").mkdir()
        base = ("eval", "ppl", "-m", STORIES, "-t", "1", "--ctx", "128", "--windows", "1", "--block", "16", "-f")
        other = self.write("other.txt", TEXT.read_text()[50:])
        self.output_of(*base, TEXT, "--cache", "quant:bits=4,sink=1,recent=8", "--json", "results/a.json")
        self.output_of(*base, TEXT, "--weights", "f16", "--cache", "quant:bits=2,sink=1,recent=8", "--json", "results/b.json")
        self.output_of(*base, other, "--cache", "quant:bits=3,sink=1,recent=8", "--json", "results/c.json")
        said = self.output_of("report", "results", "--svg", "q.svg")
        self.assertIn("q.svg: a.json, b.json\n", said)
        self.assertRegex(said, r"not drawn, [^\n]+: c\.json\n")
        self.assertEqual(sorted(p.name for p in (self.folder / "results").iterdir()), ["a.json", "b.json", "c.json"])
        svg = (self.folder / "q.svg").read_text()
        for name, there in (("a", True), ("b", True), ("c", False)):
            kl = json.loads((self.folder / f"results/{name}.json").read_text())["rows"][1]["kl"]
            self.assertEqual(kl in [float(y) for y in re.findall(r'data-y="([^"]+)"', svg)], there, name)
        self.assertIn("quant [1]", svg)
        self.assertIn("[2] b.json: weights f16", svg)
        self.output_of("report", "results")
        tables = json.loads((self.folder / "results/report.json").read_text())["sections"][0]["tables"]
        self.assertEqual([table["id"] for table in tables][:2], ["quality-joined-1", "quality-a-json"])
        (self.folder / "results/a.json").unlink()
        self.refused("report", "results", "--svg", "q.svg", says=("--svg", "b.json", "c.json"))
        self.refused("report", "results", "--svg", "q.svg", "-o", "p.html", says="--svg")


class DocumentHead(ProgramTest):
    def test_every_command_says_what_it_was(self):
        found = json.loads(self.output_of("eval", "copa", "-m", STORIES, "--limit", "1", "--json", "-"))
        self.assertEqual(list(found)[:5], ["command", "arguments", "version", "date", "machine"])
        self.assertEqual(found["command"], "eval copa")
        self.assertEqual(found["arguments"], ["eval", "copa", "-m", str(STORIES), "--limit", "1", "--json", "-"])
        self.assertTrue(found["version"].startswith("kvspan "))
        self.assertEqual(set(found["machine"]), {"cpu", "cores", "cpu_level", "system"})
        found = json.loads(self.output_of("info", "-m", STORIES, "--json", "-"))
        self.assertEqual((found["command"], found["arguments"][0]), ("info", "info"))
