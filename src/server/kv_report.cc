// SPDX-License-Identifier: Apache-2.0
#include "server/kv_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kvspan::server {
namespace {

double ratio(const KvFigures& kv) {
  return kv.bytes.total > 0 ? static_cast<double>(kv.f16_bytes) / static_cast<double>(kv.bytes.total) : 0.0;
}

nlohmann::ordered_json layers_json(const std::vector<std::size_t>& bytes) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < bytes.size(); ++i) layers.push_back({{"layer", i}, {"bytes", bytes[i]}});
  return layers;
}

nlohmann::ordered_json bound_json(const CertificateFigures::Bound& bound, std::uint64_t samples) {
  return {{"last", bound.last}, {"mean", bound.sum / static_cast<double>(samples)}, {"most", bound.most}};
}

// Null where the recipe has no certificates, or none has been taken yet.
nlohmann::ordered_json certificates_json(const std::optional<CertificateFigures>& taken) {
  if (!taken || taken->samples == 0) return nullptr;
  return {{"samples", taken->samples},
          {"seconds", taken->seconds},
          {"layer", taken->layer},
          {"kv_head", taken->kv_head},
          {"tokens", taken->tokens},
          {"logits", bound_json(taken->logits, taken->samples)},
          {"weights", bound_json(taken->weights, taken->samples)},
          {"output", bound_json(taken->output, taken->samples)}};
}

class MetricsText {
 public:
  template <class Number>
  void add(std::string_view kind, std::string_view name, std::string_view help, Number value) {
    head(kind, name, help);
    fmt::format_to(std::back_inserter(text_), "kvspan_{} {}\n", name, value);
  }
  void head(std::string_view kind, std::string_view name, std::string_view help) {
    fmt::format_to(std::back_inserter(text_), "# HELP kvspan_{0} {1}\n# TYPE kvspan_{0} {2}\n", name, help, kind);
  }
  template <class Number>
  void line(std::string_view name, std::string_view label, std::string_view which, Number value) {
    fmt::format_to(std::back_inserter(text_), "kvspan_{}{{{}=\"{}\"}} {}\n", name, label, which, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// A mean over any time is a rate of a sum by the rate of the samples.
void add_certificates(const CertificateFigures& taken, MetricsText& text) {
  text.add("counter", "certificate_samples_total", "Queries whose attention was certified.", taken.samples);
  text.add("counter", "certificate_seconds_total", "Time that took.", taken.seconds);
  const auto three = [&](std::string_view name, auto of) {
    text.line(name, "of", "logits", of(taken.logits));
    text.line(name, "of", "weights", of(taken.weights));
    text.line(name, "of", "output", of(taken.output));
  };
  using Bound = CertificateFigures::Bound;
  text.head("counter", "certificate_bound_sum", "Bounds of errors, summed over the samples.");
  three("certificate_bound_sum", [](const Bound& bound) { return bound.sum; });
  text.head("gauge", "certificate_bound_max", "The largest of them.");
  three("certificate_bound_max", [](const Bound& bound) { return bound.most; });
}

}  // namespace

std::string kv_json(const ServedFigures& figures, const AdmissionFigures& admission,
                    const std::optional<StoreStatistics>& store) {
  const KvFigures& kv = figures.kv;
  nlohmann::ordered_json sequences = nlohmann::ordered_json::array();
  for (const SequenceFigures& one : kv.sequences) {
    sequences.push_back({{"id", one.sequence}, {"tokens", one.tokens}, {"bytes", one.bytes}});
  }
  const KvCounts& counts = kv.counts;
  nlohmann::ordered_json document = {
      {"awake", figures.awake},
      {"model", kv.model},
      {"recipe", kv.recipe},
      {"context", kv.context},
      {"most_sequences", kv.most_sequences},
      {"tokens", kv.tokens},
      {"bytes",
       {{"total", kv.bytes.total},
        {"full_rank", kv.bytes.full_rank},
        {"coefficients", kv.bytes.coefficients},
        {"scales", kv.bytes.scales},
        {"bases", kv.bytes.bases},
        {"sketches", kv.bytes.sketches},
        {"positions", kv.bytes.positions},
        {"shared", kv.bytes.shared},
        {"peak", kv.peak_bytes},
        {"f16", kv.f16_bytes}}},
      {"ratio", ratio(kv)},
      {"layers", layers_json(kv.layer_bytes)},
      {"certificates", certificates_json(kv.certificates)},
      {"sequences", std::move(sequences)},
      {"budget",
       {{"bytes", admission.budget_bytes},
        {"reserved_bytes", admission.reserved_bytes},
        {"admitted", admission.admitted},
        {"waiting", admission.waiting},
        {"refused", admission.refused}}},
      {"counts",
       {{"decodes", counts.decodes},
        {"decoded_tokens", counts.decoded_tokens},
        {"prefix_tokens", counts.prefix_tokens},
        {"dropped_sequences", counts.dropped_sequences},
        {"restored_tokens", counts.restored_tokens},
        {"states_saved", counts.states_saved},
        {"state_bytes_saved", counts.state_bytes_saved},
        {"save_seconds", counts.save_seconds},
        {"states_loaded", counts.states_loaded},
        {"state_bytes_loaded", counts.state_bytes_loaded},
        {"load_seconds", counts.load_seconds}}},
  };
  document["store"] = nullptr;
  if (store) {
    document["store"] = {{"hits", store->hits},
                         {"misses", store->misses},
                         {"hit_tokens", store->hit_tokens},
                         {"saved", store->saved},
                         {"bytes", store->held_bytes},
                         {"loaded_bytes", store->loaded_bytes},
                         {"saved_bytes", store->saved_bytes},
                         {"load_ms", store->load_ms},
                         {"save_ms", store->save_ms},
                         {"damaged", store->damaged},
                         {"failures", store->failures},
                         {"dropped", store->dropped},
                         {"late", store->late},
                         {"skipped", store->skipped},
                         {"last_failure", store->last_failure}};
  }
  return document.dump(2) + "\n";
}

std::string kv_metrics(const ServedFigures& figures, const AdmissionFigures& admission,
                       const std::optional<StoreStatistics>& store) {
  const KvFigures& kv = figures.kv;
  const KvCounts& counts = kv.counts;
  MetricsText text;
  text.head("gauge", "kv_bytes", "Bytes that the sequences hold, by kind.");
  text.line("kv_bytes", "kind", "full_rank", kv.bytes.full_rank);
  text.line("kv_bytes", "kind", "coefficients", kv.bytes.coefficients);
  text.line("kv_bytes", "kind", "scales", kv.bytes.scales);
  text.line("kv_bytes", "kind", "bases", kv.bytes.bases);
  text.line("kv_bytes", "kind", "sketches", kv.bytes.sketches);
  text.line("kv_bytes", "kind", "positions", kv.bytes.positions);
  text.add("gauge", "kv_total_bytes", "Bytes that the sequences hold.", kv.bytes.total);
  text.add("gauge", "kv_peak_bytes", "The most that they held after a decode.", kv.peak_bytes);
  text.add("gauge", "kv_shared_bytes", "Bytes of codes that all sequences share.", kv.bytes.shared);
  text.add("gauge", "kv_f16_bytes", "Bytes that as many tokens take in f16.", kv.f16_bytes);
  text.add("gauge", "kv_ratio", "f16 bytes by bytes held.", ratio(kv));
  text.add("gauge", "kv_sequences", "Sequences that hold tokens.", kv.sequences.size());
  text.add("gauge", "kv_tokens", "Tokens that they hold.", kv.tokens);
  text.add("gauge", "kv_budget_bytes", "Limit of the bytes; 0: none.", admission.budget_bytes);
  text.add("gauge", "kv_reserved_bytes", "Bytes reserved by requests that are being answered.",
           admission.reserved_bytes);
  text.add("gauge", "requests_waiting", "Requests that wait for bytes.", admission.waiting);
  text.add("counter", "requests_refused_total", "Requests answered with 429 for lack of bytes.", admission.refused);
  text.add("counter", "decoded_tokens_total", "Tokens computed.", counts.decoded_tokens);
  text.add("counter", "prefix_tokens_total", "Tokens of prompts that were loaded instead of computed.",
           counts.prefix_tokens);
  text.add("counter", "dropped_sequences_total", "Sequences dropped to keep within the budget.",
           counts.dropped_sequences);
  text.add("counter", "restored_tokens_total", "Tokens read again because their sequence had been dropped.",
           counts.restored_tokens);
  text.add("counter", "states_saved_total", "Sequences saved, in memory or as files.", counts.states_saved);
  text.add("counter", "state_bytes_saved_total", "Their bytes.", counts.state_bytes_saved);
  text.add("counter", "state_save_seconds_total", "Time that took.", counts.save_seconds);
  text.add("counter", "states_loaded_total", "Sequences loaded, from memory or files.", counts.states_loaded);
  text.add("counter", "state_bytes_loaded_total", "Their bytes.", counts.state_bytes_loaded);
  text.add("counter", "state_load_seconds_total", "Time that took.", counts.load_seconds);
  if (kv.certificates) add_certificates(*kv.certificates, text);
  if (store) {
    text.add("counter", "store_hits_total", "Prompts of which a beginning was found in the store.", store->hits);
    text.add("counter", "store_misses_total", "Prompts of which none was.", store->misses);
    text.add("counter", "store_hit_tokens_total", "Tokens found.", store->hit_tokens);
    text.add("counter", "store_loaded_bytes_total", "Bytes loaded from the store.", store->loaded_bytes);
    text.add("counter", "store_saved_bytes_total", "Bytes written to the store.", store->saved_bytes);
    text.add("counter", "store_load_milliseconds_total", "Time that loading took.", store->load_ms);
    text.add("counter", "store_save_milliseconds_total", "Time that saving took, behind the answers.", store->save_ms);
    text.add("counter", "store_damaged_total", "Entries that did not pass a check.", store->damaged);
    text.add("counter", "store_failures_total", "Calls that the store did not answer.", store->failures);
    text.add("counter", "store_dropped_total", "Caches not written because too many waited.", store->dropped);
    text.add("counter", "store_late_total", "Lookups that a prompt waited for in vain.", store->late);
    text.add("counter", "store_skipped_total", "Lookups that no prompt waited for, since the store had been late or away.", store->skipped);
    text.add("gauge", "store_bytes", "Bytes in the store, as far as this server knows.", store->held_bytes);
  }
  return text.take();
}

}  // namespace kvspan::server
