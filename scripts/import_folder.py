# SPDX-License-Identifier: Apache-2.0
"""Looks at a Hugging Face folder before anything is converted: does the converter know it, and is it complete?

Standard library only. Every failure is a Refusal whose text is one line: what was found, where, what is allowed.
"""
import ast
import difflib
import json
import re
import struct
from pathlib import Path

OUT_TYPES = ("auto", "f32", "f16", "bf16", "q8_0")
BYTES_PER_WEIGHT = {"auto": 2, "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32}
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
               "F8_E4M3": 1, "F8_E5M2": 1}
# One of these holds the vocabulary, whichever library wrote it; GPT-2's pair of files is the other way.
VOCABULARIES = ("tokenizer.json", "tokenizer.jsonl", "*.model", "*.tiktoken", "tekken.json", "*vocab*.txt")


class Refusal(Exception):
    """A reason the user can act on, in one line."""


def read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as e:
        raise Refusal(f"{path}: not valid JSON ({e})") from None
    if not isinstance(value, dict):
        raise Refusal(f"{path}: an object is expected")
    return value


def read_config(folder: Path) -> dict:
    if not folder.is_dir():
        raise Refusal(f"{folder}: no such folder")
    if not (folder / "config.json").is_file():
        raise Refusal(f"{folder}: no config.json; a Hugging Face model folder is expected")
    return read_json(folder / "config.json")


def known_architectures(archive: Path) -> set[str]:
    """Classes the converter has. Its table is parsed, not imported: that would need torch, which may have to be
    installed first. Empty where there is no such table; then the converter's own refusal has to do."""
    try:
        source = (archive / "conversion" / "__init__.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == "TEXT_MODEL_MAP" for t in targets):
                return set(ast.literal_eval(node.value))
    except (OSError, ValueError, SyntaxError, TypeError):
        pass
    return set()


def architectures_in(config: dict) -> list[str]:
    """Classes named by config.json, the outermost first: of a model of several parts the text model counts too."""
    named = config.get("architectures")
    found = [name for name in named if isinstance(name, str)][:1] if isinstance(named, list) else []
    return found + [name for part in config.values() if isinstance(part, dict) for name in architectures_in(part)]


def unknown_architecture(folder: Path, name: str, known: set[str]) -> Refusal:
    def stem(text: str) -> str:  # without the ending that most names share
        return re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", text).lower()

    close = difflib.get_close_matches(stem(name), {stem(k) for k in known}, n=3, cutoff=0.7)
    near = difflib.get_close_matches(name, sorted(k for k in known if stem(k) in close), n=3)
    return Refusal(f"{folder}: architecture {name} is not one llama.cpp's converter knows" +
                   (f"; near it: {', '.join(near)}" if near else ""))


def architecture_of(folder: Path, config: dict, archive: Path) -> str:
    """The first class named in config.json that the converter knows."""
    names, known = architectures_in(config), known_architectures(archive)
    if not names:
        raise Refusal(f"{folder / 'config.json'}: names no architecture")
    for name in names:
        if not known or name in known:
            return name
    raise unknown_architecture(folder, names[0], known)


def safetensors_weights(path: Path) -> dict[str, int]:
    """Number of weights of each tensor in a file, after checking that all its bytes are there."""
    size = path.stat().st_size
    with open(path, "rb") as f:
        start = f.read(8)
        if start.startswith(b"version "):
            raise Refusal(f"{path}: a Git LFS pointer, not the weights; fetch them with git lfs pull")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise Refusal(f"{path}: truncated or not a safetensors file ({size} bytes)")
        try:
            header = json.loads(f.read(length))
            weights, end = {}, 0
            for name, tensor in header.items():
                if name != "__metadata__":
                    first, last = (int(offset) for offset in tensor["data_offsets"])
                    weights[name] = (last - first) // DTYPE_BYTES.get(tensor["dtype"], 1)
                    end = max(end, last)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refusal(f"{path}: damaged safetensors header") from None
    if 8 + length + end != size:
        raise Refusal(f"{path}: {size} bytes, but its header asks for {8 + length + end}; the download is incomplete")
    return weights


def weight_files(folder: Path) -> tuple[list[Path], set[str]]:
    """The files the converter reads, none of them missing, and the tensors an index expects in them."""
    for index, pattern in (("model.safetensors.index.json", "model*.safetensors"),
                           ("pytorch_model.bin.index.json", "pytorch_model*.bin")):
        if (folder / index).is_file():
            where = read_json(folder / index).get("weight_map")
            if not isinstance(where, dict) or not where or not all(isinstance(part, str) for part in where.values()):
                raise Refusal(f"{folder / index}: no weight_map of tensors to files")
            parts = sorted(set(where.values()))
            missing = [p for p in parts if not (folder / p).is_file()]
            if missing:
                raise Refusal(f"{folder}: {len(missing)} of {len(parts)} weight files are missing, first {missing[0]}")
            return [folder / p for p in parts], set(where)
        files = sorted(folder.glob(pattern))
        if files:
            return files, set()
    raise Refusal(f"{folder}: no weights; model*.safetensors or pytorch_model*.bin is expected")


def count_weights(folder: Path) -> int:
    """Number of weights in the folder (for .bin files an upper estimate), after checking that none is missing."""
    files, expected = weight_files(folder)
    if files[0].suffix == ".bin":
        return sum(f.stat().st_size for f in files) // 2
    weights = {name: n for f in files for name, n in safetensors_weights(f).items()}
    missing = sorted(expected - set(weights))
    if missing:
        raise Refusal(f"{folder}: {len(missing)} of {len(expected)} tensors of the index are in no file, first {missing[0]}")
    return sum(weights.values())


def check_tokenizer(folder: Path) -> None:
    pair = all((folder / name).is_file() for name in ("vocab.json", "merges.txt"))
    if not pair and not any(path.is_file() for pattern in VOCABULARIES for path in folder.glob(pattern)):
        raise Refusal(f"{folder}: no tokenizer; tokenizer.json, tokenizer.model or vocab.json with merges.txt expected")
