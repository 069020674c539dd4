// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <thread>

#include "base/cpu_level.h"
#include "base/fail.h"
#include "cli/model_path.h"
#include "recipe/recipe.h"

namespace kvspan::cli {
namespace {

// The whole text as a number in the range.
template <class T>
bool is_within(const std::string& text, T low, T high) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  // Written so that NaN is refused.
  return error == std::errc() && stopped == end && value >= low && value <= high;
}

std::string range_text(auto low, auto high, const std::string& note, const char* kind) {
  std::string text = high == std::numeric_limits<decltype(high)>::max()
                         ? fmt::format("{} from {} up", kind, low)
                         : fmt::format("{} from {} to {}", kind, low, high);
  return note.empty() ? text : text + "; " + note;
}

template <class T>
CLI::Option* check_range(CLI::Option* option, T low, T high, const std::string& note,
                         const char* kind) {
  const std::string allowed = range_text(low, high, note, kind);
  return option
      ->check(
          [low, high, allowed](const std::string& text) {
            return is_within<T>(text, low, high)
                       ? std::string()
                       : fmt::format("'{}' is not allowed; allowed: {}", text, allowed);
          },
          "")
      ->type_name("N")
      ->take_last();
}

template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& names, T& target,
                        const std::string& description, T low, T high, const std::string& note,
                        const char* kind) {
  const std::string text = note.empty() ? description : description + " (" + note + ")";
  return check_range(app.add_option(names, target, text), low, high, note, kind)
      ->capture_default_str();
}

// What is wrong with a recipe; empty if nothing is.
std::string recipe_mistake(const std::string& text) {
  const auto recipe = Recipe::parse(text);
  return recipe.has_value() ? std::string() : recipe.error().message;
}

template <class T>
void add_comma_list(CLI::App& app, const std::string& names, std::vector<T>& target,
                    const std::string& description) {
  app.add_option(names, target, description)->delimiter(',');
}

}  // namespace

void add_text(CLI::App& app, const std::string& names, std::string& target,
              const std::string& description, const std::string& type) {
  app.add_option(names, target, description)->type_name(type)->take_last();
}

void exclude_each_other(CLI::App& app, const std::string& one, const std::string& other) {
  app.get_option(one)->excludes(app.get_option(other));
}

void add_required(CLI::App& app, const std::string& names, std::string& target,
                  const std::string& description, const std::string& type) {
  app.add_option(names, target, description)->type_name(type)->required();
}

void add_repeated(CLI::App& app, const std::string& names, std::vector<std::string>& target,
                  const std::string& description, const std::string& type) {
  app.add_option(names, target, description)->type_name(type)->allow_extra_args(false);
}

void add_list(CLI::App& app, const std::string& names, std::vector<std::string>& target,
              const std::string& description) {
  add_comma_list(app, names, target, description);
}

void add_list(CLI::App& app, const std::string& names, std::vector<std::int64_t>& target,
              const std::string& description) {
  add_comma_list(app, names, target, description);
}

void add_switch(CLI::App& app, const std::string& names, bool& target,
                const std::string& description) {
  app.add_flag(names, target, description);
}

void set_footer(CLI::App& app, const std::string& text) {
  app.footer(text);
}

std::string command_name(const CLI::App& app) {
  return app.get_name();
}

CLI::Option* add_integer(CLI::App& app, const std::string& names, std::int64_t& target,
                         const std::string& description, std::int64_t low, std::int64_t high,
                         const std::string& note) {
  return add_number(app, names, target, description, low, high, note, "a whole number");
}

CLI::Option* add_integer(CLI::App& app, const std::string& names, std::int32_t& target,
                         const std::string& description, std::int32_t low, std::int32_t high,
                         const std::string& note) {
  return add_number(app, names, target, description, low, high, note, "a whole number");
}

CLI::Option* add_integer(CLI::App& app, const std::string& names,
                         std::optional<std::int32_t>& target, const std::string& description,
                         std::int32_t low, std::int32_t high) {
  return check_range(app.add_option(names, target, description), low, high, "", "a whole number");
}

CLI::Option* add_real(CLI::App& app, const std::string& names, double& target,
                      const std::string& description, double low, double high,
                      const std::string& note) {
  return add_number(app, names, target, description, low, high, note, "a number");
}

CLI::Option* add_real(CLI::App& app, const std::string& names, float& target,
                      const std::string& description, float low, float high,
                      const std::string& note) {
  return add_number(app, names, target, description, low, high, note, "a number");
}

CLI::Option* add_choice(CLI::App& app, const std::string& names, std::string& target,
                        const std::string& description, const std::vector<std::string>& words) {
  return app.add_option(names, target, description)
      ->check(
          [words](const std::string& text) {
            return std::find(words.begin(), words.end(), text) != words.end()
                       ? std::string()
                       : fmt::format("'{}' is not allowed; allowed: {}", text,
                                     fmt::join(words, ", "));
          },
          "")
      ->type_name(fmt::format("{}", fmt::join(words, "|")))
      ->take_last();
}

void add_checked(CLI::App& app, const std::string& names, std::string& target,
                 const std::string& description, const std::string& type,
                 std::function<std::string(const std::string&)> mistake) {
  app.add_option(names, target, description)->check(std::move(mistake), "")->type_name(type);
}

void make_value_optional(CLI::App& app, const std::string& name, const std::string& otherwise) {
  app.get_option(name)->expected(0, 1)->default_str(otherwise);
}

CLI::Option* add_recipe_flag(CLI::App& app, const std::string& names, std::string& target,
                             const std::string& description) {
  return app.add_option(names, target, description)
      ->check(recipe_mistake, "")
      ->type_name("RECIPE")
      ->take_last();
}

CLI::Option* add_recipe_flag(CLI::App& app, const std::string& names,
                             std::vector<std::string>& target, const std::string& description) {
  return app.add_option(names, target, description)->check(recipe_mistake, "")->type_name("RECIPE");
}

void add_model_flag(CLI::App& app, ModelFlags& flags) {
  add_text(app, "-m,--model", flags.model,
           "Name of a model (see kvspan pull) or path of a GGUF file; default smollm2", "MODEL");
  add_hub_flags(app, flags.model);
  exclude_each_other(app, "--hf-repo", "--model");
}

void add_hub_flags(CLI::App& app, std::string& model) {
  CLI::Option* repo =
      app.add_option_function<std::string>(
             "--hf-repo,--hf",
             [&model](const std::string& name) {
               const std::size_t file =
                   model.starts_with(kHubPrefix) ? model.find('#') : model.size();
               model = fmt::format("{}{}{}", kHubPrefix, name,
                                   model.substr(std::min(file, model.size())));
             },
             "-hf: model of Hugging Face, fetched once; HF_TOKEN and HF_ENDPOINT are looked at")
          ->type_name("USER/REPO[:QUANT]");
  app.add_option_function<std::string>(
         "--hf-file",
         [&model](const std::string& file) {
           if (!model.starts_with(kHubPrefix)) model = kHubPrefix;
           model += "#" + file;
         },
         "-hff: a file of that repository, in place of a quantization")
      ->type_name("NAME")
      ->needs(repo);
}

void add_thread_flags(CLI::App& app, ModelFlags& flags) {
  flags.threads = std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 512);
  add_integer(app, "-t,--threads", flags.threads, "Threads", 1, 512);
  std::vector<std::string> levels;
  for (const CpuLevel level : available_cpu_levels()) levels.emplace_back(name_of(level));
  add_choice(app, "--cpu-level", flags.cpu_level, "Use kernels of a lower instruction set", levels);
}

Status apply_cpu_level(const ModelFlags& flags) {
  if (flags.cpu_level.empty()) return {};
  KVSPAN_TRY(const CpuLevel level, parse_cpu_level(flags.cpu_level));
  return force_cpu_level(level);
}

void add_engine_flags(CLI::App& app, ModelFlags& flags) {
  add_integer(app, "-c,--ctx-size", flags.context, "Most tokens in the cache", 0,
              std::numeric_limits<std::int32_t>::max(), "0: the model's context");
  add_recipe_flag(app, "--cache", flags.recipe, "Recipe of the KV cache (see kvspan methods)")
      ->capture_default_str();
  add_thread_flags(app, flags);
  add_device_flags(app, flags.device);
}

void add_default_recipe(CLI::App& app, ModelFlags& flags) {
  flags.recipe.clear();
  app.get_option("--cache")->default_str(
      fmt::format("{}, with calib=online where the model has no calibration", kDefaultRecipe));
}

void add_json_flag(CLI::App& app, std::string& target) {
  add_text(app, "--json", target, "Write all numbers as JSON (-: to standard output)", "FILE");
}

}  // namespace kvspan::cli
