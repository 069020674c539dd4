// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <array>

namespace kvspan::cli {
namespace {

constexpr std::array kCommands{
    Command{"run", "Answer one prompt", setup_run},
    Command{"chat", "Talk with a model", setup_chat},
    Command{"serve", "Serve a model over HTTP, as llama-server does", setup_serve},
    Command{"demo", "Ask about a long text and compare caches", setup_demo},
    Command{"tokenize", "Show the tokens of a text", setup_tokenize},
    Command{"info", "Describe a model", setup_info},
    Command{"pull", "Fetch a model by name, or list those there are", setup_pull},
    Command{"list", "List the models that are here", setup_list},
    Command{"rm", "Remove a model that was fetched", setup_rm},
    Command{"import", "Convert a Hugging Face folder to GGUF", setup_import},
    Command{"methods", "List the methods of recipes, or explain one", setup_methods},
    Command{"bench", "Measure speed and memory by context depth", setup_bench},
    Command{"verify", "Compare logits with llama.cpp", setup_verify},
    Command{"calibrate", "Learn a model's directions from text, for recipes that need them",
            setup_calibrate},
    Command{"cache", "List or remove calibrations and codes that are kept", setup_cache},
    Command{"eval", "Measure what a cache costs in quality", setup_eval},
    Command{"inspect", "Show how many directions keys and values need", setup_inspect},
    Command{"report", "Make one page of what other commands measured", setup_report},
    Command{"study", "Test the low-rank hypothesis on a model", setup_study},
    Command{"completion", "Print a completion script for a shell", setup_completion},
};

}  // namespace

std::span<const Command> all_commands() noexcept {
  return kCommands;
}

}  // namespace kvspan::cli
