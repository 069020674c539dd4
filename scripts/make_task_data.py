#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds data/tasks: make_task_data.py DATA [OUT]

DATA holds the sources (data/tasks/README.md names them and their licences):

    lm/lambada_openai_test.jsonl, mc/*.jsonl[.xz]    log-likelihood tasks
    qa/squad_valid_1000.jsonl                        passages and questions of RULER's qa_1
    books/adventures_of_sherlock_holmes.txt.xz       the text that needles are hidden in
    words/{adjective,noun,verb}list.txt              the words that RULER makes its keys from

Every task is a fixed random sample in random order, so that its first N rows (`--limit`) are a sample too. Prompts are
those of lm-evaluation-harness, written out; a space stands between a prompt and each of `choices`.
"""
import json
import lzma
import pathlib
import random
import re
import sys

ROWS = {"boolq": 300, "squad": 400}  # the others: 500, or all there are
DEFAULT_ROWS = 500


def arc(row):
    return {"query": row["query"] + "\nAnswer:", "choices": row["choices"], "gold": row["gold"]}


def piqa(row):
    return {"query": row["query"] + "Answer:", "choices": row["choices"], "gold": row["gold"]}


def plain(row):
    return {"query": row["query"], "choices": row["choices"], "gold": row["gold"]}


def boolq(row):
    query = re.sub(r"^Passage: ", "", row["query"])
    return {"query": query + "\nAnswer:", "choices": row["choices"], "gold": row["gold"]}


def copa(row):
    return {"query": re.sub(r", (because|therefore)$", r" \1", row["query"]), "choices": row["choices"],
            "gold": row["gold"]}


def winogrande(row):
    return {"contexts": row["context_options"], "continuation": " " + row["continuation"], "gold": row["gold"]}


def lambada(row):
    return {"prompt": row["context"], "target": " " + row["continuation"]}


def squad(row):
    passage, question = re.fullmatch(r"Title: [^\n]*\nBackground: (.*)\nQuestion: ([^\n]*)\nAnswer:", row["query"],
                                     re.DOTALL).groups()
    return {"title": row["title"], "context": passage, "question": question,
            "answers": list(dict.fromkeys(row["answers_text"]))}


TASKS = {
    "lambada": ("lm/lambada_openai_test.jsonl", lambada),
    "piqa": ("mc/piqa_valid.jsonl", piqa),
    "hellaswag": ("mc/hellaswag_valid_1000.jsonl", plain),
    "arc_easy": ("mc/arc_easy_test.jsonl", arc),
    "arc_challenge": ("mc/arc_challenge_test.jsonl", arc),
    "winogrande": ("mc/winogrande_xl_valid.jsonl", winogrande),
    "openbookqa": ("mc/openbookqa_test.jsonl", plain),
    "boolq": ("mc/boolq_valid.jsonl.xz", boolq),
    "copa": ("mc/copa_valid.jsonl", copa),
    "squad": ("qa/squad_valid_1000.jsonl", squad),
}


def main(data, out):
    def read(name):
        opener = lzma.open if name.endswith(".xz") else open
        with opener(data / name, "rt", encoding="utf-8") as file:
            return file.read()

    out.mkdir(parents=True, exist_ok=True)
    for task, (name, convert) in TASKS.items():
        rows = [convert(json.loads(line)) for line in read(name).split("\n") if line]
        chosen = random.Random(f"kvspan {task}").sample(rows, min(len(rows), ROWS.get(task, DEFAULT_ROWS)))
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
        (out / f"{task}.jsonl").write_text(text, encoding="utf-8")
    book = read("books/adventures_of_sherlock_holmes.txt.xz")
    book = book[book.index("To Sherlock Holmes she is always"):]
    (out / "haystack.txt").write_text(book, encoding="utf-8")
    for kind in ("adjective", "noun", "verb"):
        (out / f"{kind}s.txt").write_text(read(f"words/{kind}list.txt"), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if len(sys.argv) == 3
         else pathlib.Path(__file__).resolve().parent.parent / "data/tasks")
