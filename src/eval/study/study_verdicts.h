// SPDX-License-Identifier: Apache-2.0
// The four falsifiers of the low-rank hypothesis, judged from rows: pure functions, the same rows
// and seed give the same verdict. docs/reference/study.md has the rules in words.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/study/study_rows.h"

namespace kvspan {

// A number that decides a verdict, or stands beside those that do.
struct StudyNumber {
  std::string name;
  std::string recipe;  // empty where it is of no single one
  double value = 0.0;
  Interval interval;
  double confidence = 0.95;  // of the interval
  std::string_view unit;
  std::optional<double> threshold;
  std::size_t n = 0;  // cases it was computed from
  bool decides = true;
};

struct StudyVerdict {
  enum class Outcome { kHolds, kRefuted, kUndecided };
  std::string_view id, claim, falsifier;
  Outcome outcome = Outcome::kUndecided;
  std::string because, would_change;
  std::vector<StudyNumber> numbers;

  // Sets would_change to the text that goes with the outcome.
  void choose_change(std::string if_holds, std::string if_refuted, std::string if_undecided);
};
std::string_view name_of(StudyVerdict::Outcome outcome) noexcept;  // "holds", "refuted", ..

struct VerdictOptions {
  BootstrapOptions bootstrap;
  std::int32_t context = 4096;     // tokens of a window
  std::int32_t length_from = 512;  // positions from which growth with the length is judged
  std::size_t least_parts = 6;     // fewer drawn parts than this decide nothing
  double most_dppl_pct = 1.0;      // F1: of perplexity either way, and of KL as perplexity
  double broken = 0.5;             // F3: a KL, in nats, above which a cache tells nothing
  double tie = 0.05;               // F2: a KL less than this share lower is not better
  double sharp = 1.5;              // F3: growth per doubling of the length
  double strong = 0.5;             // F4: a rank correlation that predicts
};

// F1: some r <= d/4 costs at most 1 % perplexity. Of group rank.
StudyVerdict judge_rank(std::span<const StudyRow> rows, const VerdictOptions& options);
// F2: adaptive directions (fd, rotate, oja) beat static ones on equal bytes. Of group equal_bytes;
// static's KL between two levels is taken on the line through their logarithms.
StudyVerdict judge_adaptive(std::span<const StudyRow> rows, const VerdictOptions& options);
// F3: with chunks the error does not grow sharply with the length. Of group length.
StudyVerdict judge_length(std::span<const StudyRow> rows, const VerdictOptions& options);
// F4: certificates and FD's Delta go with the error, and no bound is below it.
StudyVerdict judge_bounds(std::span<const StudySample> samples, const VerdictOptions& options);

std::vector<StudyVerdict> judge(const StudyData& data, const VerdictOptions& options);

}  // namespace kvspan
