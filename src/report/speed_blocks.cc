// SPDX-License-Identifier: Apache-2.0
// bench: speed against length; verify: distance from llama.cpp.
#include <fmt/format.h>

#include "report/blocks.h"

namespace kvspan {

namespace {

Block speed_table(const NamedDocument& document) {
  Block block;
  block.table = table_of(document.json.at("rows"),
                         {{"engine", "engine", ""},
                          {"recipe", "recipe", ""},
                          {"depth", "depth", "tokens"},
                          {"decode_tok_s", "decode", "tokens/s"},
                          {"decode_spread", "spread of decode", "share"},
                          {"attn_ms", "attention", "ms"},
                          {"prefill_tok_s", "prefill", "tokens/s"},
                          {"decode_vs_llama_f16", "decode against llama.cpp f16", "x"},
                          {"prefill_vs_llama_f16", "prefill against llama.cpp f16", "x"},
                          {"kv_bytes", "KV cache", "bytes"},
                          {"kv_bytes_full", "KV cache in f16", "bytes"},
                          {"kv_ratio", "ratio", "x"},
                          {"bytes_read_per_token", "read per token", "bytes"},
                          {"read_bytes_s", "read", "bytes/s"},
                          {"roofline", "of the memory's bandwidth", "share"},
                          {"peak_rss_bytes", "peak memory", "bytes"},
                          {"failed", "failed", ""}});
  block.table.id = "speed-" + id_of(document.name);
  block.table.title = fmt::format("Speed against length: {}", document.name);
  block.note =
      fmt::format("Model {}, {} threads, kernels {}; medians of {} decodes at each depth.{}",
                  text_of(document.json, "model"), number_of(document.json, "threads"),
                  text_of(document.json, "cpu_level"), number_of(document.json, "repeats"),
                  text_of(document.json, "noisy") == "yes"
                      ? " The machine was noisy: compare ratios, not figures."
                      : "");
  return block;
}

std::vector<Figure> speed_charts(const Document& rows) {
  std::vector<Figure> figures;
  const auto name = [](const Document& row) {
    return text_of(row, "engine") + " " + text_of(row, "recipe");
  };
  const auto chart = [&](const std::string& file, const std::string& title, const std::string& key,
                         Axis y) {
    std::vector<Series> series = series_of(rows, "depth", key, name);
    if (series.empty()) return;
    sort_points(series);
    figures.push_back(
        {file,
         LineChart{
             title, {"tokens in the cache", "tokens", true}, std::move(y), std::move(series)}});
  };
  chart("decode_against_length", "Decoding speed against length", "decode_tok_s",
        {"decode", "tokens/s", false, {0.0}});
  chart("attention_against_length", "Time in attention against length", "attn_ms",
        {"attention of one decode", "ms", true});
  chart("prefill_against_length", "Reading speed against length", "prefill_tok_s",
        {"prefill", "tokens/s", false, {0.0}});
  chart("bytes_against_length", "Bytes of the cache against length", "kv_bytes",
        {"KV cache", "bytes", true});
  return figures;
}

Block break_even_block(const NamedDocument& document, const Document& lengths) {
  Block even;
  even.table = table_of(lengths, {{"recipe", "recipe", ""},
                                  {"against", "against", ""},
                                  {"tokens", "faster from", "tokens"},
                                  {"extrapolated", "extrapolated", ""}});
  even.table.id = "break-even-" + id_of(document.name);
  even.table.title = fmt::format("Depth from which a recipe decodes faster: {}", document.name);
  even.note = "Without a depth: at none that was measured, and not by the trend either.";
  BarChart depths{"Depth from which a recipe decodes faster",
                  {"recipe", ""},
                  {"from", "tokens"},
                  {},
                  {{"tokens", {}}}};
  for (const Document& length : lengths) {
    const double tokens = number_of(length, "tokens");
    if (tokens != tokens) continue;
    depths.group_names.push_back(
        fmt::format("{} than {}", text_of(length, "recipe"), text_of(length, "against")));
    depths.series[0].values.push_back(tokens);
  }
  even.figures.push_back({"break_even", std::move(depths)});
  return even;
}

}  // namespace

std::vector<Block> speed_blocks(const NamedDocument& document) {
  std::vector<Block> out{speed_table(document)};
  out.back().figures = speed_charts(document.json.at("rows"));
  if (const auto lengths = document.json.find("break_even");
      lengths != document.json.end() && lengths->is_array() && !lengths->empty()) {
    out.push_back(break_even_block(document, *lengths));
  }
  return out;
}

std::vector<Block> verify_blocks(const NamedDocument& document) {
  Block block;
  block.table = table_of(document.json.at("rows"), {{"name", "against llama.cpp f32 KV", ""},
                                                    {"compared", "positions", ""},
                                                    {"kl_mean", "mean KL", "nats"},
                                                    {"kl_max", "largest KL", "nats"},
                                                    {"kl_decoded", "KL, one by one", "nats"},
                                                    {"top1", "same argmax", "share"}});
  block.table.id = "verify-" + id_of(document.name);
  block.table.title = fmt::format("Logits against llama.cpp: {}", document.name);
  block.note = fmt::format("{} tokens, weights {}. The last row is llama.cpp against itself.",
                           number_of(document.json, "tokens"), text_of(document.json, "weights"));
  return {std::move(block)};
}

}  // namespace kvspan
