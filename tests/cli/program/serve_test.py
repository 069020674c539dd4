# SPDX-License-Identifier: Apache-2.0
"""kvspan serve with the small model: answers, caches, states, budget, and how it ends. The server's own tests, which
scripts/server_suite.py runs, are about the protocol; these are about what the caches do under it."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from program_support import PROGRAM, STORIES, STORY, ProgramTest, environment

PROMPT = "Once upon a time"
# Sums in another order: along the longest path to a logit some 1,200 numbers and the prompt's 400 are summed in each of the model's
# five layers, each sum rounded to 2^-24 of it. Independent roundings add up like the square root of their number; six times that is
# exceeded once in 10^7 (Higham and Mary, 2019). Logits are at most 20; the two sides and their log-sum-exps have such an error each,
# together twice one.
ROUNDING = 2 * 20 * 6 * (5 * 1600) ** 0.5 * 2**-24
LONG = " ".join(f"Then Lily saw a big red ball number {i} in the park and wanted to play with it." for i in range(12))


class Server:
    """A server on a free port; everything it says is in `log`."""

    def __init__(self, folder, *arguments, command=(PROGRAM, "serve")):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.log = folder / f"server-{self.port}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, "-m", str(STORIES), "--port", str(self.port), "-t", "1", "--no-ui", *arguments], stdout=log,
                stderr=log, cwd=folder, env=environment(folder))
        until = time.monotonic() + 120
        while True:
            try:
                self.get("/health")
                while b"listening on" not in self.log.read_bytes():  # from then on it catches signals
                    time.sleep(0.01)
                return
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None or time.monotonic() > until:
                    self.process.kill()
                    raise AssertionError(f"no server: {self.log.read_text(errors='replace')}") from None
                time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def get(self, path):
        with urllib.request.urlopen(self.url(path), timeout=120) as answer:
            return answer.read().decode()

    def post(self, path, **body):
        """(status, answer)"""
        request = urllib.request.Request(self.url(path), json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=240) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def complete(self, prompt, tokens=24, **more):
        status, answer = self.post("/completion", prompt=prompt, n_predict=tokens, temperature=0, **more)
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def stream(self, path, **body):
        """What comes line by line: the parsed data of each event."""
        request = urllib.request.Request(self.url(path), json.dumps({**body, "stream": True}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as answer:
            for line in answer:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])

    def kv(self):
        return json.loads(self.get("/kv"))

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        return self.process.wait(timeout=60)


class ServeTest(ProgramTest):
    def server(self, *arguments, **options):
        server = Server(self.folder, *arguments, **options)
        self.addCleanup(server.__exit__)
        return server


class Answers(ServeTest):
    def test_text_is_what_an_independent_implementation_computes(self):
        text = self.server("--cache", "full").complete([1], 64)["content"]  # from the first token on
        wanted, found = STORY.strip(), text.strip()
        self.assertGreater(len(found), 100)
        self.assertEqual(found[:len(wanted)], wanted[:len(found)])

    def test_without_a_page_there_is_none(self):
        with self.assertRaises(urllib.error.HTTPError) as found:
            self.server("--cache", "full").get("/")  # Server asks for --no-ui
        self.assertEqual(found.exception.code, 404)

    def test_probabilities_are_the_stock_servers(self):
        # Weights and rows in f32 on both sides, and no flash attention, which rounds: what differs is the order of sums.
        stock = os.environ.get("KVSPAN_STOCK_SERVER", "")
        if not os.access(stock, os.X_OK):
            self.skipTest("no stock server")
        ours = self.server("--cache", "full:store=f32")
        theirs = self.server("-ctk", "f32", "-ctv", "f32", "-fa", "off", command=(stock,))
        answers = [s.complete(LONG, 32, n_probs=5) for s in (ours, theirs)]
        self.assertEqual(answers[0]["content"], answers[1]["content"])
        for one, other in zip(*(a["completion_probabilities"] for a in answers)):
            self.assertEqual(one["id"], other["id"])
            self.assertAlmostEqual(one["logprob"], other["logprob"], delta=ROUNDING)

    def test_chat_and_streaming_say_the_same(self):
        server = self.server("--cache", "bands:calib=online")
        body = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 24, "temperature": 0}
        status, whole = server.post("/v1/chat/completions", **body)
        self.assertEqual(status, 200)
        text = whole["choices"][0]["message"]["content"]
        self.assertTrue(text)
        pieces = [event["choices"][0]["delta"].get("content") or "" for event in
                  server.stream("/v1/chat/completions", **body) if event["choices"]]
        self.assertGreater(len([piece for piece in pieces if piece]), 5)
        self.assertEqual("".join(pieces), text)

    def test_two_at_once_say_what_they_say_one_after_the_other(self):
        for recipe in ("full", "bands:calib=online,learn=64"):
            server = self.server("--cache", recipe, "--parallel", "2", "-c", "2048")
            prompts = [LONG, PROMPT]
            alone = [server.complete(prompt, 48, cache_prompt=False)["content"] for prompt in prompts]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                together = list(pool.map(lambda p: server.complete(p, 48, cache_prompt=False)["content"], prompts))
            self.assertEqual(together, alone)

    def test_several_answers_to_one_prompt_share_it(self):
        server = self.server("--cache", "full", "--parallel", "3", "-c", "3072")
        single = server.complete(LONG, 16)["content"]
        before = server.kv()["counts"]["decoded_tokens"]
        status, answer = server.post("/v1/completions", prompt=LONG, max_tokens=16, temperature=0, n=3, cache_prompt=False)
        self.assertEqual(status, 200)
        self.assertEqual([choice["text"] for choice in answer["choices"]], [single] * 3)
        # The prompt is read once, the answers three times.
        read = server.kv()["counts"]["decoded_tokens"] - before
        self.assertLessEqual(read, answer["usage"]["prompt_tokens"] + 3 * 16)


class Echo(ServeTest):
    """Prompts that come back with the log-probabilities of their tokens."""

    def test_a_prompt_scores_as_answers_do(self):
        server = self.server("--cache", "full", "--parallel", "1", "-c", "2048")
        # What the model writes itself, token by token with its probability.
        prompt = server.post("/tokenize", content=PROMPT, add_special=True)[1]["tokens"]
        answer = server.complete(prompt, 40, n_probs=2, return_tokens=True, cache_prompt=False)
        written = answer["completion_probabilities"]
        status, found = server.post("/v1/completions", prompt=prompt + answer["tokens"], max_tokens=1, temperature=0, echo=True, logprobs=2)
        self.assertEqual(status, 200, found)
        listed = found["choices"][0]["logprobs"]
        self.assertEqual("".join(listed["tokens"]), found["choices"][0]["text"])
        self.assertEqual(len(listed["tokens"]), len(prompt) + len(written) + 1)
        self.assertIsNone(listed["token_logprobs"][0])
        scored = listed["token_logprobs"][len(prompt):-1]
        self.assertEqual(len(scored), len(written))
        for one, other, top in zip(scored, written, listed["top_logprobs"][len(prompt):]):
            self.assertAlmostEqual(one, other["logprob"], delta=ROUNDING)
            self.assertEqual(max(top.values()), one)  # all were the likeliest
        self.assertEqual(found["usage"]["prompt_tokens"], len(prompt) + len(written))

    def test_prompts_that_begin_alike_score_at_once_as_one_by_one(self):
        # What they share is longer than a batch, and so is what they do not.
        beginning = "Once upon a time there was a little girl named Lily who loved to play outside in the park. " * 5
        prompts = [beginning + f"One day she saw a {thing}. " + tail * 4 for thing, tail in (
            ("dog", "The dog ran to a big tree and barked at it. "), ("ball", "It was red and round and very new. "),
            ("cat", "Her mom said that the cat was sad and cold. "), ("boy", "They went home to eat warm soup. "))]
        server = self.server("--cache", "full", "--parallel", "4", "-c", "8192", "-b", "64")

        def scores(prompt):
            status, found = server.post("/v1/completions", prompt=prompt, max_tokens=0, echo=True, logprobs=1, temperature=0)
            self.assertEqual(status, 200, found)
            return found["choices"][0]["logprobs"]

        alone = [scores(prompt) for prompt in prompts]
        self.assertGreater(min(len(one["tokens"]) for one in alone), 192)
        rounds = 6
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            found = list(pool.map(scores, prompts * rounds))
        for one, right in zip(found, alone * rounds):
            self.assertEqual(one["tokens"], right["tokens"])
            for score, wanted in zip(one["token_logprobs"][1:], right["token_logprobs"][1:]):
                self.assertAlmostEqual(score, wanted, delta=ROUNDING)

    def test_bodies_nested_without_end_are_refused(self):
        server = self.server("--cache", "full", "--kv-budget", "64MiB")
        deep = b"[" * 200000 + b"]" * 200000
        for path, body in (("/v1/completions", b'{"echo": true, "logprobs": 1, "prompt": ' + deep + b"}"),
                           ("/v1/completions", b'{"echo": true, "logprobs": 1, "prompt": "x", "else": ' + deep + b"}"),
                           ("/completion", b'{"n_predict": 1, "prompt": ' + deep + b"}"),
                           ("/v1/chat/completions", b'{"messages": ' + deep + b"}")):
            request = urllib.request.Request(server.url(path), body, {"Content-Type": "application/json"})
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=120)
            self.assertEqual(refused.exception.code, 400, path)
            self.assertIn("nested deeper than 500", json.loads(refused.exception.read())["error"]["message"])
        self.assertEqual(server.complete(PROMPT, 8)["tokens_predicted"], 8)

    def test_several_prompts_and_no_answer(self):
        server = self.server("--cache", "bands:calib=online,learn=64", "--store", "memory:64MiB", "--parallel", "2", "-c", "4096")
        for _ in range(2):  # again when the store knows them
            status, found = server.post("/v1/completions", prompt=[LONG, PROMPT], max_tokens=0, echo=True, logprobs=1)
            self.assertEqual(status, 200, found)
            for choice, text in zip(found["choices"], (LONG, PROMPT)):
                self.assertEqual(choice["text"].strip(), text)
                self.assertEqual(len(choice["logprobs"]["tokens"]), len(choice["logprobs"]["token_logprobs"]))
                self.assertTrue(all(one <= 0 for one in choice["logprobs"]["token_logprobs"][1:]))

    def test_what_cannot_be_echoed_is_refused_with_the_reason(self):
        server = self.server("--cache", "full")
        for more, says in (({"stream": True}, "stream"), ({"n": 2}, "n=2"), ({"n_cmpl": 3}, "n_cmpl=3"), ({"max_tokens": -1}, "max_tokens=-1"),
                           ({"post_sampling_probs": True}, "post_sampling_probs=true"), ({"prompt": []}, "prompt"),
                           ({"prompt": [[1, 2], 3]}, "prompt"), ({"prompt": [[[1, 2]]]}, "prompt[0]"), ({"prompt": [10 ** 6]}, "token"),
                           ({"prompt": [1] * 300 + [10 ** 6]}, "token"), ({"prompt": [1, 2 ** 32 + 5]}, "prompt[1]"),
                           ({"prompt": [1, -5]}, "prompt[1]")):
            status, answer = server.post("/v1/completions", **{"prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 1, **more})
            self.assertEqual(status, 400, answer)
            self.assertIn(says, answer["error"]["message"])


    def test_keys_that_change_the_servers_answer_change_no_score(self):
        server = self.server("--cache", "full")
        plain = server.post("/v1/completions", prompt=PROMPT, max_tokens=3, temperature=0, echo=True, logprobs=1)
        more = {"n": None, "n_cmpl": 1, "post_sampling_probs": False, "response_fields": ["content"], "n_probs": 7, "return_tokens": True}
        other = server.post("/v1/completions", prompt=PROMPT, max_tokens=3, temperature=0, echo=True, logprobs=1, **more)
        self.assertEqual((plain[0], other[0]), (200, 200), other[1])
        self.assertEqual(other[1]["choices"], plain[1]["choices"])


class Caches(ServeTest):
    def test_a_longer_prompt_goes_on_from_the_cache(self):
        for recipe in ("full", "quant:bits=8", "bands:calib=online,learn=64"):
            server = self.server("--cache", recipe, "--parallel", "1", "-c", "2048")
            first = server.complete(LONG, 8)
            again = server.complete(LONG + " The end came", 16)
            self.assertLess(again["timings"]["prompt_n"], 12, recipe)
            self.assertGreater(again["timings"]["cache_n"], first["timings"]["prompt_n"] - 4)
            if recipe == "full":  # a code learnt from the text depends on where it was learnt
                anew = server.complete(LONG + " The end came", 16, cache_prompt=False)
                self.assertEqual(again["content"], anew["content"])

    def test_bytes_are_those_of_the_recipe(self):
        sizes = {}
        for recipe in ("full", "quant:bits=4"):
            server = self.server("--cache", recipe, "--parallel", "1", "-c", "1024", "--metrics")
            tokens = server.complete(LONG, 8)["tokens_cached"]
            kv = server.kv()
            self.assertEqual([(s["tokens"]) for s in kv["sequences"]], [tokens])
            self.assertEqual(kv["bytes"]["total"], kv["sequences"][0]["bytes"])
            sizes[recipe] = kv["bytes"]["total"]
            metrics = server.get("/metrics")
            self.assertIn(f"kvspan_kv_total_bytes {sizes[recipe]}\n", metrics)
            self.assertIn("llamacpp:prompt_tokens_total", metrics)
        self.assertLess(sizes["quant:bits=4"], 0.6 * sizes["full"])

    def test_slots_are_saved_and_restored_by_another_server(self):
        flags = ("--cache", "bands:calib=online,learn=64", "--slot-save-path", str(self.folder), "--parallel", "1", "-c", "2048")
        with Server(self.folder, *flags) as server:
            server.complete(LONG, 8, id_slot=0)
            status, saved = server.post("/slots/0?action=save", filename="slot.bin")
            self.assertEqual(status, 200)
            wanted = server.complete(LONG + " The end came", 16, id_slot=0)["content"]
        server = self.server(*flags)
        status, restored = server.post("/slots/0?action=restore", filename="slot.bin")
        self.assertEqual((status, restored["n_restored"]), (200, saved["n_saved"]))
        again = server.complete(LONG + " The end came", 16, id_slot=0)
        self.assertLess(again["timings"]["prompt_n"], 12)
        self.assertEqual(again["content"], wanted)

    def test_a_damaged_slot_file_is_refused_and_harms_nothing(self):
        server = self.server("--cache", "quant:bits=8", "--slot-save-path", str(self.folder), "--parallel", "1", "-c", "1024")
        wanted = server.complete(LONG, 8, id_slot=0)["content"]
        server.post("/slots/0?action=save", filename="slot.bin")
        good = (self.folder / "slot.bin").read_bytes()
        for at in (0, 4, 8, 20, len(good) // 2, len(good) - 1):
            bad = bytearray(good)
            bad[at] ^= 0x55
            (self.folder / "bad.bin").write_bytes(bad)
            status, _ = server.post("/slots/0?action=restore", filename="bad.bin")
            # What is damaged within the server's own words may be words as well.
            self.assertIn(status, (200, 400), at)
            self.assertEqual(server.complete(LONG, 8, id_slot=0, cache_prompt=False)["content"], wanted)
        for name in ("../slot.bin", "/etc/passwd", "nosuch.bin"):
            self.assertEqual(server.post("/slots/0?action=restore", filename=name)[0], 400)
        self.assertEqual(server.post("/slots/0?action=save", filename="../out.bin")[0], 400)

    def test_a_cache_that_cannot_go_back_reads_the_prompt_anew(self):
        server = self.server("--cache", "streaming:sink=4,size=64", "--parallel", "1", "-c", "2048")
        wanted = server.complete(LONG[:400], 12, cache_prompt=False)["content"]
        server.complete(LONG, 24)
        self.assertEqual(server.complete(LONG[:400], 12)["content"], wanted)
        server.complete(LONG[:300] + " and something else", 24)
        self.assertEqual(server.complete(LONG[:400], 12)["content"], wanted)

    def test_prompts_kept_in_memory_come_back(self):
        server = self.server("--cache", "bands:calib=online,learn=64", "--parallel", "1", "-c", "2048", "--cache-ram", "64")
        server.complete(LONG, 8)
        server.complete("A quite different text about a dog and his bone.", 8)
        again = server.complete(LONG, 8)
        self.assertLess(again["timings"]["prompt_n"], 4)
        self.assertGreater(server.kv()["counts"]["states_loaded"], 0)


class Budget(ServeTest):
    FLAGS = ("--cache", "full", "--parallel", "4", "-c", "8192")

    def needed(self, tokens):
        """Bytes of a sequence, as f16: 5 layers of 4 heads of 8 numbers, keys and values; blocks of rows may be larger."""
        return tokens * 5 * 4 * 8 * 2 * 2

    def test_a_request_that_never_fits_is_answered_with_429_and_the_numbers(self):
        server = self.server(*self.FLAGS, "--kv-budget", "200KiB")
        status, answer = server.post("/completion", prompt=LONG, n_predict=1000)
        self.assertEqual(status, 429)
        error = answer["error"]
        self.assertEqual(error["kv_budget_bytes"], 200 * 1024)
        self.assertGreaterEqual(error["kv_needed_bytes"], self.needed(1000))
        self.assertIn(str(error["kv_needed_bytes"]), error["message"])
        self.assertEqual(server.complete(PROMPT, 8)["tokens_predicted"], 8)

    def test_requests_wait_for_room_and_none_exceeds_it(self):
        plain = self.server(*self.FLAGS)
        prompts = [f"{name} went to the park" for name in ("Lily", "Tom", "Ben", "Mia", "Sam", "Sue")]
        # Short answers: products of batches of other sizes round otherwise, which changes a token in the end.
        wanted = [plain.complete(prompt, 40, cache_prompt=False)["content"] for prompt in prompts]
        server = self.server(*self.FLAGS, "--kv-budget", "200KiB", "--kv-wait", "200")
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda p: server.complete(p, 40, cache_prompt=False)["content"], prompts))
        self.assertEqual(answers, wanted)
        kv = server.kv()
        self.assertLessEqual(kv["bytes"]["peak"], 200 * 1024)
        self.assertEqual((kv["budget"]["reserved_bytes"], kv["budget"]["waiting"]), (0, 0))

    def test_who_waits_too_long_is_refused(self):
        server = self.server(*self.FLAGS, "--kv-budget", "400KiB", "--kv-wait", "0")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: server.post("/completion", prompt=PROMPT, n_predict=200, temperature=0,
                                                        ignore_eos=True), range(4)))
        statuses = sorted(status for status, _ in found)
        self.assertEqual(statuses[0], 200)
        self.assertTrue(set(statuses) <= {200, 429})

    def test_idle_sequences_make_room(self):
        server = self.server(*self.FLAGS, "--kv-budget", "400KiB", "--cache-ram", "0")
        wanted = server.complete(LONG, 16, id_slot=0)["content"]
        for slot in (1, 2, 3):
            server.complete(LONG[20 * slot:], 16, id_slot=slot)
        self.assertGreater(server.kv()["counts"]["dropped_sequences"], 0)
        self.assertEqual(server.complete(LONG, 16, id_slot=0)["content"], wanted)
        self.assertLessEqual(server.kv()["bytes"]["peak"], 400 * 1024)


class Ends(ServeTest):
    def test_wrong_flags_of_ours_are_told_at_once(self):
        for flags, says in ((("--cache", "bandz"), "did you mean 'bands'"), (("--cache",), "needs a value"),
                            (("--kv-budget", "many"), "--kv-budget many"), (("--kv-wait", "-1"), "--kv-wait -1"),
                            (("--store", "memory:64MiB", "--store-wait", "soon"), "--store-wait soon"), (("--store-wait", "1"), "need --store"),
                            (("-m", "no/such.gguf"), "no/such.gguf"), (("--mmproj", "x"), "--mmproj"),
                            (("--models-dir", "x"), "--models-dir")):
            model = () if "-m" in flags else ("-m", STORIES)
            self.refused("serve", *model, *flags, says=says)

    def test_a_recipe_that_needs_a_calibration_says_so_or_learns_from_the_text(self):
        self.refused("serve", "-m", STORIES, "--cache", "static:rk=4", says=("static:rk=4", "kvspan calibrate"))
        server = self.server("--cache", "bands:bits=4")
        self.assertIn("calib=online", server.kv()["recipe"])
        self.assertIn("no calibration", server.log.read_text(errors="replace"))

    def test_help_has_our_flags_and_the_servers(self):
        text = self.output_of("serve", "--help")
        for part in ("--kv-budget", "--fixed-threads", "--store-wait", "--cache RECIPE", "Examples:", "--slot-save-path", "--api-key"):
            self.assertIn(part, text)

    def test_ctrl_c_ends_it_cleanly(self):
        self.assertEqual(self.server().stop(), 0)
        busy = self.server("-c", "4096", "--parallel", "1")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            pending = pool.submit(lambda: list(busy.stream("/completion", prompt=PROMPT, n_predict=-1, ignore_eos=True)))
            while busy.kv()["tokens"] < 20:
                time.sleep(0.01)
            self.assertEqual(busy.stop(), 0)
            pending.exception(timeout=60)

    def test_keys_are_asked_for_everywhere(self):
        server = self.server("--api-key", "secret")
        for path in ("/kv", "/metrics"):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                server.get(path)
            self.assertEqual(caught.exception.code, 401)
        self.assertEqual(server.post("/completion", prompt=PROMPT)[0], 401)


if __name__ == "__main__":
    unittest.main()
