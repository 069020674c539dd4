# SPDX-License-Identifier: Apache-2.0
"""What the program keeps from one start to the next: designed codes and caches of prompts."""

import json
import os
import signal
import subprocess
import time

from program_support import PROGRAM, STORIES, ProgramTest, environment

RECIPE = "bands:bits=3,sink=16,recent=32"
TEXT = " ".join(f"Tom saw {n} birds and a cat." for n in range(30))


class KeptTest(ProgramTest):
    def calibrate(self):
        self.output_of("calibrate", "-m", STORIES, "--tokens", "2048", "--quick")

    def answer(self, *flags, text=TEXT):
        done = self.run_program("run", "-m", STORIES, "--raw", "-p", text, "-n", "12", "--temp", "0", "-t", "1",
                                "--json", "-", *flags)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout), done.stderr.decode()

    def codes(self):
        return list((self.folder / "cache/kvspan/codes").glob("*.codes"))

    def test_codes_are_designed_once_and_used_again(self):
        self.calibrate()
        first, _ = self.answer("--cache", RECIPE)
        (path,) = self.codes()
        written = path.stat().st_ino
        second, said = self.answer("--cache", RECIPE)
        self.assertEqual(path.stat().st_ino, written, "not written again")
        self.assertEqual(second["token_ids"], first["token_ids"])
        self.assertEqual(second["kv_bytes"], first["kv_bytes"])
        self.assertNotIn("anew", said)
        self.answer("--cache", "bands:bits=2,sink=16,recent=32")
        self.assertEqual(len(self.codes()), 2)
        listed = json.loads(self.output_of("cache", "list", "--json", "-"))
        self.assertEqual(sorted(f["kind"] for f in listed["files"]), ["calibration", "codes", "codes"])
        self.assertIn("codes: 2 files removed", self.output_of("cache", "clean"))
        self.assertEqual(self.codes(), [])

    def test_damaged_codes_are_made_anew_and_said(self):
        self.calibrate()
        first, _ = self.answer("--cache", RECIPE)
        (path,) = self.codes()
        whole = path.read_bytes()
        for damaged in (whole[:100], whole[:-20], whole[:900] + b"x" + whole[901:], b""):
            path.write_bytes(damaged)
            again, said = self.answer("--cache", RECIPE)
            self.assertIn(f"'{path}'", said)
            self.assertIn("designed anew", said)
            self.assertEqual(again["token_ids"], first["token_ids"])
            self.assertEqual(path.read_bytes(), whole)

    def test_another_calibration_makes_other_codes(self):
        self.calibrate()
        self.answer("--cache", RECIPE)
        (path,) = self.codes()
        before = path.read_bytes()
        self.output_of("calibrate", "-m", STORIES, "--tokens", "1024", "--quick")
        _, said = self.answer("--cache", RECIPE)
        self.assertNotIn("anew", said)
        self.assertEqual(self.codes(), [path])
        self.assertNotEqual(path.read_bytes(), before)

    def test_several_processes_at_once(self):
        self.calibrate()
        command = [PROGRAM, "run", "-m", str(STORIES), "--raw", "-p", TEXT, "-n", "4", "--temp", "0", "-t", "1",
                   "--cache", RECIPE]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env=environment(self.folder)) for _ in range(4)]
        outputs = {process.communicate(timeout=300)[0] for process in running}
        self.assertEqual([process.returncode for process in running], [0] * 4)
        self.assertEqual(len(outputs), 1)
        self.assertEqual(len(self.codes()), 1)

    def test_a_model_without_a_calibration_is_usable_at_once(self):
        numbers, said = self.answer()
        self.assertIn("calib=online", numbers["recipe"])
        self.assertRegex(said, r"has no calibration: the cache learns its code from the text")
        self.assertIn("kvspan calibrate --quick", said)

    def test_a_damaged_calibration_is_said_and_the_cache_is_full(self):
        self.calibrate()
        (path,) = (self.folder / "cache/kvspan/calibration").glob("*.gguf")
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        numbers, said = self.answer()
        self.assertEqual(numbers["recipe"], "full")
        self.assertIn(str(path), said)
        self.assertIn("kvspan calibrate", said)

    def test_a_prompt_is_read_once(self):
        for recipe in ("full", "bands:bits=3,calib=online,learn=64,sink=16,recent=32", "quant:bits=4"):
            path = self.folder / f"{recipe[:5]}.kv"
            plain, _ = self.answer("--cache", recipe)
            first, _ = self.answer("--cache", recipe, "--prompt-cache", path)
            self.assertEqual(first["read_tokens"], first["prompt_tokens"])
            before = path.stat().st_ino
            second, _ = self.answer("--cache", recipe, "--prompt-cache", path)
            self.assertEqual(second["read_tokens"], 1)
            self.assertEqual(path.stat().st_ino, before, "nothing new, nothing written")
            self.assertEqual(second["token_ids"], first["token_ids"], recipe)
            self.assertEqual(second["prompt_tokens"], plain["prompt_tokens"])
            # A text that begins alike takes that part.
            longer, _ = self.answer("--cache", recipe, "--prompt-cache", path, text=TEXT + " Then Tom")
            self.assertNotEqual(path.stat().st_ino, before)
            self.assertLess(longer["read_tokens"], longer["prompt_tokens"])

    def test_prompt_caches_of_something_else(self):
        path = self.folder / "p.kv"
        self.answer("--cache", "full", "--prompt-cache", path)
        _, said = self.answer("--cache", "quant:bits=4", "--prompt-cache", path)
        self.assertIn("of the recipe full", said)
        self.assertIn("made anew", said)
        data = path.read_bytes()
        path.write_bytes(data[:-9])
        _, said = self.answer("--cache", "quant:bits=4", "--prompt-cache", path)
        self.assertIn("made anew", said)
        _, said = self.answer("--cache", "quant:bits=4", "--prompt-cache", path)
        self.assertNotIn("anew", said)
        text = self.write("letter.txt", "Dear Tom")
        self.refused("run", "-m", STORIES, "-p", "Hi", "--cache", "full", "--prompt-cache", text, says="no prompt cache")
        self.assertEqual(text.read_text(), "Dear Tom")

    def test_killed_while_saving_it_is_the_old_or_the_new_one(self):
        path = self.folder / "p.kv"
        self.answer("--cache", "full", "--prompt-cache", path)
        old = path.read_bytes()
        command = [PROGRAM, "run", "-m", str(STORIES), "--raw", "-p", TEXT + " And", "-n", "1", "-t", "1",
                   "--cache", "full", "--prompt-cache", str(path)]
        for delay in range(0, 60, 6):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env=environment(self.folder))
            time.sleep(delay / 100)
            process.send_signal(signal.SIGKILL)
            process.wait()
            held = path.read_bytes()
            if held != old:
                _, said = self.answer("--cache", "full", "--prompt-cache", path, text=TEXT + " And")
                self.assertNotIn("anew", said)
                path.write_bytes(old)

    def test_a_conversation_goes_on_with_its_cache(self):
        path = self.folder / "talk.json"
        flags = ("chat", "-m", STORIES, "--temp", "0", "-n", "8", "-t", "1", "--cache", "full")
        first = self.run_program(*flags, "--resume", path, stdin=b"Once upon a time\n")
        self.assertEqual(first.returncode, 0, first.stderr.decode())
        self.assertTrue(os.path.exists(f"{path}.kv"))
        again = self.run_program(*flags, "--resume", path, stdin=b"Then she\n")
        self.assertEqual(again.returncode, 0, again.stderr.decode())
        self.assertIn("going on with 2 messages", again.stderr.decode())
        whole = self.run_program(*flags, stdin=b"Once upon a time\nThen she\n")
        self.assertTrue(whole.stdout.endswith(again.stdout), (whole.stdout, again.stdout))
        loaded = self.run_program(*flags, stdin=f"/load {path}\n/stats\n".encode())
        self.assertIn("loaded 4 messages", loaded.stderr.decode())


if __name__ == "__main__":
    import unittest
    unittest.main()
