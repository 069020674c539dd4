# SPDX-License-Identifier: Apache-2.0
"""What people who run models are used to: flags of llama.cpp, how much is said, how a program ends."""

import json
import os
import re
import signal
import subprocess

from program_support import PROGRAM, STORIES, STORY, TREE, ProgramTest, environment, model_with_template

START = "Once upon a time"
REST = STORY[len(" " + START):]


class Flags(ProgramTest):
    def answer(self, *flags, model=STORIES):
        return json.loads(self.output_of("run", "-m", model, "-p", START, "-n", "8", "--temp", "0", "-t", "1", "--json", "-",
                                         *flags))

    def test_types_of_the_cache_are_recipes(self):
        for flags, recipe in ((("-ctk", "q8_0", "-ctv", "q8_0"), "quant:bits=8"), (("-ctk=q4_0", "-ctv=q4_0"), "quant:bits=4"),
                              (("-ctk", "q8_0", "-ctv", "q4_0"), "quant:kbits=8,vbits=4"),
                              (("-ctk", "f16", "-ctv", "f16"), "full"), (("--cache-type-k", "f16"), "full")):
            self.assertEqual(self.answer(*flags)["recipe"], self.answer("--cache", recipe)["recipe"])
        self.refused("run", "-m", STORIES, "-p", START, "-ctk", "q5_1", says=["cache-type-k", "q5_1", "f16, q8_0, q4_0"])
        self.refused("run", "-m", STORIES, "-p", START, "-ctk", "q8_0", says=["--cache-type-v f16", "allowed"])
        self.refused("run", "-m", STORIES, "-p", START, "-ctk", "f16", "--cache", "full", says="--cache")

    def test_flags_that_change_nothing_are_taken(self):
        plain = self.answer()["text"]
        for flags in (("-fa",), ("-fa", "on"), ("-fa", "off"), ("-ngl", "0")):
            self.assertEqual(self.answer(*flags)["text"], plain)
        done = self.run_program("run", "-m", STORIES, "-p", START, "-n", "8", "--temp", "0", "-ngl", "99")
        self.assertEqual(done.stdout.decode(), plain + "\n")
        self.assertIn(b"kvspan: -ngl 99: this was built without a GPU's library", done.stderr)
        self.refused("run", "-m", STORIES, "-p", START, "-ngl", "many", says=["'many'", "all, auto"])
        for command in (("run", "-p", START), ("bench",), ("eval", "ppl")):
            self.refused(*command, "-m", STORIES, "--device", "cuda", says=["--device cuda", "-DKVSPAN_CUDA=ON"])
            self.refused(*command, "-m", STORIES, "--device", "tpu", says=["'tpu'", "cpu, cuda"])
        self.refused("run", "-m", STORIES, "-p", START, "--device", "cpu", "-ngl", "9", says=["-ngl 9", "-ngl 0"])

    def test_a_value_that_looks_like_a_flag_stays_a_value(self):
        self.assertEqual(self.output_of("run", "-m", STORIES, "-n", "0", "--json", "-", "-p", "-ngl").count('"-ngl"'), 1)

    def test_system_message_and_no_conversation(self):
        model = model_with_template(self.folder / "chat.gguf")
        self.assertEqual(self.answer("-sys", "Be kind.", model=model)["prompt_tokens"],
                         self.answer("--system", "Be kind.", model=model)["prompt_tokens"])
        self.assertEqual(self.answer("-no-cnv", model=model)["prompt_tokens"], 5)

    def test_unknown_flags_are_answered_with_the_nearest(self):
        for typed, nearest in (("-hg", "-hf"), ("--n-gpu-layer", "--n-gpu-layers"), ("--rope-scal", "--rope-scale"),
                               ("-nogl", "-ngl"), ("--ignore-eof", "--ignore-eos")):
            self.refused("run", "-m", STORIES, typed, "1", says=f"did you mean '{nearest}'?")

    def test_a_prompt_longer_than_the_context_is_read_without_its_middle(self):
        words = " ".join(["the cat and the dog"] * 200)
        done = self.run_program("run", "-m", STORIES, "-p", words, "-n", "8", "--temp", "0", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr.decode(), r"kvspan: the prompt has \d+ tokens, the context holds 512: \d+ from its middle are left out\n")
        self.assertEqual(json.loads(done.stdout)["prompt_tokens"], 504)
        self.refused("run", "-m", STORIES, "-p", words, "--no-context-shift", "--cache", "full", says="the context holds 512")

    def test_an_answer_longer_than_the_context_goes_on(self):
        numbers = self.answer("-c", "32", "-n", "100", "--ignore-eos")
        self.assertEqual((numbers["tokens"], numbers["stop"]), (100, "length"))
        self.assertLessEqual(numbers["cache_tokens"], 32)
        self.assertEqual(self.answer("-c", "32", "-n", "100", "--ignore-eos", "--no-context-shift")["stop"], "context full")

    def test_a_longer_context_needs_rope(self):
        self.refused("run", "-m", STORIES, "-p", START, "-c", "1024", says=["exceeds the model's context of 512", "--rope-scaling"])
        words = " ".join(["the cat and the dog"] * 90)
        for scaling in ("linear", "yarn"):
            numbers = json.loads(self.output_of("run", "-m", STORIES, "-p", words, "-n", "4", "--json", "-", "-c", "1024",
                                                "--rope-scaling", scaling))
            self.assertGreater(numbers["prompt_tokens"], 512)
        self.refused("run", "-m", STORIES, "-p", START, "--rope-scaling", "long", says=["'long'", "none, linear, yarn"])


class Voice(ProgramTest):
    def test_quiet_and_verbose(self):
        run = ("run", "-m", STORIES, "-p", START, "-n", "56", "--temp", "0", "-t", "1")
        quiet = self.run_program(*run, "-q")
        self.assertEqual((quiet.stdout.decode(), quiet.stderr), (REST + "\n", b""))
        verbose = self.run_program(*run, "-v")
        self.assertEqual(verbose.stdout.decode(), REST + "\n")
        self.assertIn(b"llama_model_loader", verbose.stderr)
        self.assertNotIn(b"llama_model_loader", self.run_program(*run).stderr)

    def test_where_a_code_comes_from_is_said_only_to_who_asks(self):
        self.output_of("calibrate", "-m", STORIES, "-f", TREE / "data/text/tinystories_head.txt", "--tokens", "2048", "-t", "1")
        run = ("run", "-m", STORIES, "-p", START, "-n", "4", "-t", "1", "--cache", "bands:bits=2")
        self.assertNotIn(b": code ", self.run_program(*run).stderr)
        self.assertIn(b": code ", self.run_program(*run, "-v").stderr)

    def test_progress_as_lines_a_bar_or_nothing(self):
        bench = ("bench", "-m", STORIES, "--depth", "16", "--cache", "full", "--repeats", "1", "-t", "1")
        self.refused(*bench, "--progress", "dots", says=["'dots'", "bar, plain, none"])
        for style in ("bar", "plain", "none"):
            done = self.run_program(*bench, "--progress", style)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(b"\x1b[K", done.stderr)


class Endings(ProgramTest):
    def test_a_full_device_is_named(self):
        for command in (("run", "-p", START), ("chat", "-p", START)):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, *command, "-m", STORIES, "-n", "400", "-t", "1"], stdout=full, timeout=60,
                                      stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=self.folder,
                                      env=environment(self.folder))
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stderr.count(b"cannot write to standard output: No space left on device\n"), 1, done.stderr)

    def test_sigterm_exits_143(self):
        process = subprocess.Popen([PROGRAM, "run", "-m", STORIES, "-p", START, "-n", "100000", "--ignore-eos", "-t", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder, env=environment(self.folder))
        process.stdout.read(1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 143)

    def test_no_home_is_fine_for_a_path(self):
        bare = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_CACHE_HOME")}
        for model in (STORIES, "stories260k"):
            done = subprocess.run([PROGRAM, "run", "-m", str(model), "-p", START, "-n", "56", "--temp", "0", "-t", "1"],
                                  capture_output=True, text=True, timeout=60, cwd=self.folder, env=bare)
            self.assertEqual((done.returncode, done.stdout), (0, REST + "\n"), done.stderr)

    def test_a_damaged_calibration_is_told_and_the_answer_is_given(self):
        self.output_of("calibrate", "-m", STORIES, "-f", TREE / "data/text/tinystories_head.txt", "--tokens", "2048", "-t", "1")
        file = next((self.folder / "cache/kvspan/calibration").glob("*.gguf"))
        file.write_bytes(file.read_bytes()[:-1000])
        done = self.run_program("run", "-m", STORIES, "-p", START, "-n", "56", "--temp", "0", "-t", "1")
        self.assertEqual((done.returncode, done.stdout.decode()), (0, REST + "\n"), done.stderr)
        self.assertRegex(done.stderr.decode(), rf"kvspan: calibration '{re.escape(str(file))}'.*the cache is full rank, `kvspan calibrate` makes it anew\n")
        self.refused("run", "-m", STORIES, "-p", START, "--cache", "bands:bits=2", says=[str(file), "kvspan calibrate"])
        self.output_of("calibrate", "-m", STORIES, "-f", TREE / "data/text/tinystories_head.txt", "--tokens", "2048", "-t", "1")
        self.output_of("run", "-m", STORIES, "-p", START, "-n", "4", "-t", "1", "--cache", "bands:bits=2")

    def test_what_a_killed_save_left_is_removed_by_the_next(self):
        dead = subprocess.Popen(["true"])
        dead.wait()
        left = self.write(f"out.json.{dead.pid}-0.tmp", "half")
        other = self.write(f"other.json.{dead.pid}-0.tmp", "half")
        living = self.write(f"out.json.{os.getpid()}-0.tmp", "half")
        for path in (left, other, living):
            os.utime(path, (1, 1))
        self.output_of("run", "-m", STORIES, "-p", START, "-n", "1", "-t", "1", "--json", "out.json")
        self.assertFalse(left.exists())
        self.assertTrue(other.exists() and living.exists())

    def test_defaults_fit_a_small_context(self):
        text = TREE / "data/text/tinystories_head.txt"
        self.output_of("eval", "ppl", "-m", STORIES, "-f", text, "--windows", "1", "-t", "1", "--cache", "quant:bits=4")
        self.output_of("bench", "-m", STORIES, "-t", "1", "--cache", "full", "--repeats", "1")

    def test_a_short_text_that_saves_nothing_is_explained(self):
        done = self.run_program("run", "-m", STORIES, "-p", START, "-n", "4", "-t", "1", "--cache", "quant:bits=4")
        self.assertRegex(done.stderr.decode(), r"KV [\d.]+ .iB \(nothing saved yet: \d+ tokens\)")
