// SPDX-License-Identifier: Apache-2.0
// Lets requests in by the bytes that their sequences will take, in the order in which they came.
// What is let in keeps its bytes reserved until its answer is complete.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include "kvspan/result.h"

namespace kvspan::server {

struct AdmissionFigures {
  std::size_t budget_bytes = 0;  // 0: no limit
  std::size_t reserved_bytes = 0;
  std::size_t admitted = 0;  // now
  std::size_t waiting = 0;   // now
  std::uint64_t refused = 0;  // since the start
};

class Admission {
 public:
  Admission(std::size_t budget_bytes, double wait_seconds)
      : budget_bytes_(budget_bytes), wait_seconds_(wait_seconds) {}

  // Bytes that are given back when the last copy ends.
  using Ticket = std::shared_ptr<void>;
  // Waits until all who came before are in and the bytes are free; `gone` tells whether the client
  // has left. Fails with kOutOfBudget and the numbers.
  Result<Ticket> admit(std::size_t bytes, const std::function<bool()>& gone);

  AdmissionFigures figures() const;

 private:
  Error refuse(std::size_t bytes, const char* why);

  const std::size_t budget_bytes_;
  const double wait_seconds_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t reserved_bytes_ = 0;
  std::size_t admitted_ = 0;
  std::uint64_t refused_ = 0;
  std::list<std::size_t> waiting_;  // their bytes, in the order in which they came
};

}  // namespace kvspan::server
