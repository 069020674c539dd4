// SPDX-License-Identifier: Apache-2.0
// Sequences of a ServedContext as bytes. A state is
//     "KVSQ", version, number of tokens (u32 each), the tokens (i32), and the cache's own bytes
//     (docs/reference/formats/cache.md), which carry their checksums; none for a lost sequence.
// A slot file is the same with the server's own words in place of the tokens and a state after
// them. Numbers are in the machine's order, as the server's are.
#include <chrono>
#include <cstring>
#include <limits>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "server/served_context.h"

namespace kvspan::server {
namespace {

constexpr std::uint32_t kStateMagic = 0x5153564b;  // "KVSQ"
constexpr std::uint32_t kFileMagic = 0x4653564b;   // "KVSF"
constexpr std::uint32_t kVersion = 1;

struct Header {
  std::uint32_t magic, version, count;
};

void put(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t at = to.size();
  to.resize(at + bytes);
  std::memcpy(to.data() + at, from, bytes);
}

// The words after a header of that kind, and what follows them.
struct Framed {
  std::vector<llama_token> words;
  std::span<const std::byte> rest;
};
Result<Framed> unframe(std::span<const std::byte> bytes, std::uint32_t magic) {
  Header header{};
  if (bytes.size() < sizeof(header)) return fail(ErrorCode::kCorruptData, "{} bytes are too few", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != magic || header.version != kVersion) {
    return fail(ErrorCode::kCorruptData, "not written by this version of kvspan serve");
  }
  bytes = bytes.subspan(sizeof(header));
  if (bytes.size() / sizeof(llama_token) < header.count) {
    return fail(ErrorCode::kCorruptData, "ends within its {} words", header.count);
  }
  Framed framed;
  framed.words.resize(header.count);
  if (header.count > 0) std::memcpy(framed.words.data(), bytes.data(), header.count * sizeof(llama_token));
  framed.rest = bytes.subspan(header.count * sizeof(llama_token));
  return framed;
}

std::vector<std::byte> frame(std::uint32_t magic, std::span<const llama_token> words) {
  const Header header{magic, kVersion, static_cast<std::uint32_t>(words.size())};
  std::vector<std::byte> bytes;
  put(bytes, &header, sizeof(header));
  put(bytes, words.data(), words.size_bytes());
  return bytes;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<std::vector<std::byte>> ServedContext::encode_state(llama_seq_id id) const {
  const auto found = sequences_.find(id);
  static const Sequence kNone;
  const Sequence& sequence = found == sequences_.end() ? kNone : found->second;
  std::vector<std::byte> bytes = frame(kStateMagic, sequence.tokens);
  if (sequence.lost || sequence.tokens.empty()) return bytes;
  KVSPAN_TRY(const auto cache, caches_->save(id));
  put(bytes, cache.data(), cache.size());
  return bytes;
}

// The sequence is as before where this fails.
Status ServedContext::decode_state(llama_seq_id id, std::span<const std::byte> bytes) {
  KVSPAN_TRY(Framed framed, unframe(bytes, kStateMagic));
  if (framed.words.size() > n_ctx_seq_) {
    return fail(ErrorCode::kOutOfBudget, "{} tokens exceed the context of {}", framed.words.size(), n_ctx_seq_);
  }
  const std::int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(native())));
  for (const llama_token token : framed.words) {
    if (token < 0 || token >= vocabulary) {
      return fail(ErrorCode::kCorruptData, "token {} is outside the vocabulary of {}", token, vocabulary);
    }
  }
  const bool lost = framed.rest.empty() && !framed.words.empty();
  if (lost || framed.words.empty()) {
    drop_cache(id);
  } else {
    KVSPAN_CHECK_OK(caches_->load(id, framed.rest));
    if (caches_->tokens(id) != static_cast<std::int32_t>(framed.words.size())) {
      const std::int32_t held = caches_->tokens(id);
      lose(id);
      return fail(ErrorCode::kCorruptData, "a cache of {} tokens for a sequence of {}", held, framed.words.size());
    }
  }
  sequences_[id].tokens = std::move(framed.words);
  sequences_[id].lost = lost;
  sequences_[id].last_used = decodes_;
  return {};
}

std::size_t ServedContext::state_bytes(llama_seq_id id) {
  const std::lock_guard lock(busy_);
  const auto start = std::chrono::steady_clock::now();
  auto bytes = encode_state(id);
  if (!bytes) {
    // Its tokens can be kept in any case: the sequence is read again where they are put back.
    const auto found = sequences_.find(id);
    bytes = frame(kStateMagic, found == sequences_.end() ? std::vector<llama_token>() : found->second.tokens);
  }
  state_ = *std::move(bytes);
  state_sequence_ = id;
  counts_.states_saved += 1;
  counts_.state_bytes_saved += state_.size();
  counts_.save_seconds += seconds_since(start);
  return state_.size();
}

std::size_t ServedContext::take_state(llama_seq_id id, std::span<std::uint8_t> to) {
  const std::lock_guard lock(busy_);
  if (state_sequence_ != id || state_.size() > to.size()) return 0;
  const std::size_t size = state_.size();
  std::memcpy(to.data(), state_.data(), size);
  state_ = {};
  state_sequence_ = -1;
  return size;
}

std::size_t ServedContext::put_state(llama_seq_id id, std::span<const std::uint8_t> from) {
  const std::lock_guard lock(busy_);
  const auto start = std::chrono::steady_clock::now();
  const auto bytes = std::as_bytes(from);
  if (const Status status = decode_state(id, bytes); !status) {
    fmt::print(stderr, "kvspan: a saved sequence is read anew: {}\n", status.error().message);
    auto framed = unframe(bytes, kStateMagic);
    if (!framed) return 0;
    sequences_[id].tokens = std::move(framed->words);
    lose(id);
  }
  counts_.states_loaded += 1;
  counts_.state_bytes_loaded += from.size();
  counts_.load_seconds += seconds_since(start);
  refresh();
  return from.size();
}

std::size_t ServedContext::save_file(const std::string& path, llama_seq_id id,
                                     std::span<const llama_token> tokens) {
  const std::lock_guard lock(busy_);
  const auto start = std::chrono::steady_clock::now();
  auto state = encode_state(id);
  Status status = state ? Status() : Status(state.error());
  std::vector<std::byte> bytes = frame(kFileMagic, tokens);
  if (status) {
    put(bytes, state->data(), state->size());
    status = write_file(path, bytes);
  }
  if (!status) {
    fmt::print(stderr, "kvspan: cannot save slot {}: {}\n", id, status.error().message);
    return 0;
  }
  counts_.states_saved += 1;
  counts_.state_bytes_saved += bytes.size();
  counts_.save_seconds += seconds_since(start);
  refresh();
  return bytes.size();
}

std::size_t ServedContext::load_file(const std::string& path, llama_seq_id id,
                                     std::span<llama_token> tokens, std::size_t* count) {
  const std::lock_guard lock(busy_);
  const auto start = std::chrono::steady_clock::now();
  const auto load = [&]() -> Result<std::size_t> {
    KVSPAN_TRY(const auto bytes, read_file(path));
    KVSPAN_TRY(const Framed framed, unframe(bytes, kFileMagic));
    *count = framed.words.size();
    if (tokens.data() == nullptr) return bytes.size();
    if (framed.words.size() > tokens.size()) {
      return fail(ErrorCode::kOutOfBudget, "{} words, room for {}", framed.words.size(), tokens.size());
    }
    KVSPAN_CHECK_OK(decode_state(id, framed.rest));
    std::copy(framed.words.begin(), framed.words.end(), tokens.begin());
    counts_.states_loaded += 1;
    counts_.state_bytes_loaded += bytes.size();
    return bytes.size();
  };
  const auto loaded = load();
  counts_.load_seconds += seconds_since(start);
  refresh();
  if (loaded) return *loaded;
  fmt::print(stderr, "kvspan: cannot load slot {} from '{}': {}\n", id, path, loaded.error().message);
  return 0;
}

}  // namespace kvspan::server
