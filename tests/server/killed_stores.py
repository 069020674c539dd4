# SPDX-License-Identifier: Apache-2.0
"""Requests to two servers with one Redis, while Redis and servers are killed: every answer has to be that of a server without a store."""
import concurrent.futures
import random
import threading
import time
import urllib.error

from store_servers import Redis, Server

FLAGS = ["--override-kv", "llama.context_length=int:4096", "-c", "4096", "--parallel", "2", "-t", "1", "--no-warmup", "--cache-ram", "0", "-b", "512", "--metrics"]

# A prompt whose beginning is loaded is read in other batches than one read anew: sums are made in another order. Along the longest
# path to a logit some 1,200 + the prompt's 1,100 numbers are summed in each of stories260K's five layers (products of 64 and 172,
# softmax and values), each sum rounded to 2^-24 of it. Independent roundings add up like the square root of their number; six times
# that is exceeded once in 10^7 (2 exp(-36 / 2); Higham and Mary, 2019). Logits are at most 20; the two sides and their
# log-sum-exps have such an error each, together twice one. Weights and activations are f32; rows in f16 are rounded alike but for ties.
ROUNDING = 2 * 20 * 6 * (5 * 2300) ** 0.5 * 2**-24


def document(seed, length=1100):
    return [random.Random(seed * 1000003 + i).randrange(300, 500) for i in range(length)]


def difference(found, right):
    """How far apart the likeliest next tokens of two answers are, at most."""
    found, right = (one["completion_probabilities"][0]["top_logprobs"] for one in (found, right))
    known = {one["id"]: one["logprob"] for one in right}
    worst = abs(found[0]["logprob"] - right[0]["logprob"])
    for one in found:
        # What is as likely as the fifth may change places with it.
        worst = max(worst, abs(one["logprob"] - known.get(one["id"], right[-1]["logprob"])))
    return worst


def next_token(server, prompt, **more):
    return server.complete(prompt, 1, n_probs=5, **more)


class KilledStores:
    """Two servers, Redis, and one server without a store to compare with."""

    ROUND = 50  # requests from one kill to the next of its kind

    def __init__(self, program, model, cache="full"):
        self.command = (program, "-m", model, "--cache", cache, *FLAGS)
        self.redis = Redis()
        self.plain = Server(*self.command)
        self.servers = [self.start(), self.start()]
        for server in (self.plain, *self.servers):
            server.wait()
        self.lock = threading.Lock()
        self.counts = {"requests": 0, "wrong": 0, "repeated": 0, "redis_kills": 0, "server_kills": 0, "hits": 0, "largest_difference": 0.0}

    def start(self):
        return Server(*self.command, "--store", self.redis.url, "--store-wait", "60")

    def close(self):
        for server in (self.plain, *self.servers):
            server.close()
        self.redis.kill()

    def ask(self, chance, prompt):
        """Of any server; another one where it is away, as a balancer does."""
        for _ in range(600):
            with self.lock:
                server = chance.choice(self.servers)
            try:
                return next_token(server, prompt)
            except (OSError, urllib.error.HTTPError):  # killed, or not ready again
                with self.lock:
                    self.counts["repeated"] += 1
                time.sleep(0.1)
        raise RuntimeError("no server answers")

    def one(self, number):
        chance = random.Random(number)
        text = document(20 + chance.randrange(5), 900)
        prompt = text[:chance.randrange(300, len(text))] + document(1000 + number, 20)
        worst = difference(self.ask(chance, prompt), next_token(self.plain, prompt, cache_prompt=False))
        with self.lock:
            counts = self.counts
            counts["requests"] += 1
            counts["wrong"] += worst > ROUNDING
            counts["largest_difference"] = max(counts["largest_difference"], worst)

    def kill(self, number):
        """Redis away for a fifth of a round, then a server, which is started again at once."""
        place = number % self.ROUND
        if place == self.ROUND // 5:
            self.redis.kill()
            self.counts["redis_kills"] += 1
        elif place == 2 * self.ROUND // 5:
            self.redis.start()
        elif place == 3 * self.ROUND // 5:
            with self.lock:
                which = number // self.ROUND % 2
                killed = self.servers[which]
                try:
                    self.counts["hits"] += killed.store()["hits"]
                except (OSError, urllib.error.HTTPError):  # it is not ready yet
                    pass
                killed.kill()
                killed.log.close()
                self.servers[which] = self.start()
                self.counts["server_kills"] += 1

    def run(self, requests, said=None):
        """Two clients at a time, so that what is killed is at work."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            waiting = set()
            for number in range(requests):
                waiting.add(pool.submit(self.one, number))
                self.kill(number)
                while len(waiting) > 2:
                    done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                    for one in done:
                        one.result()
                if said and number % 100 == 99:
                    said(f"{number + 1} of {requests} requests, {self.counts['wrong']} wrong")
            for one in waiting:
                one.result()
        for server in self.servers:
            self.counts["hits"] += server.wait().store()["hits"]
        return self.counts
