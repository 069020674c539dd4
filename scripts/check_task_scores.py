#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `kvspan eval TASK` with other programs: check_task_scores.py MODEL.gguf KVSPAN.json... [options]

KVSPAN.json is what `kvspan eval TASK -m MODEL.gguf --limit N --json KVSPAN.json` wrote, for any of lambada, piqa, arc_easy,
winogrande and the other log-likelihood tasks (several files of one task, with parts of its rows as --data, count as
one). The same rows are encoded here by transformers' tokenizer and scored with logits of transformers or llama.cpp, by the
rules of lm-evaluation-harness: context and continuation are encoded together and split where the encoded context ends.
Prints, for each task, both accuracies, the rows where they differ, and the largest difference of the gold answer's
log-likelihood. Exit 1 where an accuracy differs by more than one row in two hundred.

    --llama FILE   logits of llama.cpp: FILE is scripts/llama_logits.cc, built; default: transformers, weights as f32
    --work FILE    keeps log-likelihoods there, one line a row, and goes on from what it holds
    --seconds N    stops after N seconds and compares the rows that are done; to be called again
    --threads N    of transformers; default 1

Needs transformers and gguf; torch and accelerate for transformers' logits. With quantized weights ggml rounds activations to 8
bits and transformers does not, so that answers of nearly equal likelihood may change places; `--weights f32` of kvspan
does not either.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time


def branches(row):
    """(context, continuation, characters) of every answer; of LAMBADA there is one."""
    if "contexts" in row:
        return [(c, row["continuation"], len(row["continuation"])) for c in row["contexts"]]
    if "choices" in row:
        return [(row["query"], " " + c, len(c)) for c in row["choices"]]
    return [(row["prompt"], row["target"], len(row["target"]))]


class Encoder:
    def __init__(self, model):
        import gguf
        import transformers
        folder, name = os.path.split(os.path.abspath(model))
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
        # transformers begins every text with a token here, whether the file says so or not.
        fields = gguf.GGUFReader(model).fields
        # It also loses that this tokenizer parts digits, and with them the spaces before one, from the rest.
        pre = fields.get("tokenizer.ggml.pre")
        if pre and pre.contents() == "smollm":
            from tokenizers import pre_tokenizers
            self.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        kind = fields["tokenizer.ggml.model"].contents()
        begins = fields.get("tokenizer.ggml.add_bos_token")
        self.begin = [self.tokenizer.bos_token_id] if (begins.contents() if begins else kind == "llama") else []

    def ids(self, text):
        return self.begin + self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode(self, row):
        """(token ids, number of the first scored one) of every answer."""
        out = []
        for context, continuation, _ in branches(row):
            kept = context.rstrip()
            out.append((self.ids(context + continuation), len(self.ids(kept))))
        return out


def score_with_transformers(model, rows, threads):
    """Yields, for every row of encoded answers, [sum of log-probabilities, all most likely] of each."""
    import torch
    import transformers
    torch.set_num_threads(threads)
    folder, name = os.path.split(os.path.abspath(model))
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    for pairs in rows:
        longest = max(len(tokens) for tokens, _ in pairs)
        ids = torch.zeros((len(pairs), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, (tokens, _) in enumerate(pairs):
            ids[i, :len(tokens)] = torch.tensor(tokens)
            mask[i, :len(tokens)] = 1
        out = []
        with torch.no_grad():  # padding is to the right, which nothing before it sees
            hidden = network.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            for i, (tokens, begin) in enumerate(pairs):
                scored = network.lm_head(hidden[i, begin - 1:len(tokens) - 1]).double().log_softmax(-1)
                targets = ids[i, begin:len(tokens)]
                out.append([scored.gather(1, targets[:, None]).sum().item(), bool((scored.argmax(-1) == targets).all())])
        yield out


def score_with_llama(program, model, rows):
    """The same by llama_logits --scores."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for pairs in rows:
            for tokens, begin in pairs:
                print(begin, *tokens, file=file)
        file.flush()
        process = subprocess.Popen([program, "--scores", model, file.name], stdout=subprocess.PIPE, text=True)
        try:
            for pairs in rows:
                out = []
                for _ in pairs:
                    total, best = process.stdout.readline().split()
                    out.append([float(total), best == "1"])
                yield out
        finally:
            process.kill()
            process.wait()


def judged(row, scores):
    """acc, acc_norm, nats of the gold answer."""
    if "target" in row:
        return float(scores[0][1]), None, -scores[0][0]
    sums = [s for s, _ in scores]
    norms = [s / n for s, (_, _, n) in zip(sums, branches(row))]
    return (float(sums.index(max(sums)) == row["gold"]), float(norms.index(max(norms)) == row["gold"]), -sums[row["gold"]])


def compare(task, rows, scores, by_row, other):
    """Prints the comparison of one task; whether the accuracies are near enough."""
    ours = [judged(row, score) for row, score in zip(rows, scores)]
    count = len(ours)
    nats = by_row["ppl" if task == "lambada" else "gold_nll"]
    worst = max(abs(a[2] - b) for a, b in zip(ours, nats))
    fine = True
    for metric, index in (("acc", 0), ("acc_norm", 1)):
        if metric not in by_row:
            continue
        differ = sum(a[index] != b for a, b in zip(ours, by_row[metric]))
        here, there = sum(a[index] for a in ours), sum(by_row[metric])
        fine &= abs(here - there) <= math.ceil(count / 200)
        print(f"{task:14} {metric:8} {count:4} rows   kvspan {there:4.0f} ({there / count:6.1%})   "
              f"{other} {here:4.0f} ({here / count:6.1%})   rows that differ: {differ}")
    print(f"{task:14} nats of the gold answer: largest difference {worst:.4f}, of up to {max(nats):.1f}")
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("results", nargs="+")
    parser.add_argument("--llama")
    parser.add_argument("--work")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    end = time.monotonic() + flags.seconds
    known = {}
    if flags.work and os.path.exists(flags.work):
        for line in open(flags.work):
            entry = json.loads(line)
            known[entry["row"]] = entry["scores"]
    work = open(flags.work, "a") if flags.work else None
    tasks = {}
    for path in flags.results:
        found = json.load(open(path))
        lines, by_row = tasks.setdefault(found["task"], ([], {}))
        full = found["rows"][0]
        with open(found["data"], encoding="utf-8") as file:
            lines += [line for line in file if line.strip()][:full["rows"]]
        for metric, values in full["by_row"].items():
            by_row.setdefault(metric, []).extend(values)
    missing = [line for lines, _ in tasks.values() for line in lines if line not in known]
    if missing:
        encoder = Encoder(flags.model)
        rows = [encoder.encode(json.loads(line)) for line in missing]
        scores = (score_with_llama(flags.llama, flags.model, rows) if flags.llama
                  else score_with_transformers(flags.model, rows, flags.threads))
        for i, (line, found) in enumerate(zip(missing, scores)):
            known[line] = found
            if work:
                print(json.dumps({"row": line, "scores": found}), file=work, flush=True)
            if time.monotonic() > end and i + 1 < len(missing):
                scores.close()
                print(f"{len(missing) - i - 1} rows are left; call again")
                break
    fine = True
    for task, (lines, by_row) in tasks.items():
        done = [i for i, line in enumerate(lines) if line in known]
        if not done:
            continue
        values = {metric: [found[i] for i in done] for metric, found in by_row.items()}
        fine &= compare(task, [json.loads(lines[i]) for i in done], [known[lines[i]] for i in done], values,
                        "llama.cpp" if flags.llama else "transformers")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
