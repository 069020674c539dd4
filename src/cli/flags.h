// SPDX-License-Identifier: Apache-2.0
// Flags that several subcommands share, named as llama.cpp names them, and the checks that turn a
// bad value into a line with the flag, the value and what is allowed.
//
// A flag's type name says what its value is, for --help and for completion scripts alike:
// FILE, DIR, MODEL, METHOD, RECIPE, words joined by '|', anything else is free text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/device_flags.h"
#include "kvspan/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvspan::cli {

// Only this room's flags.cc and the files that build the program out of its subcommands include
// CLI11, which takes six seconds to compile: a subcommand adds its flags with the functions below.

// A value as it was typed. `type` is what --help calls it. Of a flag that is given again the last
// value counts, here and below, but for lists and repeated ones.
void add_text(CLI::App& app, const std::string& names, std::string& target,
              const std::string& description, const std::string& type);
// The same where the program cannot do without.
void add_required(CLI::App& app, const std::string& names, std::string& target,
                  const std::string& description, const std::string& type);
// One value each time the flag is given.
void add_repeated(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                  const std::string& description, const std::string& type);
// Values parted by commas.
void add_list(CLI::App& app, const std::string& names, std::vector<std::string>& target,
              const std::string& description);
void add_list(CLI::App& app, const std::string& names, std::vector<std::int64_t>& target,
              const std::string& description);
// True if given.
void add_switch(CLI::App& app, const std::string& names, bool& target,
                const std::string& description);
// Only one of two flags that were added may be given.
void exclude_each_other(CLI::App& app, const std::string& one, const std::string& other);
// Examples and notes, the end of --help.
void set_footer(CLI::App& app, const std::string& text);
// The subcommand's.
std::string command_name(const CLI::App& app);

// A number from `low` to `high`; `note` follows the range in --help and errors ("0: greedy").
CLI::Option* add_integer(CLI::App& app, const std::string& names, std::int64_t& target,
                         const std::string& description, std::int64_t low, std::int64_t high,
                         const std::string& note = "");
CLI::Option* add_integer(CLI::App& app, const std::string& names, std::int32_t& target,
                         const std::string& description, std::int32_t low, std::int32_t high,
                         const std::string& note = "");
// One that need not be given: the description says what it is then.
CLI::Option* add_integer(CLI::App& app, const std::string& names,
                         std::optional<std::int32_t>& target, const std::string& description,
                         std::int32_t low, std::int32_t high);
CLI::Option* add_real(CLI::App& app, const std::string& names, double& target,
                      const std::string& description, double low, double high,
                      const std::string& note = "");
CLI::Option* add_real(CLI::App& app, const std::string& names, float& target,
                      const std::string& description, float low, float high,
                      const std::string& note = "");
// One of `words`.
CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& target,
                        const std::string& description, const std::vector<std::string>& words);

// A text for which `mistake` returns what is wrong with it; "": nothing.
void add_checked(CLI::App& app, const std::string& names, std::string& target,
                 const std::string& description, const std::string& type,
                 std::function<std::string(const std::string&)> mistake);
// The flag may be given without its value, which is `otherwise` then.
void make_value_optional(CLI::App& app, const std::string& name, const std::string& otherwise);

struct ModelFlags {
  std::string model = "smollm2";  // name or path as typed, or what -hf becomes (model_path.h)
  std::string recipe = "full";    // "": the default of open_session
  std::string cpu_level;          // empty: the best there is
  std::int64_t threads = 1;       // default: as many as the machine runs at once
  std::int64_t context = 0;       // 0: the model's
  DeviceFlags device;
};
// Recipes of caches, refused as the grammar says (recipe/recipe.h).
CLI::Option* add_recipe_flag(CLI::App& app, const std::string& names, std::string& target,
                             const std::string& description);
CLI::Option* add_recipe_flag(CLI::App& app, const std::string& names,
                             std::vector<std::string>& target, const std::string& description);
// -m, -hf, --hf-file
void add_model_flag(CLI::App& app, ModelFlags& flags);
// The latter two alone; `model` becomes a name as cli/model_path.h has it.
void add_hub_flags(CLI::App& app, std::string& model);
// -t, --cpu-level
void add_thread_flags(CLI::App& app, ModelFlags& flags);
// Makes --cpu-level the level of kernels chosen from now on.
Status apply_cpu_level(const ModelFlags& flags);
// -t, --cpu-level, -c, --cache, -ngl, --device
void add_engine_flags(CLI::App& app, ModelFlags& flags);
// What answers are made with unless told otherwise: between 2 and 2.5 bits, whose KL from the full
// cache was .0046 and .0016 on SmolLM2 (docs/methods/bands.md).
inline constexpr std::string_view kDefaultRecipe = "bands:bits=2.25";
// After add_engine_flags: --cache has that default, with calib=online where there is no
// calibration.
void add_default_recipe(CLI::App& app, ModelFlags& flags);

void add_json_flag(CLI::App& app, std::string& target);

}  // namespace kvspan::cli
