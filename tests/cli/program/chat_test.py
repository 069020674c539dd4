# SPDX-License-Identifier: Apache-2.0
"""kvspan chat, through a pipe and on a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

from program_support import PROGRAM, STORIES, STORY, ProgramTest, environment, model_with_template

START = "Once upon a time"


class Piped(ProgramTest):
    def chat(self, lines, *flags, model=STORIES):
        return self.run_program("chat", "-m", model, "--temp", "0", *flags, stdin="".join(f"{l}\n" for l in lines).encode())

    def test_the_cache_keeps_the_conversation(self):
        done = self.chat([START, " Then", "/stats"], "-n", "20")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.decode().startswith(STORY[len(" " + START):][:40]))
        errors = done.stderr.decode()
        self.assertRegex(errors, r"(?m)^5 \+ 20 tokens ")
        # BOS, four words, 20 of the answer, then the new message; the answer's last token is read now.
        read = re.search(r"(?m)^(\d+) \((\d+) read\) \+ 20 tokens ", errors)
        self.assertIsNotNone(read, errors)
        self.assertEqual(int(read[1]) - int(read[2]), 24)
        self.assertRegex(errors, r"(?m)^4 messages \| \S+ \| \d+ of 512 tokens \| KV ")

    def test_a_template_does_not_hinder_it(self):
        model = model_with_template(self.folder / "chat.gguf")
        done = self.chat(["Hi", "Go on"], "-n", "8", "--system", "Be kind.", model=model)
        read = re.search(r"(?m)^(\d+) \((\d+) read\) \+ 8 tokens ", done.stderr.decode())
        self.assertIsNotNone(read, done.stderr)
        self.assertLess(int(read[2]), int(read[1]) // 2)

    def test_every_answer_follows_the_grammar(self):
        done = self.chat([START, "Then", "/regen"], "--grammar", 'root ::= "yes" | "no"')
        self.assertRegex(done.stdout.decode(), r"\A((yes|no)\n){3}\Z")

    def test_a_draft_goes_on_from_turn_to_turn(self):
        talk = [START, " Then", "/regen", "/clear", START]
        plain = self.chat(talk, "-n", "20")
        drafted = self.chat(talk, "-n", "20", "--draft-model", "stories260k")
        self.assertEqual(drafted.returncode, 0, drafted.stderr)
        self.assertEqual(drafted.stdout, plain.stdout)
        self.assertRegex(drafted.stderr.decode(), r"20 tokens \(\d+ of \d+ guesses right\) \|")

    def test_save_and_load_go_on_where_it_was(self):
        first = self.chat([START, "/save talk.json", " Then"], "-n", "20")
        self.assertEqual(first.returncode, 0, first.stderr)
        saved = json.loads((self.folder / "talk.json").read_text())
        self.assertEqual([m["role"] for m in saved["messages"]], ["user", "assistant"])
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["talk.json", "talk.json.kv"])  # nothing temporary stays
        second = self.chat(["/load talk.json", " Then"], "-n", "20")
        self.assertEqual(second.returncode, 0, second.stderr)
        self.assertEqual(second.stdout.decode(), first.stdout.decode()[len(saved["messages"][1]["content"]) + 1:])

    def test_save_overwrites_nothing_of_others(self):
        note = "not a conversation\n"
        self.write("notes.txt", note)
        self.write("talk.json.kv", note)
        done = self.chat([START, "/save notes.txt", "/save! notes.txt", "/save talk.json", " Then", "/save talk.json"], "-n", "4")
        said = done.stderr.decode()
        self.assertEqual(len(re.findall(r"(?m)^kvspan: 'notes.txt' is not a saved conversation: .*; not overwritten$", said)), 2, said)
        self.assertEqual((self.folder / "notes.txt").read_text(), note)
        # The conversation is saved without its cache, and again: the file is its own now.
        self.assertEqual(len(re.findall(r"the cache is not saved: 'talk.json.kv' is not a prompt cache; not overwritten", said)), 2, said)
        self.assertEqual((self.folder / "talk.json.kv").read_text(), note)
        self.assertEqual(len(json.loads((self.folder / "talk.json").read_text())["messages"]), 4)
        # Another conversation asks first, one that was loaded from it does not, and a new one does.
        (self.folder / "talk.json.kv").unlink()
        done = self.chat(["Another", "/save talk.json"], "-n", "4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("kvspan: 'talk.json' holds another conversation; /save! talk.json replaces it", done.stderr.decode())
        done = self.chat(["/load talk.json", " Then", "/save talk.json", "/clear", "Another", "/save talk.json"], "-n", "4")
        self.assertIn("saved 6 messages", done.stderr.decode())
        self.assertIn("'talk.json' holds another conversation", done.stderr.decode())
        done = self.chat(["Another", "/save! talk.json"], "-n", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.folder / "talk.json").read_text())["messages"][0]["content"], "Another")

    def test_commands(self):
        done = self.chat(["/help", "/cache", START, "/regen", "/cache full", "/clear", "/stats", "/quit", "never"],
                         "-n", "10")
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = done.stdout.decode().splitlines()
        self.assertEqual(len(answers), 2)
        self.assertEqual(answers[0], answers[1])  # greedy: the same again
        errors = done.stderr.decode()
        for command in ("/help", "/stats", "/cache", "/save", "/save!", "/load", "/regen", "/clear", "/quit"):
            self.assertRegex(errors, rf"(?m)^  {command} ")
        self.assertRegex(errors, r"(?m)^0 messages \| full \| 0 of 512 tokens ")

    def test_errors_leave_the_chat_alive_and_show_in_the_exit_code(self):
        self.write("broken.json", '{"format": "kvspan-chat"')
        for line, says in [("/sav x", "did you mean '/save'?"), ("/save", "takes FILE"), ("/quit now", "takes nothing"),
                           ("/load missing.json", "missing.json"), ("/load broken.json", "broken.json"),
                           ("/regen", "no answer"), ("/cache nonsense", "nonsense"), ("/save missing/x", "missing/x"),
                           ("the cat and the dog " * 200, "the context holds 512")]:
            done = self.chat([line, START], "-n", "4", "--cache", "full")
            self.assertNotEqual(done.returncode, 0, line)
            refusals = [l for l in done.stderr.decode().splitlines() if l.startswith("kvspan: ")]
            self.assertEqual(len(refusals), 1, line)
            self.assertIn(says, refusals[0])
            self.assertEqual(done.stdout.decode(), ", there was a\n", line)

    def test_invalid_utf8_is_refused(self):
        done = self.run_program("chat", "-m", STORIES, stdin=b"a\xff\n")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr.decode(), r"(?m)^kvspan: the message is not valid UTF-8 at byte 1 ")

    def test_a_full_context_says_so_and_goes_on(self):
        done = self.chat([START, " Then"], "-c", "16", "-n", "-1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the context of 16 tokens is full; the next message drops the oldest turns", done.stderr.decode())
        done = self.chat([START, " Then", " Then", " Then", "/stats"], "-c", "64", "-n", "20")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr.decode(), r"(?m)^the context of 64 tokens was full: the oldest \d messages are no longer")
        self.assertRegex(done.stderr.decode(), r"(?m)^8 messages, the oldest \d not in the context \| \S+ ")
        done = self.chat([START], "-c", "16", "-n", "60")
        self.assertRegex(done.stderr.decode(), r"(?m)^5 \+ 60 tokens ")
        self.assertIn("the middle of this turn was forgotten\n", done.stderr.decode())
        done = self.chat([START], "-c", "16", "-n", "60", "--no-context-shift")
        self.assertRegex(done.stderr.decode(), r"(?m)^5 \+ 12 tokens .*context full$")

    def test_three_quotes_hold_a_message(self):
        done = self.chat(['"""Once', "", "upon", '/help"""', '"""one line"""', '"""', "block", '"""', "/save talk.json"], "-n", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        messages = json.loads((self.folder / "talk.json").read_text())["messages"]
        self.assertEqual([m["content"] for m in messages[::2]], ["Once\n\nupon\n/help", "one line", "block"])

    def test_system_undo_and_the_speed_of_the_last_answer(self):
        done = self.chat(["/system", "/system Be kind.", START, " Then", "/undo", "/stats", "/save talk.json"], "-n", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        errors = done.stderr.decode()
        self.assertIn("there is no system message\nsystem message: Be kind.\n", errors)
        self.assertIn("the last question was taken back; 3 messages are left\n", errors)
        self.assertRegex(errors, r"(?m)^3 messages \| \S+ \| .*KV [\d.]+ .iB.*\nlast answer: .* decode [\d.,]+ tok/s")
        self.assertEqual([m["role"] for m in json.loads((self.folder / "talk.json").read_text())["messages"]],
                         ["system", "user", "assistant"])

    def test_tables_and_code_come_as_they_are(self):
        text = "| a | b |\n|---|:-:|\n```c\n\tint  x;\n```\n"
        grammar = "root ::= " + json.dumps(text)
        self.assertEqual(self.chat([START], "--grammar", grammar).stdout.decode(), text)

    def test_a_first_message(self):
        self.assertEqual(self.chat([], "-p", START, "-n", "4").stdout.decode(), ", there was a\n")
        done = self.run_program("run", "-cnv", "-m", STORIES, "-p", START, "-n", "4", "--temp", "0", stdin=b"/stats\n")
        self.assertEqual(done.stdout.decode(), ", there was a\n")
        self.assertRegex(done.stderr.decode(), r"(?m)^2 messages ")

    def test_quiet_says_nothing_but_answers(self):
        done = self.chat([START], "-n", "4", "-q")
        self.assertEqual((done.stdout, done.stderr), (b", there was a\n", b""))

    def test_a_backslash_continues_the_message(self):
        done = self.chat(["Once upon\\", "a time", "/save talk.json"], "-n", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.folder / "talk.json").read_text())["messages"][0]["content"],
                         "Once upon\na time")


class OnATerminal(ProgramTest):
    def setUp(self):
        super().setUp()
        self.process, self.terminal, self.seen = None, None, ""

    def start(self, *flags):
        self.terminal, inner = pty.openpty()
        self.process = subprocess.Popen([PROGRAM, "chat", "-m", STORIES, *flags], stdin=inner, stdout=inner,
                                        stderr=inner, cwd=self.folder, start_new_session=True,
                                        env={**environment(self.folder), "NO_COLOR": "1"},
                                        preexec_fn=claim_terminal)
        os.close(inner)
        self.addCleanup(os.close, self.terminal)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)

    def wait_for(self, pattern, seconds=60):
        """Reads until what came since the last call matches."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self.terminal], [], [], max(end - time.monotonic(), 0))
            self.assertTrue(ready, f"no {pattern!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.terminal, 4096).decode(errors="replace")
            except OSError:  # the other end is closed
                self.fail(f"ended before {pattern!r}: {self.seen!r}")
        found, self.seen = self.seen, ""
        return found

    def type(self, text):
        os.write(self.terminal, text.encode())

    def type_at_prompt(self, text):
        """Types once the program reads keys one by one: before, the terminal takes Ctrl-D for itself."""
        end = time.monotonic() + 60
        while termios.tcgetattr(self.terminal)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), end, "the prompt never reads keys")
            time.sleep(0.01)
        self.type(text)

    def interrupt_an_answer(self):
        """Ctrl-C in the middle of an answer. A busy machine may read so late that the answer is over."""
        for _ in range(20):
            self.type_at_prompt(START + "\r")
            self.wait_for(r"time\r\n\x1b\[\?2004l[^\x1b]*\w")
            self.type("\x03")
            if "cancelled" in self.wait_for(r"tokens \| [^>]*> |stopped while[^>]*> |Ctrl-C twice[^>]*> "):
                return
            self.type_at_prompt("/clear\r")
            self.wait_for(r"/clear[^>]*> ")
        self.fail("no answer could be interrupted")

    def test_ctrl_c_stops_the_answer_only(self):
        self.start("--temp", "1.5", "-n", "450", "-t", "1", "--cpu-level", "ref")
        self.wait_for(r"> ")
        self.interrupt_an_answer()
        self.type_at_prompt("/stats\r")
        self.wait_for(r"2 messages \|[^>]*> ")
        self.type("some text")
        self.wait_for("some text")  # Ctrl-C throws away what was not read yet
        self.type("\x03")
        self.assertNotIn("leaves", self.wait_for(r"\^C\s+[^>]*> "))
        # Slowly, or with a key between, it does not leave.
        for _ in range(2):
            self.type("\x03")
            self.wait_for(r"leaves[^>]*> ")
            time.sleep(1.1)
        self.type_at_prompt("x\x7f")
        self.wait_for("x")
        time.sleep(0.1)
        self.type("\x03")
        self.wait_for(r"leaves[^>]*> ")
        self.leave_by_ctrl_c()

    def test_an_interrupted_chat_goes_on(self):
        # Mostly it is within a graph that the answer stops, at another node each time.
        self.start("--temp", "1.5", "-n", "450", "-t", "1", "--cpu-level", "ref")
        self.wait_for(r"> ")
        for _ in range(4):
            self.interrupt_an_answer()
            self.type_at_prompt("Then she said\r")
            self.assertRegex(self.wait_for(r"said\r\n[^>]*> "), r"\w[^>]*\d+ tokens \| ")
            self.type_at_prompt("/clear\r")
            self.wait_for(r"/clear[^>]*> ")

    def leave_by_ctrl_c(self):
        """Two quick ones. A busy machine may take them for slow ones, so there are more."""
        for _ in range(100):
            self.type("\x03")
            try:
                self.assertEqual(self.process.wait(timeout=0.2), 0)
                return
            except subprocess.TimeoutExpired:
                pass
        self.fail("Ctrl-C did not leave")

    def saved_messages(self):
        self.type_at_prompt("/save talk.json\r")
        self.wait_for(r"saved \d+ messages[^>]*> ")
        return [m["content"] for m in json.loads((self.folder / "talk.json").read_text())["messages"]]

    def test_what_is_pasted_is_one_message(self):
        self.start("--temp", "0", "-n", "2")
        self.assertIn("\x1b[?2004h", self.wait_for(r"> .*2004h|2004h.*> "))
        self.type_at_prompt("\x1b[200~Once upon\r  a time\r/quit\r\x1b[201~, she\r")
        self.wait_for(r"tokens \| [^>]*> ")
        self.assertEqual(self.saved_messages()[0], "Once upon\n  a time\n/quit\n, she")
        self.type_at_prompt("\x04")
        self.assertEqual(self.process.wait(timeout=60), 0)

    def test_word_movement(self):
        self.start("--temp", "0", "-n", "2")
        self.wait_for(r"> ")
        # Ctrl-Left twice, a letter, Ctrl-Right, a letter, Alt-Backspace; Home, a letter, End, a letter.
        self.type_at_prompt("one two three\x1b[1;5D\x1b[1;5DX\x1b[1;3CY four\x1b\x7f\x1b[HA\x1b[FZ\r")
        self.wait_for(r"tokens \| [^>]*> ")
        self.assertEqual(self.saved_messages()[0], "Aone XtwoY  threeZ")
        self.type_at_prompt("\x04")
        self.assertEqual(self.process.wait(timeout=60), 0)

    def test_a_full_context(self):
        self.start("--temp", "0", "-n", "20", "-c", "64")
        self.wait_for(r"> ")
        seen = ""
        for _ in range(4):
            self.type_at_prompt(START + "\r")
            seen += self.wait_for(r"20 tokens \| [^>]*> ")
        self.assertRegex(seen, r"the context of 64 tokens was full: the oldest \d messages are no longer in it")
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(timeout=60), 143)

    def test_killed_while_saving_the_old_or_the_new_conversation_is_resumed(self):
        flags = ("--temp", "0", "-n", "4", "-t", "1", "--cache", "full", "--resume", "talk.json")
        files = [self.folder / "talk.json", self.folder / "talk.json.kv"]
        self.start(*flags)
        self.wait_for(r"> ")
        self.type_at_prompt(START + "\r")
        self.wait_for(r"4 tokens \| [^>]*> ")
        self.type_at_prompt("\x04")
        self.assertEqual(self.process.wait(timeout=60), 0)
        old = [path.read_bytes() for path in files]
        met = set()
        for delay_ms in (0, 1, 2, 4, 8, 500):
            for path, data in zip(files, old):
                path.write_bytes(data)
            self.start(*flags)
            self.wait_for(r"going on with 2 messages[^>]*> ")
            self.type_at_prompt("Then she\r")
            self.wait_for(r"4 tokens \| [^>]*> ")
            self.type_at_prompt("/save talk.json\r")
            if delay_ms == 500:
                self.wait_for("saved 4 messages")
            else:
                time.sleep(delay_ms / 1000)
            self.process.kill()
            self.process.wait()
            messages = len(json.loads(files[0].read_text())["messages"])
            met.add(messages)
            for path in self.folder.glob("*.tmp"):
                os.utime(path, (1, 1))  # young ones are left alone
            self.start(*flags)
            said = self.wait_for(rf"going on with {messages} messages[^>]*> ")
            self.assertNotIn("damaged", said)
            self.type_at_prompt("/save talk.json\r")
            self.wait_for(rf"saved {messages} messages[^>]*> ")
            self.type_at_prompt("\x04")
            self.assertEqual(self.process.wait(timeout=60), 0)
            self.assertEqual(list(self.folder.glob("*.tmp")), [])
        self.assertIn(4, met)
        self.assertLessEqual(met, {2, 4})

    def test_ctrl_d_leaves_and_the_history_is_kept(self):
        self.start("--temp", "0", "-n", "3")
        self.wait_for(r"> ")
        self.type(START + "\r")
        self.wait_for(r"there was\b[^>]*> ")
        self.type_at_prompt("\x04")
        self.assertEqual(self.process.wait(timeout=60), 0)
        history = self.folder / "cache/kvspan/chat_history"
        self.assertIn("Once", history.read_text())
        self.assertEqual(history.stat().st_mode & 0o077, 0)

        self.start("--temp", "0", "-n", "3")
        self.wait_for(r"> ")
        self.type_at_prompt("\x1b[A\r")  # arrow up
        self.wait_for(r"Once upon a time[^>]*there was\b[^>]*> ")
        self.type_at_prompt("\x04")
        self.assertEqual(self.process.wait(timeout=60), 0)


def claim_terminal():
    """Makes standard input the controlling terminal of the new session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
