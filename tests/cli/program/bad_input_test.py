# SPDX-License-Identifier: Apache-2.0
"""What a user can get wrong: always exit code 2 and one line."""

import subprocess

from program_support import PROGRAM, STORIES, TREE, ProgramTest, environment

GOOD = ["run", "-m", STORIES, "-p", "Once"]


class BadModel(ProgramTest):
    def test_no_such_file(self):
        for command in (["run", "-p", "x"], ["chat"], ["info"], ["tokenize", "x"]):
            self.refused(*command, "-m", "missing.gguf", says="missing.gguf")

    def test_a_folder_is_no_model(self):
        self.refused("run", "-p", "x", "-m", "./", says="./")

    def test_not_a_gguf_file(self):
        path = self.write("text.gguf", "this is no model, and longer than a header would be")
        self.refused("run", "-p", "x", "-m", path, says=["text.gguf", "GGUF"])
        self.refused("run", "-p", "x", "-m", self.write("empty.gguf", b""), says="empty.gguf")

    def test_truncated_files(self):
        whole = STORIES.read_bytes()
        for length in (30, 1000, 5000, 20000, len(whole) // 2, len(whole) - 1):
            path = self.write("cut.gguf", whole[:length])
            self.refused("run", "-p", "x", "-m", path, says="cut.gguf")

    def test_unsupported_architecture(self):
        whole = STORIES.read_bytes()
        at = whole.index(b"llama", whole.index(b"general.architecture"))
        path = self.write("bloom.gguf", whole[:at] + b"bloom" + whole[at + 5:])
        self.refused("run", "-p", "x", "-m", path, says=["bloom", "llama"])

    def test_unknown_name_gives_the_nearest(self):
        self.refused("run", "-p", "x", "-m", "smolm2", says="did you mean 'smollm2'?")
        self.refused("pull", "smolm2", says="did you mean 'smollm2'?")
        self.refused("run", "-p", "x", "-m", "xyz", says=["xyz", "smollm2", "gemma3"])
        self.refused("pull", "xyz", says=["xyz", "smollm2", "gemma3"])

    def test_a_model_not_fetched_yet_says_how(self):
        self.refused("run", "-p", "x", "-m", "gemma3", says="kvspan pull gemma3")
        self.refused("run", "-p", "x", says="kvspan pull smollm2")  # the default


class BadPrompt(ProgramTest):
    def test_empty(self):
        path = self.write("empty.txt", b"")
        self.refused("run", "-m", STORIES, "-p", "", says="empty")
        self.refused("run", "-m", STORIES, "-f", path, says=["empty.txt", "empty"])
        self.refused("run", "-m", STORIES, says="standard input is empty")
        self.refused("run", "-m", STORIES, stdin=b"\n", says="standard input is empty")

    def test_not_utf8(self):
        bad = b"abc\xff"
        path = self.write("bad.txt", bad)
        self.refused("run", "-m", STORIES, "-p", bad, says=["UTF-8", "byte 3", "0xff"])
        self.refused("run", "-m", STORIES, "-f", path, says=["bad.txt", "UTF-8", "byte 3"])
        self.refused("run", "-m", STORIES, stdin=bad, says=["standard input", "UTF-8", "byte 3"])
        self.refused("tokenize", "-m", STORIES, bad, says=["UTF-8", "byte 3"])
        self.refused("run", "-m", STORIES, "-p", "x", "--system", bad, says=["--system", "UTF-8"])
        self.refused("chat", "-m", STORIES, "--system", bad, says=["--system", "UTF-8"])

    def test_nul(self):
        self.refused("run", "-m", STORIES, stdin=b"a\0b", says=["NUL", "byte 1"])

    def test_no_such_prompt_file(self):
        self.refused("run", "-m", STORIES, "-f", "missing.txt", says="missing.txt")
        self.refused("run", "-m", STORIES, "-f", ".", says="'.'")

    def test_longer_than_the_context(self):
        self.refused("run", "-m", STORIES, "-p", "the cat and the dog " * 200, "--no-context-shift", says=["tokens", "holds 512"])
        self.refused(*GOOD, "-c", "1", "--no-context-shift", says=["2 tokens", "holds 1", "up to 512"])
        self.refused(*GOOD, "-c", "513", says=["--ctx-size", "513", "512"])

    def test_a_system_message_needs_a_template(self):
        self.refused(*GOOD, "--system", "Be kind.", says="--system")

    def test_two_prompts(self):
        self.refused(*GOOD, "-f", self.write("p.txt", "x"), says=["--file", "--prompt"])


class BadFlags(ProgramTest):
    def test_values_name_flag_and_range(self):
        for flag, value, allowed in [
                ("--temp", "warm", "0 to 100"), ("--temp", "-1", "0 to 100"), ("--temp", "nan", "0 to 100"),
                ("--top-k", "-1", "0 up"), ("--top-k", "2.5", "0 up"), ("--top-p", "1.5", "0.001 to 1"),
                ("--min-p", "2", "0 to 1"), ("--repeat-penalty", "0", "0.01 to 100"), ("-t", "0", "1 to 512"),
                ("-t", "many", "1 to 512"), ("-n", "-2", "-1 to"), ("-c", "-1", "0 to"), ("-s", "x", "-1 to"),
                ("--cpu-level", "mmx", "ref"), ("--mirostat", "3", "0 to 2"), ("--typical", "0", "0.001 to 1"),
                ("--xtc-probability", "2", "0 to 1"), ("--dry-base", "0", "1 to 100"),
                ("--presence-penalty", "1e9", "-100 to 100"), ("--draft", "0", "1 to 128")]:
            self.refused(*GOOD, flag, value, says=[value, allowed])

    def test_grammars_biases_adapters_and_templates_say_what_is_allowed(self):
        broken = self.write("broken.gbnf", "root ::= (")
        for flag, value, says in [
                ("--grammar", "root ::= (", ["--grammar", "expecting ')'", "GBNF"]),
                ("--grammar", "x ::= y", ["--grammar", "allowed"]),
                ("--grammar-file", broken, ["--grammar", "expecting ')'", "GBNF"]),
                ("--grammar-file", "missing.gbnf", ["--grammar-file", "missing.gbnf"]),
                ("--json-schema", "{", ["--json-schema", "JSON schema"]),
                ("--json-schema", '{"type": "thing"}', ["--json-schema", "thing"]),
                ("--json-schema-file", "missing.json", ["--json-schema-file", "missing.json"]),
                ("--logit-bias", "x+1", ["--logit-bias", "x+1", "15043+1"]),
                ("--logit-bias", "512+1", ["--logit-bias", "512", "0 to 511"]),
                ("--lora", "missing.gguf", ["missing.gguf", "LoRA"]),
                ("--lora", STORIES, ["stories260K.gguf", "LoRA"]),
                ("--lora-scaled", "a.gguf", ["--lora-scaled", "a.gguf", "FILE:SCALE"]),
                ("--chat-template", "chatmll", ["--chat-template", "did you mean 'chatml'?"]),
                ("--chat-template", "{{ x", ["--chat-template", "{{ x", "Jinja"]),
                ("--chat-template-file", "missing.jinja", ["--chat-template-file", "missing.jinja"]),
                ("--draft-model", "missing.gguf", ["missing.gguf"]),
                ("--draft-model", TREE / "data/fixtures/llama.gguf", ["llama.gguf", "vocabularies"])]:
            for command in (GOOD, ["chat", "-m", STORIES]):
                self.refused(*command, flag, value, says=says)
        self.refused(*GOOD, "--grammar", 'root ::= "a"', "-j", "{}", says=["--grammar", "--json-schema"])

    def test_a_value_that_is_missing(self):
        self.refused(*GOOD, "--temp", says="--temp")

    def test_unknown_flags_and_commands_give_the_nearest(self):
        self.refused(*GOOD, "--tmep", "1", says=["'--tmep'", "did you mean '--temp'?"])
        self.refused(*GOOD, "--zzz=1", says="'--zzz'")
        self.refused(*GOOD, "more", says="'more'")
        self.refused("rnu", says="did you mean 'run'?")
        self.refused("xyzzy", says=["'xyzzy'", "run, chat"])
        self.refused("--versoin", says="did you mean '--version'?")
        self.refused(says="no command")
        self.refused("completion", "csh", says=["csh", "bash, zsh, fish"])

    def test_recipes(self):
        for recipe in ("nonsense", "full:bits=2", "", "full:", "full+full"):
            text = self.refused(*GOOD, "--cache", recipe)
            self.assertNotIn("terminate", text)

    def test_a_folder_for_json_that_is_missing(self):
        self.refused(*GOOD, "--json", "missing/x.json", says=["--json", "missing"])
        self.refused(*GOOD, "--json", ".", says=["--json", "folder"])

    def test_import_of_what_is_no_model(self):
        self.refused("import", "missing", says="missing")
        self.refused("import", self.folder, says="config.json")
        self.refused("import", self.folder, "--outtype", "q9", says=["--outtype", "q9", "f16"])

    def test_a_demo_that_does_not_fit(self):
        self.refused("demo", "-m", STORIES, says=["tokens", "holds 512"])

    def test_data_folder_that_is_missing(self):
        env = {**environment(self.folder), "KVSPAN_DATA": "/missing"}
        done = subprocess.run([PROGRAM, "demo", "-m", STORIES], capture_output=True, env=env, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr.decode(), r"\Akvspan: KVSPAN_DATA names '/missing'[^\n]+\n\Z")
