// SPDX-License-Identifier: Apache-2.0
// kvspan methods: what can stand in a recipe.
#include <iterator>
#include <sstream>

#include "base/fail.h"
#include "base/spelling.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/output/json_output.h"
#include "cli/output/table.h"
#include "recipe/recipe.h"

namespace kvspan::cli {
namespace {

struct MethodsFlags {
  std::string name;
  std::string json;
};

constexpr std::size_t kLineWidth = 100;

// Methods that `method` can be joined with by '+', all keys at their defaults.
std::vector<std::string> partners_of(const MethodDeclaration& method) {
  std::vector<std::string> names;
  for (const MethodDeclaration& other : all_methods()) {
    if (Recipe::parse(fmt::format("{}+{}", method.name, other.name)).has_value()) {
      names.emplace_back(other.name);
    }
  }
  return names;
}

Json to_json(const MethodDeclaration& method) {
  Json keys = Json::array(), rules = Json::array();
  for (const KeyDeclaration& key : method.keys) {
    Json default_value = key.default_text;
    if (key.default_text.empty()) default_value = nullptr;
    keys.push_back({{"key", key.name},
                    {"kind", name_of(key.kind)},
                    {"default", default_value},
                    {"allowed", allowed_text(key)},
                    {"summary", key.summary}});
  }
  for (const KeyRule& rule : method.rules) rules.push_back(text_of(rule));
  return Json{{"name", method.name},       {"kind", name_of(method.kind)},
              {"summary", method.summary}, {"source", method.source},
              {"example", method.example}, {"keys", std::move(keys)},
              {"rules", std::move(rules)}, {"joins", partners_of(method)}};
}

// Words after `label`, broken into lines that begin below the first word.
std::string wrapped(const std::string& label, const std::vector<std::string>& words) {
  std::string text = label, line = label;
  for (const std::string& word : words) {
    if (line.size() + 1 + word.size() > kLineWidth) {
      line.assign(label.size(), ' ');
      text += "\n" + line;
    }
    line += " " + word;
    text += " " + word;
  }
  return text + "\n";
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

void print_all() {
  Table table({{"method"}, {"kind"}, {"what it does"}});
  for (const MethodDeclaration& method : all_methods()) {
    table.add_row(
        {std::string(method.name), std::string(name_of(method.kind)), std::string(method.summary)});
  }
  fmt::print("{}\nKeys and their defaults (kvspan methods NAME explains them):\n", table.text());
  for (const MethodDeclaration& method : all_methods()) {
    std::vector<std::string> keys;
    for (const KeyDeclaration& key : method.keys) {
      keys.push_back(fmt::format("{}={}", key.name, key.default_text));
    }
    fmt::print("{}", wrapped(fmt::format("  {:<13}", method.name), keys));
  }
  fmt::print(
      "\nA recipe is method:key=value,key=value; a selector and a method are joined by '+', as in\n"
      "snapkv:keep=0.5+oja:ratio=0.6.\n");
}

void print_one(const MethodDeclaration& method) {
  fmt::print("{} ({}): {}\n", method.name, name_of(method.kind), method.summary);
  if (!method.source.empty()) fmt::print("source: {}\n", method.source);
  fmt::print("example: {}\n\n", method.example);
  Table table({{"key"}, {"default"}, {"allowed"}});
  for (const KeyDeclaration& key : method.keys) {
    table.add_row({std::string(key.name), std::string(key.default_text), allowed_text(key)});
  }
  fmt::print("{}\n", table.text());
  for (const KeyDeclaration& key : method.keys) {
    fmt::print("{}", wrapped(fmt::format("{:<12}", key.name), words_of(key.summary)));
  }
  if (!method.rules.empty()) fmt::print("\n");
  for (const KeyRule& rule : method.rules) fmt::print("- {}\n", text_of(rule));
  const auto partners = partners_of(method);
  if (!partners.empty()) fmt::print("\n{}", wrapped("joins with '+':", partners));
}

Result<int> methods(const MethodsFlags& flags) {
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  if (flags.name.empty()) {
    Json all = Json::array();
    for (const MethodDeclaration& method : all_methods()) all.push_back(to_json(method));
    KVSPAN_CHECK_OK(write_json(all, flags.json));
    if (flags.json != "-") print_all();
    return 0;
  }
  const MethodDeclaration* method = find_method(flags.name);
  if (method == nullptr) {
    std::vector<std::string> names;
    for (const MethodDeclaration& known : all_methods()) names.emplace_back(known.name);
    return fail(ErrorCode::kInvalidArgument, "no method is called '{}'{}; allowed: {}", flags.name,
                did_you_mean(flags.name, names), fmt::join(names, ", "));
  }
  KVSPAN_CHECK_OK(write_json(to_json(*method), flags.json));
  if (flags.json != "-") print_one(*method);
  return 0;
}

}  // namespace

Action setup_methods(CLI::App& app) {
  auto flags = std::make_shared<MethodsFlags>();
  add_text(app, "name", flags->name, "Explain this one", "METHOD");
  add_json_flag(app, flags->json);
  set_footer(app,
             "Examples:\n"
             "  kvspan methods\n"
             "  kvspan methods bands\n"
             "  kvspan methods --json -\n");
  return [flags] { return methods(*flags); };
}

}  // namespace kvspan::cli
