# SPDX-License-Identifier: Apache-2.0
"""One life of a server with a store on disk: it starts, answers two prompts that begin alike, keeps them, and ends. Prints the answers and how
many damaged entries the store met.

store_run.py PROGRAM MODEL FOLDER"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
from store_servers import Server  # noqa: E402

FLAGS = ("-c", "1024", "--parallel", "1", "-t", "2", "--no-warmup", "--cache-ram", "0", "--metrics")
PROMPT = [300 + 7 * i % 200 for i in range(400)]


def main():
    program, model, folder = sys.argv[1:]
    server = Server(program, "-m", model, "--cache", "full", "--override-kv", "llama.context_length=int:1024", *FLAGS, "--store", f"disk:{folder}")
    try:
        server.wait()
        answers = [server.complete(PROMPT[:length] + [42], 4, cache_prompt=False)["tokens"] for length in (400, 300)]
        print(json.dumps({"answers": answers, "damaged": server.store()["damaged"]}))
    except RuntimeError:
        said = [line for line in server.said().splitlines() if line.startswith("kvspan: ")]
        sys.exit(said[-1] if said else f"the server ends:\n{server.said()[-500:]}")
    finally:
        server.close()


if __name__ == "__main__":
    main()
