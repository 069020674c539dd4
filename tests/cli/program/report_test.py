# SPDX-License-Identifier: Apache-2.0
"""kvspan report: one page from what other commands wrote; page, CSV and JSON agree. What JSON documents say of
themselves is tested here too, because reports rest on it."""

import csv
import html.parser
import json
import shutil

from program_support import STORIES, TREE, ProgramTest

TEXT = TREE / "data/text/tinystories_head.txt"
RESULTS = TREE / "docs/results"


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


class DocumentHead(ProgramTest):
    def test_every_command_says_what_it_was(self):
        found = json.loads(self.output_of("eval", "copa", "-m", STORIES, "--limit", "1", "--json", "-"))
        self.assertEqual(list(found)[:4], ["command", "arguments", "version", "machine"])
        self.assertEqual(found["command"], "eval copa")
        self.assertEqual(found["arguments"], ["eval", "copa", "-m", str(STORIES), "--limit", "1", "--json", "-"])
        self.assertTrue(found["version"].startswith("kvspan "))
        self.assertEqual(set(found["machine"]), {"cpu", "cores", "cpu_level", "system"})
        found = json.loads(self.output_of("info", "-m", STORIES, "--json", "-"))
        self.assertEqual((found["command"], found["arguments"][0]), ("info", "info"))
