# SPDX-License-Identifier: Apache-2.0
"""kvspan run, info, pull, --version, --help."""

import json
import re
import signal
import subprocess

from program_support import PROGRAM, STORIES, STORY, TREE, ProgramTest, environment, model_with_template

START = "Once upon a time"
REST = STORY[len(" " + START):]


class Run(ProgramTest):
    def greedy(self, *more, model=STORIES, **options):
        return self.output_of("run", "-m", model, "--temp", "0", *more, **options)

    def test_greedy_text_is_the_known_one(self):
        # 60 tokens make STORY; four of them are the prompt here.
        self.assertEqual(self.greedy("-p", START, "-n", "56"), REST + "\n")

    def test_a_bundled_model_has_a_name(self):
        self.assertEqual(self.greedy("-p", START, "-n", "56", model="stories260k"), REST + "\n")

    def test_prompt_from_file_and_standard_input_is_the_same(self):
        path = self.write("prompt.txt", START + "\n")
        for source in (["-f", path], ["-f", "-"], ["-f", "/dev/stdin"], []):
            self.assertEqual(self.greedy("-n", "56", *source, stdin=(START + "\n").encode()), REST + "\n")

    def test_threads_and_cpu_level_do_not_change_the_text(self):
        for flags in (["-t", "1"], ["-t", "3"], ["--cpu-level", "ref"]):
            self.assertEqual(self.greedy("-p", START, "-n", "56", *flags), REST + "\n")

    def test_a_stop_string_ends_the_answer_and_is_left_out(self):
        text = self.greedy("-p", START, "--stop", "nothing", "--stop", " One day")
        self.assertEqual(text, REST[:REST.index(" One day")] + "\n")

    def test_the_same_seed_gives_the_same_text(self):
        texts = [self.output_of("run", "-m", STORIES, "-p", START, "-n", "40", "-s", seed) for seed in "112"]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_context_limits_the_answer(self):
        self.greedy("-p", START, "-c", "32", "-n", "-1", "--json", "x.json")
        numbers = json.loads((self.folder / "x.json").read_text())
        self.assertEqual((numbers["stop"], numbers["cache_tokens"]), ("context full", 32))

    def test_track_writes_errors_and_bounds_of_every_layer_and_step(self):
        recipe = "quant:bits=4,group=16,sink=4,recent=8,certify=on"
        text = self.greedy("-p", START * 20, "--cache", recipe, "-n", "8", "--track", "errors.jsonl")
        lines = [json.loads(line) for line in (self.folder / "errors.jsonl").read_text().splitlines()]
        steps = {line["position"] for line in lines}
        self.assertEqual(len(lines), 5 * len(steps))  # five layers
        self.assertGreaterEqual(len(steps), 7)
        self.assertTrue(any(line["logit_error"] > 1e-3 for line in lines))
        for line in lines:
            self.assertLessEqual(line["logit_error"], line["logit_bound"])
            self.assertLessEqual(line["output_error"], line["output_bound"])
            self.assertEqual(line["read"], line["tokens"])
            self.assertLessEqual(abs(line["attention_correlation"]), 1.0 + 1e-9)
            self.assertTrue(0.0 <= line["top10_overlap"] <= 1.0)
        # Watching changes nothing.
        self.assertEqual(text, self.greedy("-p", START * 20, "--cache", recipe, "-n", "8"))
        done = self.run_program("run", "-m", STORIES, "-p", START, "--track", "-")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"--track", done.stderr)

    def test_json_has_all_numbers_and_the_text(self):
        done = self.run_program("run", "-m", STORIES, "-p", START, "--temp", "0", "-n", "56", "--cache", "full", "--json", "-")
        self.assertEqual(done.returncode, 0)
        numbers = json.loads(done.stdout)
        self.assertEqual(numbers["text"], REST)
        self.assertEqual(numbers["recipe"], "full")
        self.assertEqual(numbers["tokens"], 56)
        self.assertEqual(numbers["prompt_tokens"], 5)
        self.assertEqual(numbers["stop"], "length")
        # 5 layers, 4 KV heads of 8, keys and values, two bytes each; the last token is not stored.
        self.assertEqual(numbers["kv_bytes_full"], 60 * 5 * 4 * 8 * 2 * 2)
        self.assertGreaterEqual(numbers["kv_bytes"], numbers["kv_bytes_full"])
        self.assertAlmostEqual(numbers["kv_ratio"], numbers["kv_bytes_full"] / numbers["kv_bytes"])
        self.assertGreater(numbers["prefill_tok_s"], 0)
        self.assertGreater(numbers["decode_tok_s"], 0)
        self.assertRegex(done.stderr.decode(), r"\A5 \+ 56 tokens \| prefill .* tok/s \| .* \| full \| length\n\Z")

    def test_the_chat_template_is_used_unless_raw(self):
        model = model_with_template(self.folder / "chat.gguf")
        counts = {}
        for name, flags in {"chat": [], "raw": ["--raw"], "system": ["--system", "Be kind."]}.items():
            text = self.output_of("run", "-m", model, "-p", START, "-n", "1", "--json", "-", *flags)
            counts[name] = json.loads(text)["prompt_tokens"]
        self.assertEqual(counts["raw"], 5)
        self.assertGreater(counts["chat"], counts["raw"] + 10)
        self.assertGreater(counts["system"], counts["chat"] + 10)

    def test_a_grammar_and_a_schema_hold_the_answer(self):
        self.assertRegex(self.greedy("-p", START, "--grammar", 'root ::= "yes" | "no"'), r"\A(yes|no)\n\Z")
        path = self.write("number.gbnf", "root ::= [0-9]{3}\n")
        self.assertRegex(self.greedy("-p", START, "--grammar-file", path), r"\A[0-9]{3}\n\Z")
        schema = {"type": "object", "properties": {"name": {"enum": ["Tim", "Lily"]}}, "required": ["name"]}
        for flag, value in (("-j", json.dumps(schema)), ("--json-schema-file", self.write("s.json", json.dumps(schema)))):
            self.assertIn(json.loads(self.greedy("-p", START, flag, value))["name"], ("Tim", "Lily"))

    # A draft's tokens are read together, and products of several tokens are rounded unlike those of one: a sampled answer goes
    # another way where the draw falls between the two, which is seldom.
    def test_a_draft_changes_the_numbers_only(self):
        same = []
        for flags in (["--temp", "0"], *(["--temp", "1", "-s", seed] for seed in ("3", "4", "5"))):
            both = [json.loads(self.output_of("run", "-m", STORIES, "-p", START, "-n", "56", "--json", "-", *flags, *draft))
                    for draft in ([], ["--draft-model", "stories260k", "--draft", "5"])]
            same.append(both[0]["token_ids"] == both[1]["token_ids"])
            self.assertEqual(both[0]["cache_tokens"], both[1]["cache_tokens"])
            self.assertNotIn("draft_tokens", both[0])
            self.assertGreaterEqual(both[1]["draft_tokens"], both[1]["draft_accepted"])
            self.assertGreater(both[1]["draft_accepted"], 0)
        self.assertTrue(same[0])
        self.assertGreaterEqual(sum(same[1:]), 2)

    def test_another_chat_template(self):
        path = self.write("plain.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}")
        self.assertEqual(self.greedy("-p", START, "-n", "56", "--chat-template-file", path), REST + "\n")
        self.assertNotEqual(self.greedy("-p", START, "-n", "56", "--chat-template", "chatml"), REST + "\n")

    def test_an_interrupted_answer_is_reported_and_exits_130(self):
        # Starts over at every end of a story, so that it runs until interrupted.
        process = subprocess.Popen([PROGRAM, "run", "-m", STORIES, "-p", START, "-n", "400", "--temp", "1.5",
                                    "--cpu-level", "ref", "-t", "1", "--json", "x.json", "--cache", "full"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder,
                                   env=environment(self.folder))
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(errors.decode(), r"\A5 \+ \d+ tokens .* \| cancelled\n\Z")
        self.assertEqual(json.loads((self.folder / "x.json").read_text())["stop"], "cancelled")


class Others(ProgramTest):
    def test_info_counts_the_bytes_of_a_token(self):
        numbers = json.loads(self.output_of("info", "-m", STORIES, "--json", "-"))
        self.assertEqual(numbers["architecture"], "llama")
        self.assertEqual((numbers["layers"], numbers["query_heads"], numbers["kv_heads"]), (5, 8, 4))
        self.assertEqual((numbers["key_dim"], numbers["context"]), (8, 512))
        self.assertEqual(numbers["kv_bytes_token"], 640)
        self.assertEqual(numbers["file_bytes"], STORIES.stat().st_size)
        self.assertRegex(self.output_of("info", "-m", STORIES), "KV in f16 +640 bytes a token, 320.0 KiB")

    def test_demo_answers_and_compares(self):
        (self.folder / "data/demo").mkdir(parents=True)
        self.write("data/demo/text.txt", "Once upon a time there was a dog.\n")
        self.write("data/demo/question.txt", "What was there?\n")
        for name in ("text/calibration.txt", "calibration/layer_weights.json"):
            (self.folder / "data" / name).parent.mkdir(exist_ok=True)
            (self.folder / "data" / name).symlink_to(TREE / "data" / name)
        env = {**environment(self.folder), "KVSPAN_DATA": str(self.folder / "data")}
        done = subprocess.run([PROGRAM, "demo", "-m", STORIES, "-n", "5", "--json", "demo.json"], capture_output=True,
                              text=True, env=env, cwd=self.folder, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        numbers = json.loads((self.folder / "demo.json").read_text())
        self.assertEqual(numbers["question"], "What was there?")
        self.assertEqual(numbers["rows"][0]["recipe"], "full")
        self.assertEqual(numbers["rows"][0]["tokens"], 5)
        # The text is read once, for both caches.
        self.assertEqual([row["recipe"] for row in numbers["rows"]], ["full", "bands:bits=1.77,ends=int8"])
        self.assertEqual(numbers["rows"][0]["cache_tokens"], numbers["rows"][1]["cache_tokens"])
        self.assertEqual(numbers["rows"][1]["read_tokens"], 1)
        # One row for each family; the calibration that most of them need is made on the way.
        families = [row["recipe"].split(":")[0] for row in numbers["families"]]
        self.assertEqual(families, ["full", "quant", "bands", "spectral", "streaming", "static", "fd", "oja"])
        self.assertEqual(numbers["families"][0]["text"], numbers["rows"][0]["text"])
        self.assertIn("has no calibration yet", done.stderr)
        self.assertRegex(done.stdout, r"recipe +KV +f16 / KV +tok/s +answer\n(-+ +)+-+\nfull ")
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)
        self.assertRegex(done.stdout.splitlines()[-1], "^Next: kvspan ")

    def test_pull_lists_models_with_licence_and_presence(self):
        rows = {row["name"]: row for row in json.loads(self.output_of("pull", "--json", "-"))}
        self.assertTrue(rows["stories260k"]["present"])
        self.assertFalse(rows["smollm2"]["present"])  # the test's cache folder is empty
        self.assertEqual(rows["smollm2"]["licence"], "Apache-2.0")
        self.assertRegex(self.output_of("pull"), r"smollm2 .* 93\.8 MiB +Apache-2\.0 +no\n")
        self.assertEqual(self.output_of("pull", "stories260k").strip(), rows["stories260k"]["path"])

    def test_version_names_what_it_was_built_with(self):
        self.assertRegex(self.output_of("--version"),
                         r"\Akvspan \d+\.\d+\.\d+.*\nggml and libllama from llama-cpp-python \d.*\nCPU level [\w-]+ ")

    def test_every_command_has_help_with_examples(self):
        commands = re.findall(r"^  (\w+) ", self.output_of("--help").split("Subcommands:")[1].split("Examples:")[0],
                              re.MULTILINE)
        self.assertIn("run", commands)
        for command in commands:
            text = self.output_of(command, "--help")
            examples = re.findall(r"^  .*\bkvspan " + command + r"\b", text.split("Examples:")[1], re.MULTILINE)
            self.assertGreaterEqual(len(examples), 2, command)

    def test_results_that_cannot_be_written_are_a_failure(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "--version"], stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"\Akvspan: cannot write to standard output: [^\n]+\n\Z")
