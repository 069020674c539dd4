# SPDX-License-Identifier: Apache-2.0
"""Completion scripts: they parse, and bash offers what the program takes."""

import re
import subprocess

from program_support import ProgramTest


class Completion(ProgramTest):
    def bash_offers(self, *words):
        """What bash completes the last of `words` to."""
        self.write("completion.bash", self.output_of("completion", "bash"))
        script = ('source completion.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvspan; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-u", "-c", script, "bash", *words], capture_output=True, text=True,
                              cwd=self.folder, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_script_parses(self):
        script = self.output_of("completion", "bash").encode()
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_bash_offers_commands(self):
        self.assertEqual(self.bash_offers("kvspan", "ru"), ["run"])
        self.assertLessEqual({"chat", "demo", "pull", "--version"}, set(self.bash_offers("kvspan", "")))

    def test_bash_offers_exactly_the_flags_of_help(self):
        text = self.output_of("run", "--help").split("Options:")[1].split("Examples:")[0]
        flags = {name for line in re.findall(r"^  (-[-\w,]+)", text, re.MULTILINE) for name in line.split(",")}
        self.assertGreater(len(flags), 20)
        self.assertEqual(set(self.bash_offers("kvspan", "run", "-")), flags)

    def test_bash_offers_values(self):
        self.write("story.gguf", "")
        self.assertEqual(self.bash_offers("kvspan", "run", "-m", "s"), ["smollm2", "stories260k", "story.gguf"])
        self.assertEqual(self.bash_offers("kvspan", "run", "--cpu-level", "re"), ["ref"])
        self.assertEqual(self.bash_offers("kvspan", "run", "-f", "st"), ["story.gguf"])
        self.assertEqual(self.bash_offers("kvspan", "completion", "z"), ["zsh"])
        self.assertEqual(self.bash_offers("kvspan", "pull", "ge"), ["gemma3"])
        self.assertEqual(self.bash_offers("kvspan", "run", "-p", "s"), [])

    def test_zsh_and_fish_name_every_command(self):
        commands = re.findall(r"^  (\w+) ", self.output_of("--help").split("Subcommands:")[1].split("Examples:")[0],
                              re.MULTILINE)
        zsh, fish = self.output_of("completion", "zsh"), self.output_of("completion", "fish")
        for command in commands:
            self.assertIn(f"    {command}) _arguments", zsh)
            self.assertIn(f" -n __fish_use_subcommand -a {command} -d ", fish)
