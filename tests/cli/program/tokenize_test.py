# SPDX-License-Identifier: Apache-2.0
"""kvspan tokenize against llama.cpp's published vectors (data/tokenizers)."""

import json
import lzma

from program_support import STORIES, TREE, ProgramTest

VECTORS = TREE / "data/tokenizers"


class Tokenize(ProgramTest):
    def check_vectors(self, name):
        model = self.write("vocabulary.gguf", lzma.decompress((VECTORS / f"{name}.gguf.xz").read_bytes()))
        texts = (VECTORS / "ggml-vocab.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")[:-1]
        wanted = (VECTORS / f"{name}.out").read_text().splitlines()
        self.assertEqual(len(texts), len(wanted))
        for text, ids in zip(texts, wanted):
            if not text:
                self.refused("tokenize", "-m", model, "--no-bos", "-f", self.write("t", ""), says="empty")
                continue
            path = self.write("text.txt", text)
            found = self.output_of("tokenize", "-m", model, "--no-bos", "-f", path)
            self.assertEqual(found.split(), ids.split(), repr(text))

    def test_byte_pairs(self):
        self.check_vectors("ggml-vocab-gpt-2")

    def test_sentence_pieces(self):
        self.check_vectors("ggml-vocab-llama-spm")

    def test_argument_file_and_standard_input_agree(self):
        text = " Once upon\n a time"
        path = self.write("text.txt", text)
        found = {self.output_of("tokenize", "-m", STORIES, *source, stdin=text.encode())
                 for source in ([text], ["-f", path], [])}
        self.assertEqual(len(found), 1)

    def test_begin_of_text_special_tokens_and_pieces(self):
        ids = self.output_of("tokenize", "-m", STORIES, "Once upon a time")
        self.assertEqual(ids, "1 403 407 261 378\n")
        self.assertEqual(self.output_of("tokenize", "-m", STORIES, "--no-bos", "Once upon a time"),
                         "403 407 261 378\n")
        self.assertEqual(self.output_of("tokenize", "-m", STORIES, "--special", "--no-bos", "</s>").split(), ["2"])
        self.assertNotIn("2", self.output_of("tokenize", "-m", STORIES, "--no-bos", "</s>").split())
        self.assertEqual(self.output_of("tokenize", "-m", STORIES, "--pieces", "Once"), "     1  '<s>'\n   403  ' Once'\n")

    def test_json(self):
        found = json.loads(self.output_of("tokenize", "-m", STORIES, "--json", "-", "Once upon"))
        self.assertEqual(found["command"], "tokenize")
        self.assertEqual((found["count"], found["tokens"], found["pieces"]), (3, [1, 403, 407], ["<s>", " Once", " upon"]))

    def test_a_text_that_is_a_command_name(self):
        self.assertTrue(self.output_of("tokenize", "-m", STORIES, "run").startswith("1 "))
