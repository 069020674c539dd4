# SPDX-License-Identifier: Apache-2.0
"""Looks at a Hugging Face folder before anything is converted: is it one kvspan runs, and is it complete?

Standard library only. Every failure is a Refusal whose text is one line: what was found, where, what is allowed.
"""
import json
import struct
from pathlib import Path

ARCHITECTURES = {  # class named in config.json -> architecture in GGUF
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",  # its text part
    "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gptneox",
}
ROPE_TYPES = {"default", "linear", "yarn", "llama3"}
OUT_TYPES = ("auto", "f32", "f16", "bf16", "q8_0")
BYTES_PER_WEIGHT = {"auto": 2, "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32}
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
               "F8_E4M3": 1, "F8_E5M2": 1}


class Refusal(Exception):
    """A reason the user can act on, in one line."""


def read_json(path: Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as e:
        raise Refusal(f"{path}: not valid JSON ({e})") from None


def read_config(folder: Path) -> dict:
    if not folder.is_dir():
        raise Refusal(f"{folder}: no such folder")
    if not (folder / "config.json").is_file():
        raise Refusal(f"{folder}: no config.json; a Hugging Face model folder is expected")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise Refusal(f"{folder / 'config.json'}: an object is expected")
    return {**config, **(config.get("text_config") or {}), "architectures": config.get("architectures")}


def architecture_of(folder: Path, config: dict) -> str:
    """The class named in config.json, once it and its options are known to be supported."""
    named = config.get("architectures") or ["none"]
    name = named[0]
    if name not in ARCHITECTURES:
        raise Refusal(f"{folder}: architecture {name} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise Refusal(f"{folder}: rope scaling {kind!r} is not supported; supported: {', '.join(sorted(ROPE_TYPES))}")
    if name.startswith("Qwen") and config.get("use_sliding_window"):
        raise Refusal(f"{folder}: use_sliding_window is not supported for {name}")
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if name == "GPT2LMHeadModel" and config.get(key):
            raise Refusal(f"{folder}: {key} is not supported for {name}")
    return name


def safetensors_weights(path: Path) -> int:
    """Number of weights in a file, after checking that all its bytes are there."""
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
            tensors = [t for name, t in header.items() if name != "__metadata__"]
            end = max((t["data_offsets"][1] for t in tensors), default=0)
            count = 0
            for t in tensors:
                count += (t["data_offsets"][1] - t["data_offsets"][0]) // DTYPE_BYTES.get(t["dtype"], 1)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise Refusal(f"{path}: damaged safetensors header") from None
    if 8 + length + end != size:
        raise Refusal(f"{path}: {size} bytes, but its header asks for {8 + length + end}; the download is incomplete")
    return count


def count_weights(folder: Path) -> int:
    """Number of weights in the folder (for .bin files an upper estimate), after checking that none is missing."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            parts = sorted(set(read_json(folder / index).get("weight_map", {}).values()))
            missing = [p for p in parts if not (folder / p).is_file()]
            if missing:
                raise Refusal(f"{folder}: {len(missing)} of {len(parts)} weight files are missing, first {missing[0]}")
            break
    files = sorted(folder.glob("model*.safetensors"))
    if files:
        return sum(safetensors_weights(f) for f in files)
    files = sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise Refusal(f"{folder}: no weights; model*.safetensors or pytorch_model*.bin is expected")
    return sum(f.stat().st_size for f in files) // 2


def check_tokenizer(folder: Path) -> None:
    have = {p for p in ("tokenizer.model", "tokenizer.json", "vocab.json", "merges.txt") if (folder / p).is_file()}
    if not have & {"tokenizer.model", "tokenizer.json"} and not have >= {"vocab.json", "merges.txt"}:
        raise Refusal(f"{folder}: no tokenizer; tokenizer.model, tokenizer.json or vocab.json with merges.txt expected")
