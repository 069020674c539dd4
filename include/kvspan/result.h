// SPDX-License-Identifier: Apache-2.0
// A value or the reason why there is none.
// Member names are those of C++23's std::expected, which this can become. Errors are ordinary here
// (damaged files, mistyped recipes, spent budgets), so their text is part of the product: it says
// what was found, where, and what is allowed.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace kvspan {

enum class ErrorCode {
  kInvalidArgument,  // a value the caller can mend: recipe, flag, shape, prompt
  kNotFound,         // a file, model, tensor or key that is not there
  kCorruptData,      // bytes that do not parse
  kUnsupported,      // well formed, but not something kvspan does
  kOutOfBudget,      // memory or context asked for exceeds what was granted
  kIo,               // the operating system refused
  kCancelled,        // the user asked to stop
};

struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  // Calling value() on an error, or error() on a value, is the caller's fault and throws
  // std::bad_variant_access.
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

// Success, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<std::monostate, Error> state_;
};
using Status = Result<void>;

}  // namespace kvspan
