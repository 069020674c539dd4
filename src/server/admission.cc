// SPDX-License-Identifier: Apache-2.0
#include "server/admission.h"

#include <chrono>

#include "base/fail.h"

namespace kvspan::server {

// With the mutex held.
Error Admission::refuse(std::size_t bytes, const char* why) {
  ++refused_;
  return fail(ErrorCode::kOutOfBudget,
              "{}: the request needs {} bytes of KV cache; the budget is {}, of which {} are reserved by {} "
              "requests and {} more wait",
              why, bytes, budget_bytes_, reserved_bytes_, admitted_, waiting_.size());
}

Result<Admission::Ticket> Admission::admit(std::size_t bytes, const std::function<bool()>& gone) {
  using Clock = std::chrono::steady_clock;
  const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_seconds_));
  std::unique_lock lock(mutex_);
  if (bytes > budget_bytes_) return refuse(bytes, "too large");
  const auto place = waiting_.insert(waiting_.end(), bytes);
  const auto leave = [&] {
    waiting_.erase(place);
    changed_.notify_all();
  };
  while (place != waiting_.begin() || reserved_bytes_ + bytes > budget_bytes_) {
    if (gone && gone()) {
      leave();
      return fail(ErrorCode::kCancelled, "the client has left");
    }
    if (Clock::now() >= until) {
      leave();
      return refuse(bytes, "no room in time");
    }
    // A client that leaves wakes nobody.
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  reserved_bytes_ += bytes;
  ++admitted_;
  leave();
  return Ticket(static_cast<void*>(this), [this, bytes](void*) {
    const std::lock_guard locked(mutex_);
    reserved_bytes_ -= bytes;
    --admitted_;
    changed_.notify_all();
  });
}

AdmissionFigures Admission::figures() const {
  const std::lock_guard lock(mutex_);
  return {budget_bytes_, reserved_bytes_, admitted_, waiting_.size(), refused_};
}

}  // namespace kvspan::server
