# SPDX-License-Identifier: Apache-2.0
"""A server whose Redis lies: lying_redis_test.py KVSPAN MODEL

Answers are right whatever Redis sends, and waiting for it costs one moment, counted by the server itself.
"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from killed_stores import FLAGS, ROUNDING, difference, document, next_token  # noqa: E402
from lying_redis import LIES, LyingRedis  # noqa: E402
from store_servers import Server  # noqa: E402

PROGRAM = MODEL = None
# As long as it takes, or not at all: nothing here depends on how fast the machine is.
FOREVER, SHORT = "600", "0.3"


class LyingRedisTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = Server(PROGRAM, "-m", MODEL, "--cache", "full", *FLAGS).wait()
        cls.addClassCleanup(cls.plain.close)
        cls.right = {}

    def start(self, redis, wait):
        server = Server(PROGRAM, "-m", MODEL, "--cache", "full", *FLAGS, "--store", redis.url, "--store-wait", wait)
        self.addCleanup(server.close)
        return server.wait()

    def redis(self):
        redis = LyingRedis()
        self.addCleanup(redis.close)
        return redis

    def expect_right(self, server, seed):
        prompt = document(1, 600) + document(seed, 40)
        if seed not in self.right:
            self.right[seed] = next_token(self.plain, prompt, cache_prompt=False)
        self.assertLessEqual(difference(next_token(server, prompt, cache_prompt=False), self.right[seed]), ROUNDING)

    def test_it_serves_while_it_is_honest(self):
        server = self.start(self.redis(), FOREVER)
        self.expect_right(server, 2)
        server.until_store(lambda numbers: numbers["saved"] == 1)
        self.expect_right(server, 3)
        self.assertEqual(server.store()["hits"], 1)

    def test_lies_cost_one_moment_and_change_no_answer(self):
        for lie in LIES:
            with self.subTest(lie):
                redis = self.redis()
                server = self.start(redis, SHORT)
                self.expect_right(server, 2)
                server.until_store(lambda numbers: numbers["saved"] == 1)
                before = server.store()
                redis.lie = lie
                for seed in range(3, 8):
                    self.expect_right(server, seed)
                numbers = server.store()
                self.assertGreater(redis.lies, 0)
                self.assertEqual(numbers["hits"], before["hits"])
                self.assertLessEqual(numbers["late"] - before["late"], 1, numbers)
                self.assertLess(server.resident(), 1 << 30)
                server.close()

    def test_it_is_used_again_when_it_has_stopped_lying(self):
        redis = self.redis()
        server = self.start(redis, "5")
        self.expect_right(server, 2)
        server.until_store(lambda numbers: numbers["saved"] == 1)
        redis.lie = "an array"
        self.expect_right(server, 3)
        failed = server.until_store(lambda numbers: numbers["failures"] > 0)
        self.assertRegex(failed["last_failure"], "a reply of kind 0x2a|was away")
        redis.lie = None
        for seed in range(100, 700):
            self.expect_right(server, 3 + seed % 5)
            if server.store()["hits"] > 0:
                return
        self.fail(f"the store stays unused: {server.store()}")


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
