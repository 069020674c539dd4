#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness against kvspan serve, beside `kvspan eval` of the same rows:

    python3 -m venv ~/.cache/kvspan/lm-eval-venv
    ~/.cache/kvspan/lm-eval-venv/bin/pip install "lm-eval[api]" torch transformers gguf
    ~/.cache/kvspan/lm-eval-venv/bin/python scripts/serve_scores.py --task piqa --limit 50

The harness asks /v1/completions for the log-probabilities of prompts (its model local-completions: echo and logprobs); the rows
are those that come with kvspan, and nothing is fetched from a hub. Prints both accuracies, the rows where they differ and the
largest difference of the right answer's nats. Exit 1 if an accuracy differs, or nats by more than 1 in 100: `kvspan eval` reads
rows in other batches, and with quantized weights ggml computes batches of other sizes by other kernels.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TREE / "tests/server"), str(TREE / "scripts")]
from check_task_scores import Encoder, compare  # noqa: E402
from store_servers import Server  # noqa: E402


def harness_scores(server, tokenizer, begins, data, limit):
    """begins: whether every text begins with a token of its own. [[sum of log-probabilities, all most likely] of every answer] of every row."""
    import lm_eval
    task = {"task": "kvspan_rows", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": data}}, "test_split": "test",
            "output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_choice": "choices", "doc_to_target": "gold",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
    model = {"model": "kvspan", "base_url": f"http://127.0.0.1:{server.port}/v1/completions", "tokenizer": tokenizer,
             "tokenizer_backend": "huggingface", "tokenized_requests": True, "num_concurrent": 1, "max_length": 4096,
             "add_bos_token": begins}
    found = lm_eval.simple_evaluate(model="local-completions", model_args=model, tasks=[task], limit=limit, log_samples=True,
                                    bootstrap_iters=0)
    samples = sorted(next(iter(found["samples"].values())), key=lambda one: one["doc_id"])
    return [[[float(sum_), bool(best)] for sum_, best in one["filtered_resps"]] for one in samples]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2", help="name or GGUF file (smollm2)")
    parser.add_argument("--task", default="piqa", choices=("piqa", "arc_easy", "arc_challenge", "openbookqa", "copa", "boolq", "hellaswag"))
    parser.add_argument("--limit", type=int, default=50, help="rows (50)")
    parser.add_argument("--cache", default="full", metavar="RECIPE", help="(full)")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--program", default=str(TREE / "build/release/bin/kvspan"), help="kvspan's program")
    flags = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/eval.json"
        subprocess.run([flags.program, "eval", flags.task, "-m", flags.model, "--limit", str(flags.limit), "--cache", flags.cache,
                        "-t", str(flags.threads), "--json", result], check=True)
        found = json.loads(pathlib.Path(result).read_text())
        ours = next(row for row in found["rows"] if row["recipe"] == flags.cache)["by_row"]
        rows = [json.loads(line) for line in open(found["data"], encoding="utf-8")][:flags.limit]
        encoder = Encoder(found["model"])
        encoder.tokenizer.save_pretrained(f"{folder}/tokenizer")
        server = Server(flags.program, "-m", flags.model, "--cache", flags.cache, "-c", "4096", "--parallel", "1", "-t", str(flags.threads))
        try:
            scores = harness_scores(server.wait(), f"{folder}/tokenizer", bool(encoder.begin), found["data"], flags.limit)
        finally:
            server.close()
    same = compare(flags.task, rows, scores, ours, "harness")
    worst = max(abs(-score[row["gold"]][0] - nats) / nats for row, score, nats in zip(rows, scores, ours["gold_nll"]))
    return 0 if same and worst <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
