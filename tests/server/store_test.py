#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Servers that share a prefix store: store_test.py KVSPAN MODEL

One server reads a document, another answers from its blocks; stores and servers that are killed change no answer.
Tests with Redis are skipped where redis-server is not installed.
"""
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from store_servers import Redis, Server  # noqa: E402

PROGRAM = MODEL = None
FLAGS = ["--override-kv", "llama.context_length=int:4096", "-c", "4096", "--parallel", "2", "-t", "1", "--no-warmup", "--cache-ram", "0", "-b", "512", "--metrics"]
NEEDS_REDIS = unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")


def document(seed, length=1100):
    return [random.Random(seed * 1000003 + i).randrange(300, 500) for i in range(length)]


# A prompt whose beginning is loaded is read in other batches than one read anew: matrix products sum in another order, and logits
# differ by up to 4e-3 (llama_caches_test holds that). Their log-sum-exp differs by as much again.
ROUNDING = 8e-3


class StoreTest(unittest.TestCase):
    def expect_same(self, server, plain, prompt, message=None, **more):
        """The next token's likeliest five, beside those of a server that reads the prompt anew."""
        found, right = (one.complete(prompt, 1, n_probs=5, **flags)["completion_probabilities"][0]["top_logprobs"]
                        for one, flags in ((server, more), (plain, {"cache_prompt": False})))
        known = {one["id"]: one["logprob"] for one in right}
        self.assertTrue(abs(found[0]["logprob"] - right[0]["logprob"]) <= ROUNDING, message)
        for one in found:
            # What is as likely as the fifth may change places with it.
            self.assertLessEqual(abs(one["logprob"] - known.get(one["id"], right[-1]["logprob"])), ROUNDING, message)

    def start(self, *flags, cache="full"):
        server = Server(PROGRAM, "-m", MODEL, "--cache", cache, *FLAGS, *flags)
        self.addCleanup(server.close)
        return server.wait()

    def redis(self, *flags):
        redis = Redis(*flags)
        self.addCleanup(redis.kill)
        return redis

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def answers_from_the_other(self, place, cache):
        first = self.start("--store", place, cache=cache)
        text = document(1)
        answer = first.complete(text + document(2, 40))
        self.assertEqual(answer["timings"]["prompt_n"], 1140)
        first.until_store(lambda numbers: numbers["saved"] == 1)
        second = self.start("--store", place, cache=cache)
        again = second.complete(text + document(3, 40))
        numbers = second.store()
        self.assertEqual((numbers["hits"], numbers["misses"]), (1, 0))
        kv = second.get("/kv")
        self.assertEqual(kv["counts"]["prefix_tokens"], 1024)
        self.assertTrue(again["tokens"])
        self.assertIn("kvspan_store_hits_total 1\n", second.get("/metrics"))
        if cache == "full":
            self.expect_same(second, first, text + document(3, 40))

    @NEEDS_REDIS
    def test_another_server_answers_from_redis(self):
        for cache in ("full", "bands:calib=online,learn=128"):
            with self.subTest(cache):
                self.answers_from_the_other(self.redis().url, cache)

    def test_another_server_answers_from_a_folder(self):
        self.answers_from_the_other(f"disk:{self.folder()}:1GiB", "quant:bits=8")

    def test_a_store_in_memory_serves_the_next_prompt(self):
        server = self.start("--store", "memory:256MiB")
        text = document(4)
        plain = self.start()
        for i in range(4):
            prompt = text + document(10 + i, 30)
            self.expect_same(server, plain, prompt, id_slot=i % 2)
            if i == 0:
                server.until_store(lambda numbers: numbers["saved"] == 1)
        self.assertGreaterEqual(server.store()["hits"], 1)

    @NEEDS_REDIS
    def test_tenants_share_nothing(self):
        redis = self.redis()
        text = document(5)
        first = self.start("--store", redis.url, "--store-namespace", "a")
        first.complete(text)
        first.until_store(lambda numbers: numbers["saved"] == 1)
        second = self.start("--store", redis.url, "--store-namespace", "b")
        second.complete(text)
        self.assertEqual(second.store()["hits"], 0)

    @NEEDS_REDIS
    def test_killed_redis_and_killed_servers_change_no_answer(self):
        redis = self.redis()
        plain = self.start()
        servers = [self.start("--store", redis.url) for _ in range(2)]
        chance = random.Random(7)
        texts = [document(20 + i, 600 + 100 * i) for i in range(3)]
        for i in range(24):
            if i == 8:
                redis.kill()
            if i == 14:
                redis.start()
            if i == 18:
                servers[0].kill()
                servers[0] = self.start("--store", redis.url)
            text = texts[chance.randrange(3)]
            prompt = text[:chance.randrange(300, len(text))] + document(100 + i, 20)
            self.expect_same(chance.choice(servers), plain, prompt, i)

    def test_wrong_places_are_refused_at_once(self):
        for place, word in (("tape:/dev/st0", "memory:SIZE"), ("memory:lots", "size"), ("redis://host:port", "port"), ("disk:", "folder")):
            ended = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--store", place], capture_output=True, text=True, timeout=120)
            self.assertEqual(ended.returncode, 2, place)
            self.assertIn(word, ended.stderr)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
