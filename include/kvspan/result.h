// SPDX-License-Identifier: Apache-2.0
// A value or an error. Member names are those of C++23's std::expected. Errors are ordinary (damaged
// files, mistyped recipes, exhausted budgets), so their text is part of the product: value, place,
// cause, supported values.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace kvspan {

enum class ErrorCode {
  kInvalidArgument,  // a value that the caller can change: recipe, flag, shape, prompt
  kNotFound,         // a missing file, model, tensor or key
  kCorruptData,      // bytes that do not parse
  kUnsupported,      // well formed but not supported by kvspan
  kOutOfBudget,      // memory or context exceeds the limit
  kIo,               // an error of the operating system
  kCancelled,        // stopped by the user
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
  // value() of an error and error() of a value throw std::bad_variant_access.
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
