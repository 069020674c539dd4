// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/llama_flags.h"

#include <limits>

#include "base/fail.h"

namespace kvspan::cli {
namespace {

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();

int bits_of(const std::string& type) {
  return type == "q8_0" ? 8 : type == "q4_0" ? 4 : 16;
}

void add_rope_flags(CLI::App& app, LlamaFlags& flags) {
  add_choice(app, "--rope-scaling", flags.rope_scaling,
             "How positions are stretched beyond the trained context; default: as the model says",
             {"none", "linear", "yarn"});
  add_real(app, "--rope-scale", flags.rope_stretch,
           "Stretches the context by this factor (0: as -c needs)", 0.0f, 1e6f);
  add_real(app, "--rope-freq-base", flags.rope.base, "Base of the angles", 0.0f, 1e12f,
           "0: the model's");
  add_real(app, "--rope-freq-scale", flags.rope.scale, "1 divided by --rope-scale", 0.0f, 1e6f,
           "0: the model's");
  add_integer(app, "--yarn-orig-ctx", flags.rope.yarn_context, "Context that YaRN starts from", 0,
              kLargest, "0: the trained one");
  add_real(app, "--yarn-ext-factor", flags.rope.yarn_extrapolation,
           "How much YaRN leaves fast angles alone", -1.0f, 1.0f, "-1: the model's");
  add_real(app, "--yarn-attn-factor", flags.rope.yarn_magnitude, "YaRN's factor of magnitudes",
           -1.0f, 1000.0f, "-1: the model's");
  add_real(app, "--yarn-beta-slow", flags.rope.yarn_beta_slow,
           "Turns below which an angle is stretched", -1.0f, 1e6f, "-1: the model's");
  add_real(app, "--yarn-beta-fast", flags.rope.yarn_beta_fast,
           "Turns above which an angle is left alone", -1.0f, 1e6f, "-1: the model's");
  exclude_each_other(app, "--rope-scale", "--rope-freq-scale");
}

}  // namespace

void add_llama_flags(CLI::App& app, LlamaFlags& flags) {
  const std::vector<std::string> types = {"f16", "q8_0", "q4_0"};
  add_choice(app, "--cache-type-k", flags.key_type,
             "-ctk: type of keys as llama.cpp names it; q8_0 is quant:bits=8, q4_0 quant:bits=4",
             types);
  add_choice(app, "--cache-type-v", flags.value_type, "-ctv: the same for values", types);
  for (const char* type : {"--cache-type-k", "--cache-type-v"}) {
    exclude_each_other(app, type, "--cache");
  }
  add_choice(app, "--flash-attn", flags.flash_attention,
             "-fa: taken; attention is blockwise in any case", {"on", "off", "auto", "1", "0"});
  make_value_optional(app, "--flash-attn", "on");
  add_rope_flags(app, flags);
}

Result<std::string> LlamaFlags::recipe() const {
  if (key_type.empty() && value_type.empty()) return std::string();
  const int keys = bits_of(key_type), values = bits_of(value_type);
  if (keys == 16 && values == 16) return std::string("full");
  if (keys == 16 || values == 16) {
    return fail(ErrorCode::kInvalidArgument,
                "--cache-type-k {} with --cache-type-v {}: keys or values alone cannot stay f16; "
                "allowed: q8_0 or q4_0 for both flags, or f16 for both",
                key_type.empty() ? "f16" : key_type, value_type.empty() ? "f16" : value_type);
  }
  if (keys == values) return fmt::format("quant:bits={}", keys);
  return fmt::format("quant:kbits={},vbits={}", keys, values);
}

RopeOptions LlamaFlags::rope_options() const {
  RopeOptions options = rope;
  if (rope_scaling == "none") options.scaling = RopeOptions::Scaling::kNone;
  if (rope_scaling == "linear") options.scaling = RopeOptions::Scaling::kLinear;
  if (rope_scaling == "yarn") options.scaling = RopeOptions::Scaling::kYarn;
  if (rope_stretch > 0.0f) options.scale = 1.0f / rope_stretch;
  return options;
}

bool LlamaFlags::changes_rope() const {
  return !(rope_options() == RopeOptions());
}

}  // namespace kvspan::cli
