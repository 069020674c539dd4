// SPDX-License-Identifier: Apache-2.0
// What a method designs from a calibration, in the order in which it asks for it: made from the
// calibration, or read back from where it was saved, and noted either way so that it can be saved.
// A method takes all that it designs through here and touches the calibration only in what it
// gives to be called where nothing is saved. Used by one thread.
// Format: docs/reference/formats/codes.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_stream.h"
#include "base/memory.h"
#include "cache/code/code.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

// Each writes one thing that was designed; they own what they write.
using DesignNotes = std::vector<std::function<void(ByteWriter&)>>;

class Designs {
 public:
  // saved: where designs are read from; null: they are made.
  explicit Designs(ByteReader* saved, DesignProgress progress = nullptr)
      : saved_(saved), progress_(std::move(progress)) {}
  Designs(const Designs&) = delete;
  Designs& operator=(const Designs&) = delete;

  bool are_saved() const noexcept { return saved_ != nullptr; }
  // Where they are; only if they are.
  ByteReader& saved() noexcept { return *saved_; }
  // To be called with what save() wrote and load() reads.
  void note(std::function<void(ByteWriter&)> write) { notes_.push_back(std::move(write)); }

  Result<double> number(const std::function<Result<double>()>& make);
  Result<std::string> text(const std::function<Result<std::string>()>& make);
  // A code of rows of `dim` numbers and at most `heads` heads, on the ledger as shared.
  Result<std::shared_ptr<const Code>> code(
      std::int32_t heads, std::int32_t dim, const std::shared_ptr<Ledger>& ledger,
      const std::function<Result<std::shared_ptr<const Code>>()>& make);

  // Null where nobody asked for it.
  const DesignProgress& progress() const noexcept { return progress_; }
  DesignNotes take_notes() { return std::move(notes_); }

 private:
  ByteReader* saved_;
  DesignProgress progress_;
  DesignNotes notes_;
};

}  // namespace kvspan
