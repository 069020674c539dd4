# SPDX-License-Identifier: Apache-2.0
"""What the tests of the program share: running it, the small model, and GGUF files made from it."""

import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["KVSPAN_PROGRAM"]
TREE = pathlib.Path(os.environ["KVSPAN_TREE"])
STORIES = TREE / "data/models/stories260K.gguf"
# data/models/README.md: what an independent implementation computes, greedily, from the first token.
STORY = (" Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
         "One day, she saw a big, red ball. She wanted to play with it, but it was too high")
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
          "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def environment(home):
    """A clean environment: no colours asked for, nothing kept outside `home`."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "KVSPAN_DATA")}
    return {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(pathlib.Path(home) / "cache"), "TERM": "xterm"}


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvspan-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments, stdin=b"", **options):
        """Returns the finished process; output as bytes."""
        command = [PROGRAM] + [os.fsencode(a) if isinstance(a, (str, pathlib.Path)) else a for a in arguments]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=300, cwd=self.folder,
                              env=environment(self.folder), **options)

    def output_of(self, *arguments, **options):
        done = self.run_program(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return done.stdout.decode()

    def refused(self, *arguments, says=(), **options):
        """Asserts exit code 2, nothing on stdout, and one line on stderr that has every text of `says`."""
        done = self.run_program(*arguments, **options)
        text = done.stderr.decode()
        self.assertEqual(done.returncode, 2, text)
        self.assertEqual(done.stdout, b"")
        self.assertRegex(text, r"\Akvspan: [^\n]+\n\Z")
        for part in [says] if isinstance(says, str) else says:
            self.assertIn(part, text)
        return text

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path


# The fixed sizes of GGUF value types; 8 is a string, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def skip_value(data, at, kind):
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind == 9:
        inner, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = skip_value(data, at, inner)
        return at
    return at + SIZES[kind]


def add_string(data, key, value):
    """The GGUF file `data` with one more string among its metadata."""
    tensors, pairs = struct.unpack_from("<QQ", data, 8)
    at = 24
    for _ in range(pairs):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        kind = struct.unpack_from("<I", data, at)[0]
        at = skip_value(data, at + 4, kind)
    end = at
    for _ in range(tensors):
        end += 8 + struct.unpack_from("<Q", data, end)[0]
        dimensions = struct.unpack_from("<I", data, end)[0]
        end += 4 + 8 * dimensions + 4 + 8
    weights = (end + 31) // 32 * 32
    entry = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IQ", 8, len(value.encode())) + value.encode()
    head = data[:16] + struct.pack("<Q", pairs + 1) + data[24:at] + entry + data[at:end]
    return head + bytes(-len(head) % 32) + data[weights:]


def model_with_template(path):
    """stories260K with the ChatML template."""
    path.write_bytes(add_string(STORIES.read_bytes(), "tokenizer.chat_template", CHATML))
    return path
