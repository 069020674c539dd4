#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/results/tables.md from the JSON files in docs/results: make_result_tables.py [FOLDER]

Prints the page; `scripts/make_result_tables.py > docs/results/tables.md` renews it. A file is what
a kvspan command wrote with --json; its kind is told by its keys. Files of other kinds (single units
of studies) have no table. A test compares the page with this script's output.
"""

import json
import math
import pathlib
import re
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent
MIB = 1024 * 1024
HEAD = """# Tables

<!-- Written by scripts/make_result_tables.py from the JSON files beside this page. Do not edit. -->

[README.md](README.md) names the command of each file. Two sizes are relative to the f16 cache of the same tokens: *many texts*
is f16 divided by the cache, *one text* by the cache and the codecs that all sequences of a model share. *Bits*: bytes of the cache
times 8, divided by the numbers that a full cache stores; f16 is 16. *KL*: mean divergence from the full cache in nats. *Top-1*:
how often the most likely next token is the full cache's.
"""


def model_names():
    """File name -> short name, as in data/models.json."""
    models = json.loads((TREE / "data/models.json").read_text(encoding="utf-8"))["models"]
    return {model["file"]: model["name"] for model in models}


def table(titles, rows):
    """A Markdown table; the columns after the first are aligned to the right."""
    yield "| " + " | ".join(titles) + " |"
    yield "| --- |" + " ---: |" * (len(titles) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def option(document, *names):
    """What followed one of these flags on the command line, or None."""
    words = document.get("arguments") or []
    return next((words[i + 1] for i, word in enumerate(words[:-1]) if word in names), None)


def machine(document):
    """The processor and how many threads worked."""
    cpu = (document.get("machine") or {}).get("cpu") or f"a processor with {document['cpu_level']}"
    threads = document["threads"]
    return f"{cpu.replace('(R)', '')}, {threads} thread{'s' if threads != 1 else ''}"


def many_texts(row):
    return f"{row['kv_ratio']:.2f}x" if row.get("kv_ratio") else ""


def one_text(row):
    """f16 over the cache with the codecs that all sequences share."""
    if not row.get("kv_bytes_full"):
        return ""
    return f"{row['kv_bytes_full'] / (row['kv_bytes'] + row.get('shared_bytes', 0)):.2f}x"


def per_cent(fraction, digits=2):
    return f"{100 * fraction:.{digits}f} %"


def is_perplexity(document):
    return document.get("task") == "ppl"


def is_bench(document):
    return "rows" in document and any("decode_tok_s" in row and "recipe" in row for row in document["rows"])


def is_verify(document):
    return "rows" in document and any("kl_decoded" in row for row in document["rows"])


def is_tasks(document):
    return "rows" in document and any("score" in row for row in document["rows"])


def is_cuda(document):
    return "gpu" in document and "attention" in document


def is_study(document):
    return document.get("format") == "kvspan-study" and "verdicts" in document


class Results:
    """All documents of a folder by their path in it."""

    def __init__(self, folder):
        self.names = model_names()
        self.documents = {}
        for path in sorted(folder.rglob("*.json")):
            document = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(document, dict):
                self.documents[path.relative_to(folder).as_posix()] = document
        # Texts are known by their checksum where a command line does not name them.
        self.texts = {self.text_sum(d): option(d, "-f", "--file") for d in self.documents.values()
                      if option(d, "-f", "--file") and self.text_sum(d)}

    @staticmethod
    def text_sum(document):
        return (document.get("identity") or {}).get("text_sha256")

    def of_kind(self, kind):
        return [(file, document) for file, document in self.documents.items() if kind(document)]

    def model(self, document):
        name = pathlib.PurePosixPath(document["model"]).name
        return self.names.get(name, name)

    def text(self, document):
        return option(document, "-f", "--file") or self.texts.get(self.text_sum(document)) or "a text that is not named"


def perplexity(results):
    groups = {}
    for file, document in results.of_kind(lambda d: is_perplexity(d) and "equal_bytes" not in d):
        key = (results.model(document), document["ctx"], results.text(document), document["weights"], document["block"])
        groups.setdefault(key, []).append((file, document))
    for (model, ctx, text, weights, block), files in sorted(groups.items()):
        yield f"### {model}, {text}, windows of {ctx:,} tokens"
        yield ""
        yield (f"Weights {'as in the file' if weights == 'file' else 'as ' + weights}, batches of {block} tokens "
               "(`kvspan eval ppl`).")
        yield ""
        rows = []
        for file, document in files:
            full = next(row for row in document["rows"] if row["recipe"] == "full")
            for row in document["rows"]:
                if row is full or row.get("kl") is None:
                    continue
                rows.append((row["bits"], [
                    f"`{row['recipe']}`", f"{row['bits']:.2f}", many_texts(row), one_text(row),
                    f"{row['ppl']:.3f} ({row['dppl_pct']:+.2f} %)", f"{full['ppl']:.3f}", f"{row['kl']:.4f}",
                    per_cent(row["top1"]), str(document["windows"]), f"[{file}]({file})"]))
        rows.sort(key=lambda row: row[0])
        yield from table(["recipe", "bits", "many texts", "one text", "perplexity", "of `full`", "KL", "top-1", "windows", "file"],
                         [row for _, row in rows])


def kl_interval(row):
    """95 % of the mean KL, from the spread of blocks of positions."""
    blocks = row.get("by_window") or {}
    numbers, weights = blocks.get("kl") or [], blocks.get("count") or []
    if len(numbers) < 8:
        return ""
    total = sum(weights)
    mean = sum(n * w for n, w in zip(numbers, weights)) / total
    error = math.sqrt(sum((w * (n - mean)) ** 2 for n, w in zip(numbers, weights))) / total
    return f"{max(0.0, mean - 1.96 * error):.4f} .. {mean + 1.96 * error:.4f}"


def equal_bytes(results):
    """Methods at equal bytes: one table for each model, text and size, the least divergence first."""
    groups = {}
    for file, document in results.of_kind(lambda d: is_perplexity(d) and "equal_bytes" in d):
        rows = {row["recipe"]: row for row in document["rows"]}
        full = rows["full"]["kv_bytes_full"]
        key = (results.model(document), results.text(document), document["ctx"], document["windows"], document["weights"], document["block"])
        sizes = groups.setdefault(key, {})
        for fit in document["equal_bytes"]["fitted"]:
            row = rows.get(fit["recipe"], {})
            if row.get("kl") is not None:
                size = sizes.setdefault(f"{full / fit['target_bytes']:.3g}", {"bytes": fit["target_bytes"], "rows": [], "out": []})
                size["rows"].append((row, fit["given"], file, machine(document)))
        for one in document["equal_bytes"]["refused"]:
            size = sizes.setdefault(f"{full / one['target_bytes']:.3g}", {"bytes": one["target_bytes"], "rows": [], "out": []})
            size["out"].append(one["given"])
    for (model, text, ctx, windows, weights, block), sizes in sorted(groups.items()):
        for ratio, size in sorted(sizes.items(), key=lambda pair: float(pair[0])):
            if not size["rows"]:
                continue
            yield f"### {model}, {ctx:,} tokens, {ratio}x"
            yield ""
            machines = sorted({where for *_, where in size["rows"]})
            yield (f"{text}, {windows} window{'s' if windows > 1 else ''}, weights {'as in the file' if weights == 'file' else 'as ' + weights}, "
                   f"batches of {block} tokens, caches of {size['bytes']:,} bytes; {'; '.join(machines)}.")
            yield ""
            size["rows"].sort(key=lambda entry: entry[0]["kl"])
            yield from table(["method", "KL", "95 %", "perplexity", "top-1", "many texts", "one text", "recipe", "file"],
                             [[f"`{given}`", f"{row['kl']:.4f}", kl_interval(row), f"{row['dppl_pct']:+.2f} %", per_cent(row["top1"]),
                               many_texts(row), one_text(row), f"`{row['recipe']}`", f"[{file}]({file})"]
                              for row, given, file, _ in size["rows"]])
            if size["out"]:
                yield f"No setting comes near this size: {', '.join(f'`{given}`' for given in sorted(set(size['out'])))}."
                yield ""


def against(row, key):
    return f"{row[key]:.2f}x" if row.get(key) is not None else ""


def bench(results):
    for file, document in results.of_kind(is_bench):
        if document.get("batch", 1) != 1:
            continue
        yield f"### {results.model(document)}, {machine(document)}"
        yield ""
        yield f"[{file}]({file}); *against f16* is against llama.cpp with an f16 cache in the same run."
        yield ""
        rows = [[f"`{row['recipe']}`" if row["engine"] == "kvspan" else f"{row['engine']} {row['recipe']}",
                 f"{row['depth']:,}", f"{row['decode_tok_s']:.1f}", f"{row['decode_spread']:.0%}".replace("%", " %"),
                 against(row, "decode_vs_llama_f16"), f"{row['prefill_tok_s']:.0f}", against(row, "prefill_vs_llama_f16"),
                 f"{row['attn_ms']:.1f}" if row.get("attn_ms") is not None else "",
                 f"{row['kv_bytes'] / MIB:.1f}", f"{row.get('shared_bytes', 0) / MIB:.1f}", f"{row['peak_rss_bytes'] / MIB:.0f}"]
                for row in document["rows"]]
        yield from table(["cache", "depth", "decode tok/s", "spread", "against f16", "prefill tok/s", "against f16",
                          "attention, ms", "KV, MiB", "shared, MiB", "peak, MiB"], rows)


def peers(results):
    """llama.cpp by its own benchmark and by ours, so that no comparison is with a slow one."""
    for file, document in results.of_kind(lambda d: d.get("command") == "peer_check"):
        yield (f"{document['model']}, {document['depth']:,} tokens, {document['threads']} threads of {document['machine']['cpu']} ([{file}]({file}), "
               "`scripts/peer_check.py`): llama.cpp by its own `llama-bench` and as `kvspan bench --peer` runs it, in turns. "
               "*Of the best*: of the fastest that llama.cpp was in any way.")
        yield ""
        yield from table(["engine", "prefill tok/s", "of the best", "decode tok/s", "of the best"],
                         [[f"`{row['engine']}`", f"{row['prefill_tok_s']:.1f}", f"{row['prefill_vs_best']:.2f}x", f"{row['decode_tok_s']:.1f}",
                           f"{row['decode_vs_best']:.2f}x"] for row in document["rows"]])


def batches(results):
    rows = []
    for file, document in results.of_kind(is_bench):
        if document.get("batch", 1) == 1:
            continue
        full = next((row for row in document["rows"] if row["recipe"] == "full"), None)
        for row in document["rows"]:
            ratio = f"{row['decode_tok_s'] / full['decode_tok_s']:.2f}x" if full and row is not full else ""
            rows.append([f"`{row['recipe']}`", str(document["batch"]), f"{row['depth']:,}", f"{row['decode_tok_s']:.1f}",
                         f"{row['decode_spread']:.0%}".replace("%", " %"), ratio, f"{row['kv_bytes'] / MIB:.0f}",
                         machine(document), f"[{file}]({file})"])
    if rows:
        yield from table(["cache", "sequences", "depth", "decode tok/s", "spread", "against `full`", "KV, MiB", "machine",
                          "file"], rows)


def first_tokens(results):
    for file, document in results.of_kind(lambda d: d.get("command") == "first_token"):
        load = max(row["load_before"] for row in document["rows"])
        yield f"### {document['model']}, {machine(document)}"
        yield ""
        yield (f"Seconds from the start of `kvspan run` to the first letter, and seconds of processor time ([{file}]({file})); up to "
               f"{load:.0f} other programs were running. The first start of a recipe designs its codes; `full` took turns with later starts.")
        yield ""
        rows = [[f"`{row['recipe']}`"] + [f"{row[f'{start}_start_{unit}']:.2f}" for unit in ("s", "cpu_s") for start in ("first", "later", "full")]
                for row in document["rows"]]
        yield from table(["recipe", "first start", "later", "`full`", "processor: first", "later", "`full`"], rows)


def busy_machines(results):
    for file, document in results.of_kind(lambda d: d.get("command") == "busy_decode"):
        yield f"### {document['model']}, {machine(document)}"
        yield ""
        yield f"Tokens a second alone and beside {document['busy_processes']} busy processes, the slowest run ([{file}]({file}))."
        yield ""
        yield from table(["recipe", "alone", "with `--fixed-threads`", "beside others", "share"],
                         [[f"`{row['recipe']}`", f"{row['idle_tok_s']:.1f}", f"{row['idle_fixed_tok_s']:.1f}", f"{min(row['busy_tok_s']):.1f}",
                           f"{row['slowest_share']:.2f}"] for row in document["rows"]])


def server_loads(results):
    """kvspan serve beside the stock server, one line for each number of clients."""
    for file, document in results.of_kind(lambda d: str(d.get("command")).startswith("scripts/serve_load.py") and "rows" in d):
        if "first_token_p50" not in document["rows"][0]:
            continue  # a mixed load, watched over time
        yield f"`{document['command']}`: {document['model']}, {document['cores']} cores of {document['machine']} ([{file}]({file}))."
        yield ""
        yield from table(["server", "clients", "prompt", "requests a second", "first token, median s", "99 of 100", "KV MiB"],
                         [[row["server"], str(row["clients"]), f"{row['prompt']:,}", f"{row['requests_per_second']:.3f}",
                           f"{row['first_token_p50']:.1f}", f"{row['first_token_p99']:.1f}", f"{row['kv_bytes'] / 2**20:.1f}"]
                          for row in document["rows"]])


def tasks(results):
    rows = []
    for file, document in results.of_kind(is_tasks):
        for row in document["rows"]:
            if row.get("score") is None:
                continue
            rows.append([row["task"], f"`{row['recipe']}`", f"{document['length']:,}", str(row["rows"]),
                         f"{100 * row['score']:.1f} %", f"{100 * row['score_low']:.1f} .. {100 * row['score_high']:.1f}",
                         f"{row['kv_ratio']:.1f}x", f"[{file}]({file})"])
    if rows:
        yield from table(["task", "cache", "length", "prompts", "score", "95 % interval", "many texts", "file"], rows)


def verify(results):
    rows = []
    for file, document in results.of_kind(is_verify):
        for row in document["rows"]:
            rows.append([row["name"], f"{row['compared']:,}", f"{document['tokens']:,}", document["weights"],
                         f"{row['kl_mean']:.1e}", f"{row['top1']:.2%}".replace("%", " %"), f"[{file}]({file})"])
    if rows:
        yield from table(["engine and cache", "positions", "depth up to", "weights", "mean KL", "top-1", "file"], rows)


def cuda(results):
    """Attention of device caches beside torch's, one line for each case and length."""
    for file, document in results.of_kind(is_cuda):
        rows = []
        for row in document["attention"]:
            if "speedup" not in row:
                continue
            rows.append([row["case"], f"{row['sequences']} x {row['tokens']:,}", row["chunk_widths"] or "f16",
                         f"{row['code_bytes_per_token']:.0f}" if row["code_bytes_per_token"] else f"{row['f16_bytes_per_token']:,}",
                         f"{1000 * row['ms']:.1f}", f"{1000 * row['sdpa_ms']:.1f}", f"{row['speedup']:.2f}x", f"[{file}]({file})"])
        note = f" {document['note']}" if "note" in document else ""
        yield f"One layer, one query position of each sequence, {document['gpu']['name']}; `{document['command']}`.{note}"
        yield ""
        yield from table(["case", "sequences", "widths of 64 digits", "bytes a token", "us", "SDPA in f16, us", "faster", "file"], rows)
        eigen = document.get("eigen")
        if eigen:
            yield (f"Gram eigenproblems, {eigen['case']}: {eigen['ms']:.1f} ms; `torch.linalg.eigh` {eigen['torch_eigh_ms']:.0f} ms, "
                   f"`torch.linalg.svd` {eigen['torch_svd_ms']:.0f} ms.")
            yield ""


def cuda_decode(results):
    """Whole decode steps on a GPU, one line for each cache."""
    for file, document in results.of_kind(lambda d: d.get("command") == "gpu_decode"):
        yield (f"{document['gpu']['name']}, [{file}]({file}): all layers, all sequences in one pass, medians of "
               f"`scripts/gpu_decode.py`. *Against f16*: llama.cpp of the same build, caches on the same GPU. *KV* leaves out what all "
               f"sequences share.")
        yield ""
        rows = []
        for case in document["decode"]:
            for row in case["rows"]:
                rows.append([case["model"], f"{case['batch']} x {case['depth']:,}",
                             f"`{row['recipe']}`" if row["engine"] == "kvspan" else f"{row['engine']} {row['recipe']}",
                             f"{row['decode_tok_s']:,.0f}", f"{row['decode_spread']:.0%}".replace("%", " %"), against(row, "decode_vs_llama_f16"),
                             f"{row['prefill_tok_s']:,.0f}", f"{row['kv_bytes'] / MIB:,.1f}", f"{row['shared_bytes'] / MIB:,.1f}", case["commit"]])
        yield from table(["model", "sequences", "cache", "decode tok/s", "spread", "against f16", "prefill tok/s", "KV, MiB", "shared, MiB", "commit"],
                         rows)


def cuda_counters(results):
    """What each kernel of device attention waits for, one line a kernel."""
    for file, document in results.of_kind(lambda d: "counters" in d):
        yield (f"{document['gpu']['name']}, [{file}]({file}) of {document['commit']}: each kernel by itself, with cold caches "
               "(`scripts/gpu_counters.py`). Shares are of the most that the device can do; *waits* are cycles of a warp between two "
               "instructions, by what it waits for.")
        yield ""
        rows = []
        for case in document["counters"]:
            for kernel in case["kernels"]:
                waits = ", ".join(f"{name.replace('_', ' ')} {cycles:.1f}" for name, cycles in list(kernel["waits"].items())[:4])
                rows.append([case["case"], kernel["kernel"].removesuffix("_kernel"), f"{kernel['us']:.1f}"] +
                            [f"{kernel[share]:.0%}".replace("%", " %") for share in ("multiprocessors", "issue_slots", "shared_memory_and_first_level",
                                                                                     "second_level_cache", "memory")] + [waits])
        yield from table(["case", "kernel", "us", "multiprocessors", "issue slots", "shared memory", "second-level cache", "memory", "waits"], rows)


def studies(results):
    for file, document in results.of_kind(is_study):
        folder = pathlib.PurePosixPath(file).parent.name
        yield f"### {folder}"
        yield ""
        yield f"`kvspan {' '.join(document['arguments'])}`: [{file}]({file})"
        yield ""
        yield "| | claim | verdict | because |"
        yield "| --- | --- | --- | --- |"
        for verdict in document["verdicts"]:
            yield f"| {verdict['id']} | {verdict['claim']} | {verdict['verdict']} | {verdict['because']} |"
        yield ""


SECTIONS = [("Methods at equal bytes", equal_bytes), ("Perplexity and divergence", perplexity), ("Speed and memory", bench), ("Against llama-bench", peers),
            ("Several sequences together", batches), ("Time to the first token", first_tokens), ("Beside busy programs", busy_machines),
            ("A server under load", server_loads),
            ("Retrieval", tasks),
            ("Logits against llama.cpp", verify), ("Attention on a GPU", cuda), ("Decoding on a GPU", cuda_decode),
            ("What limits kernels on a GPU", cuda_counters), ("Studies", studies)]


def page(folder):
    """The whole page for the JSON files in `folder` and below."""
    results = Results(folder)
    sections = [(title, list(section(results))) for title, section in SECTIONS]
    lines = [HEAD]
    for title, body in sections:
        if body:
            anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            lines.append(f"- [{title}](#{anchor})")
    lines.append("")
    for title, body in sections:
        if body:
            lines += [f"## {title}", "", *body]
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else TREE / "docs/results"
    sys.stdout.write(page(folder))


if __name__ == "__main__":
    main()
