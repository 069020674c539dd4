// SPDX-License-Identifier: Apache-2.0
#include "cache/calibration/gguf_form.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"

namespace kvspan::detail {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint32_t kVersion = 3;
constexpr std::size_t kAlignment = 32;
constexpr std::size_t kLongestText = 65536;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Bytes of one number; 0 for texts, arrays and what is not known.
std::size_t number_bytes(std::uint32_t type) {
  constexpr std::size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

// Reads on from the start, a piece at a time.
class Forward {
 public:
  Forward(const ByteSource& source, std::size_t content) : source_(source), content_(content) {}

  std::size_t offset() const noexcept { return at_; }

  Status take(std::string_view what, std::span<std::byte> to) {
    KVSPAN_CHECK_OK(expect(what, to.size()));
    while (!to.empty()) {
      if (at_ >= first_ + held_.size() || at_ < first_) KVSPAN_CHECK_OK(fill());
      const std::size_t now = std::min(to.size(), first_ + held_.size() - at_);
      std::memcpy(to.data(), held_.data() + (at_ - first_), now);
      to = to.subspan(now);
      at_ += now;
    }
    return {};
  }
  template <class T>
  Result<T> number(std::string_view what) {
    T value{};
    KVSPAN_CHECK_OK(take(what, std::as_writable_bytes(std::span(&value, 1))));
    return value;
  }
  Result<std::string> text(std::string_view what) {
    KVSPAN_TRY(const auto size, number<std::uint64_t>(what));
    if (size > kLongestText) {
      return wrong(what, fmt::format("{} characters; allowed: up to {}", size, kLongestText));
    }
    std::string text(size, ' ');
    KVSPAN_CHECK_OK(take(what, std::as_writable_bytes(std::span(text))));
    return text;
  }
  Result<std::vector<std::byte>> numbers(std::string_view what, std::uint64_t count,
                                         std::size_t each) {
    if (each == 0 || count > (content_ - at_) / each) {
      return wrong(what, fmt::format("{} numbers of {} bytes, {} bytes are left", count, each,
                                     content_ - at_));
    }
    std::vector<std::byte> bytes(count * each);
    KVSPAN_CHECK_OK(take(what, bytes));
    return bytes;
  }
  Error wrong(std::string_view what, std::string_view found) const {
    return fail(ErrorCode::kCorruptData, "{} before byte {}: {}", what, at_, found);
  }

 private:
  Status expect(std::string_view what, std::size_t bytes) const {
    if (bytes <= content_ - at_) return {};
    return wrong(what, fmt::format("{} bytes, {} are left", bytes, content_ - at_));
  }
  Status fill() {
    constexpr std::size_t kPiece = 65536;
    held_.resize(std::min(kPiece, content_ - at_));
    first_ = at_;
    return source_.read(at_, held_);
  }

  const ByteSource& source_;
  std::size_t content_, at_ = 0, first_ = 0;
  std::vector<std::byte> held_;
};

Result<GgufTensor> read_tensor(Forward& in) {
  GgufTensor tensor;
  KVSPAN_TRY(tensor.name, in.text("name of a tensor"));
  KVSPAN_TRY(const auto dimensions, in.number<std::uint32_t>("dimensions of a tensor"));
  if (dimensions != 1) {
    return in.wrong("dimensions of a tensor",
                    fmt::format("{} of {}; allowed: 1", dimensions, tensor.name));
  }
  KVSPAN_TRY(tensor.numbers, in.number<std::uint64_t>("size of a tensor"));
  KVSPAN_TRY(const auto type, in.number<std::uint32_t>("type of a tensor"));
  if (type > 1) {
    return in.wrong("type of a tensor",
                    fmt::format("{} of {}; allowed: 0 (f32) and 1 (f16)", type, tensor.name));
  }
  tensor.number = static_cast<GgufNumber>(type);
  KVSPAN_TRY(tensor.offset, in.number<std::uint64_t>("offset of a tensor"));
  return tensor;
}

}  // namespace

Result<GgufHeader> GgufHeader::read(const ByteSource& source, std::size_t content) {
  Forward in(source, content);
  char magic[4] = {};
  KVSPAN_CHECK_OK(in.take("magic", std::as_writable_bytes(std::span(magic))));
  KVSPAN_TRY(const auto version, in.number<std::uint32_t>("version"));
  if (std::string_view(magic, 4) != kMagic || version != kVersion) {
    return in.wrong("start", "not that of a GGUF file of version 3");
  }
  KVSPAN_TRY(const auto tensors, in.number<std::uint64_t>("number of tensors"));
  KVSPAN_TRY(const auto keys, in.number<std::uint64_t>("number of keys"));
  GgufHeader header;
  for (std::uint64_t i = 0; i < keys; ++i) {
    KVSPAN_TRY(const std::string key, in.text("key"));
    KVSPAN_TRY(auto type, in.number<std::uint32_t>("type of a key"));
    Value value{static_cast<GgufType>(type), false, {}, {}};
    std::uint64_t count = 1;
    if (value.type == GgufType::kText) {
      KVSPAN_TRY(value.text, in.text(key));
    } else {
      if (value.type == GgufType::kArray) {
        value.array = true;
        KVSPAN_TRY(type, in.number<std::uint32_t>("type of an array"));
        value.type = static_cast<GgufType>(type);
        KVSPAN_TRY(count, in.number<std::uint64_t>("size of an array"));
      }
      KVSPAN_TRY(value.bytes, in.numbers(key, count, number_bytes(type)));
    }
    if (!header.values_.emplace(key, std::move(value)).second) {
      return in.wrong("key", fmt::format("{} is there twice", key));
    }
  }
  for (std::uint64_t i = 0; i < tensors; ++i) {
    KVSPAN_TRY(GgufTensor tensor, read_tensor(in));
    std::string name = tensor.name;
    if (!header.tensors_.emplace(name, std::move(tensor)).second) {
      return in.wrong("tensor", fmt::format("{} is there twice", name));
    }
  }
  const std::size_t start = aligned(in.offset());
  for (auto& [name, tensor] : header.tensors_) {
    const std::size_t each = bytes_of(tensor.number);
    const bool fits = start <= content && tensor.offset <= content - start &&
                      tensor.numbers <= (content - start - tensor.offset) / each;
    if (!fits) return in.wrong("tensor", fmt::format("{} ends beyond the file", name));
    tensor.offset += start;
  }
  return header;
}

const GgufHeader::Value* GgufHeader::find(const std::string& key, GgufType type, bool array) const {
  const auto at = values_.find(key);
  if (at == values_.end() || at->second.type != type || at->second.array != array) return nullptr;
  return &at->second;
}

const std::string* GgufHeader::text(const std::string& key) const {
  const Value* value = find(key, GgufType::kText, false);
  return value != nullptr ? &value->text : nullptr;
}

const GgufTensor* GgufHeader::tensor(const std::string& name) const {
  const auto at = tensors_.find(name);
  return at != tensors_.end() ? &at->second : nullptr;
}

void GgufWriter::put_string(ByteWriter& to, std::string_view text) {
  to.put(static_cast<std::uint64_t>(text.size()));
  to.put_all(std::span<const char>(text));
}

void GgufWriter::put_key(std::string_view key, GgufType type) {
  put_string(values_, key);
  values_.put(static_cast<std::uint32_t>(type));
  ++keys_;
}

void GgufWriter::put_text(std::string_view key, std::string_view text) {
  put_key(key, GgufType::kText);
  put_string(values_, text);
}

void GgufWriter::put_tensor(std::string_view name, std::size_t numbers, GgufNumber number) {
  put_string(tensors_, name);
  tensors_.put(std::uint32_t{1});
  tensors_.put(static_cast<std::uint64_t>(numbers));
  tensors_.put(static_cast<std::uint32_t>(number));
  tensors_.put(static_cast<std::uint64_t>(end_));
  starts_.push_back(end_);
  end_ = aligned(end_ + numbers * bytes_of(number));
}

std::vector<std::byte> GgufWriter::finish(std::vector<std::size_t>& offsets) {
  ByteWriter out;
  out.put_all(std::span<const char>(kMagic));
  out.put(kVersion);
  out.put(static_cast<std::uint64_t>(starts_.size()));
  out.put(keys_);
  out.put_bytes(values_.bytes());
  out.put_bytes(tensors_.bytes());
  const std::size_t start = aligned(out.bytes().size());
  out.bytes().resize(start + end_);
  offsets.clear();
  for (const std::size_t from : starts_) offsets.push_back(start + from);
  return std::move(out.bytes());
}

}  // namespace kvspan::detail
