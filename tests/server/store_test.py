#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Servers that share a prefix store: store_test.py KVSPAN MODEL

One server reads a document, another answers from its blocks; stores and servers that are killed change no answer.
Tests with Redis are skipped where redis-server is not installed.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from killed_stores import FLAGS, ROUNDING, KilledStores, difference, document, next_token  # noqa: E402
from store_servers import Redis, Server  # noqa: E402

PROGRAM = MODEL = None
NEEDS_REDIS = unittest.skipUnless(shutil.which("redis-server"), "redis-server is not installed")


class StoreTest(unittest.TestCase):
    def expect_same(self, server, plain, prompt, message=None, **more):
        """The next token's likeliest five, beside those of a server that reads the prompt anew."""
        worst = difference(next_token(server, prompt, **more), next_token(plain, prompt, cache_prompt=False))
        self.assertLessEqual(worst, ROUNDING, message)

    def start(self, *flags, cache="full"):
        # However busy the machine is, a store that answers is waited for.
        patience = ("--store-wait", "600") if "--store" in flags else ()
        server = Server(PROGRAM, "-m", MODEL, "--cache", cache, *FLAGS, *patience, *flags)
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
        stores = KilledStores(PROGRAM, MODEL)
        self.addCleanup(stores.close)
        counts = stores.run(60)
        self.assertEqual((counts["requests"], counts["wrong"]), (60, 0), counts)
        self.assertEqual((counts["redis_kills"], counts["server_kills"]), (1, 1))
        self.assertGreater(counts["hits"], 0)

    def test_wrong_places_are_refused_at_once(self):
        for place, word in (("tape:/dev/st0", "memory:SIZE"), ("memory:lots", "size"), ("redis://host:port", "port"), ("disk:", "folder")):
            ended = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--store", place], capture_output=True, text=True, timeout=120)
            self.assertEqual(ended.returncode, 2, place)
            self.assertIn(word, ended.stderr)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
