# SPDX-License-Identifier: Apache-2.0
"""scripts/check_rooms.py finds each kind of fault in a small tree, and none in a tree without."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from fakes import TREE

TAG = "// SPDX-License-Identifier: Apache-2.0\n"
GOOD = {
    "include/kvspan/a.h": TAG + '#include <string>\n#include "kvspan/b.h"\n',
    "include/kvspan/b.h": TAG + "#pragma once\n#include <stdint.h>\n",
    "src/base/x.h": TAG + "#pragma once\n// getenv( in a comment is no call; io/f.cc has one\n",
    "src/attention/a.cc": TAG + '#include <vector>\n#include "base/x.h"\n#include "cache/c.h"\n#include "kvspan/a.h"\n',
    "src/codec/llama_blocks.cc": TAG + '#include "codec/llama_blocks.h"\n',
    "src/llama/g.cc": TAG + '#include <ggml.h>\n#include <llama.h>\n#include "io/f.h"\n',
    "src/io/f.cc": TAG + "#include <fstream>\nint f() { return getenv(\"X\") != nullptr; }\n",
    "src/cache/bands/s.h": TAG + "struct BandsStore;\n",
    "src/method/method_table.cc": TAG + "int bands_method();\n",
    "src/cli/e.cc": TAG + 'const char* kRecipe = "bands:bits=2";\n',
    "src/attention/cuda/k.cu": TAG + "#include <cuda_runtime.h>\n",
    "tests/attention/t.cc": TAG + "#include <chrono>\n",
    "scripts/s.py": "#!/usr/bin/env python3\n# SPDX-License-Identifier: Apache-2.0\n",
    "run": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n",
}
FAULTS = [  # file, text, what the finding says
    ("src/cache/c.cc", TAG + '#include "attention/a.h"\n', "src/cache/c.cc:2: includes attention/a.h, but room cache comes before attention"),
    ("tests/base/t.cc", TAG + '#  include "io/f.h"\n', "tests/base/t.cc:2: includes io/f.h, but room base comes before io"),
    ("include/kvspan/c.h", TAG + '#include "base/x.h"\n', "includes base/x.h; public headers need only"),
    ("include/kvspan/c.h", TAG + "#include <fmt/core.h>\n", "includes fmt/core.h; public headers need only"),
    ("include/kvspan/c.h", TAG + "\n" * 200, "include/kvspan/c.h: 201 lines, allowed are 200"),
    ("examples/e/e.cc", TAG + '#include "cache/c.h"\n', "includes cache/c.h; examples use public headers"),
    ("src/eval/e.cc", TAG + "#include <ggml-cpu.h>\n", "ggml, libllama and common stay in the rooms llama and server"),
    ("src/cli/m.cc", TAG + '#include "llama.h"\n', "ggml, libllama and common stay in the rooms llama and server"),
    ("src/cli/m.cc", TAG + "#include <sampling.h>\n", "ggml, libllama and common stay in the rooms llama and server"),
    ("src/attention/k.cc", TAG + "#include <cuda_fp16.h>\n", "CUDA stays in folders called cuda"),
    *[("src/linalg/l.cc", TAG + f"#include <{h}>\n", f"includes <{h}>; room linalg knows no")
      for h in ("fstream", "filesystem", "iostream", "chrono")],
    ("src/subspace/s.cc", TAG + 'auto x = std::getenv("A");\n', "src/subspace/s.cc:2: calls getenv"),
    ("src/method/m.cc", TAG + "// what bands would do\n", "src/method/m.cc:2: names bands, which only folders"),
    ("src/io/o.cc", TAG + "int x;  // as io/gone.h says\n", "src/io/o.cc:2: names io/gone.h, which is no file"),
    ("src/io/untagged.cc", "int x;\n", "src/io/untagged.cc: no 'SPDX"),
    ("test", "#!/bin/sh\n", "test: no 'SPDX"),
    ("src/io/long.cc", TAG + "\n" * 600, "src/io/long.cc: 601 lines, allowed are 600"),
    ("src/utils/u.cc", TAG, "src/utils: not a room"),
]


class CheckRoomsTest(unittest.TestCase):
    def check(self, files):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return subprocess.run([sys.executable, TREE / "scripts/check_rooms.py", folder], capture_output=True, text=True)

    def test_a_good_tree_has_no_findings(self):
        result = self.check(GOOD)
        self.assertEqual((result.returncode, result.stdout), (0, f"{len(GOOD)} files, 0 findings\n"))

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(self.check({}).returncode, 1)

    def test_each_fault_is_found_alone(self):
        for name, text, finding in FAULTS:
            with self.subTest(finding):
                result = self.check({**GOOD, name: text})
                self.assertEqual(result.returncode, 1)
                self.assertIn(finding, result.stdout)
                self.assertIn(", 1 findings", result.stdout)


if __name__ == "__main__":
    unittest.main()
