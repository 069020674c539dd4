// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt_cache.h"

#include <algorithm>
#include <array>

#include "base/byte_frame.h"
#include "base/fail.h"
#include "cli/output/progress_bar.h"
#include "io/atomic_file.h"
#include "io/folder_files.h"
#include "io/random_file.h"
#include "io/stopwatch.h"

namespace kvspan::cli {
namespace {

constexpr FrameFormat kFormat{"prompt cache", "KVSPPRMT", 1};
constexpr std::size_t kLongestText = 4096;

bool starts_as_one(std::span<const std::byte> bytes) {
  return bytes.size() >= kFormat.magic.size() &&
         std::equal(kFormat.magic.begin(), kFormat.magic.end(), bytes.begin(),
                    [](char c, std::byte b) { return static_cast<std::byte>(c) == b; });
}

// Whether there is a prompt cache of that name. Fails if there is another file.
Result<bool> is_there(const std::string& path) {
  if (!file_exists(path)) return false;
  const auto file = RandomFile::open(path);
  std::array<std::byte, kFormat.magic.size()> start{};
  if (file && file->read(0, start) && starts_as_one(start)) return true;
  return fail(ErrorCode::kInvalidArgument, "'{}' is not a prompt cache; not overwritten", path);
}

Result<PromptCache> read(std::span<const std::byte> bytes, const Session& session) {
  KVSPAN_TRY(OpenFrame frame, open_frame(kFormat, bytes));
  ByteReader& in = frame.payload;
  KVSPAN_TRY(const std::string model, in.get_text("model", kLongestText));
  KVSPAN_TRY(const std::string recipe, in.get_text("recipe", kLongestText));
  if (model != session.engine->fingerprint()) {
    return fail(ErrorCode::kUnsupported, "it is of another model, with fingerprint {}", model);
  }
  if (recipe != session.caches->recipe()) {
    return fail(ErrorCode::kUnsupported, "it is of the recipe {}, and the cache is {}", recipe,
                session.caches->recipe());
  }
  PromptCache out;
  KVSPAN_TRY(const auto count, in.get<std::uint32_t>("number of tokens"));
  KVSPAN_CHECK_OK(in.expect_at_least("tokens", std::size_t{count} * sizeof(Token)));
  out.tokens.resize(count);
  KVSPAN_CHECK_OK(in.get_all("tokens", std::span<Token>(out.tokens)));
  KVSPAN_TRY(const auto rest, in.get_bytes("cache", in.left()));
  KVSPAN_TRY(out.cache, session.caches->on_host().load(rest));
  if (out.cache->tokens() != static_cast<std::int32_t>(count)) {
    return fail(ErrorCode::kCorruptData, "its cache holds {} tokens, not the {} that are listed",
                out.cache->tokens(), count);
  }
  return out;
}

}  // namespace

Status save_prompt_cache(const std::string& path, const Session& session,
                         std::span<const Token> tokens) {
  KVSPAN_CHECK_OK(is_there(path));
  KVSPAN_TRY(AtomicFile file, AtomicFile::create(path));
  const std::string model = session.engine->fingerprint();
  const auto write = [&](ByteWriter& out) -> Status {
    out.put_text(model);
    out.put_text(session.cache->recipe());
    out.put(static_cast<std::uint32_t>(tokens.size()));
    out.put_all(tokens);
    return session.cache->save([&](std::span<const std::byte> piece) -> Status {
      out.put_bytes(piece);
      return {};
    });
  };
  KVSPAN_CHECK_OK(write_frame(kFormat, 0, write,
                              [&](std::span<const std::byte> piece) { return file.write(piece); }));
  return file.commit();
}

Status remove_prompt_cache(const std::string& path) {
  KVSPAN_TRY(const bool there, is_there(path));
  if (there) remove_file(path);
  return {};
}

Result<PromptCache> load_prompt_cache(const std::string& path, const Session& session) {
  KVSPAN_TRY(const auto bytes, read_file(path));
  if (!starts_as_one(bytes)) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is no prompt cache, and is left as it is", path);
  }
  auto loaded = read(bytes, session);
  if (loaded) return loaded;
  return fail(loaded.error().code, "the prompt cache '{}' cannot be used: {}", path,
              loaded.error().message);
}

Result<PromptRead> read_with_prompt_cache(const std::string& path, Session& session,
                                          std::span<const Token> prompt) {
  auto loaded = load_prompt_cache(path, session);
  if (!loaded && loaded.error().code != ErrorCode::kNotFound) {
    if (loaded.error().code == ErrorCode::kInvalidArgument ||
        loaded.error().code == ErrorCode::kIo) {
      return std::move(loaded).error();
    }
    fmt::print(stderr, "kvspan: {}; it is made anew\n", loaded.error().message);
  }
  const std::size_t last = prompt.size() - 1;
  std::size_t held = 0;
  if (loaded) {
    const std::size_t most = std::min(loaded->tokens.size(), last);
    while (held < most && loaded->tokens[held] == prompt[held]) ++held;
    // A method that cannot forget its latest tokens starts over.
    if (held > 0 && loaded->cache->truncate(static_cast<std::int32_t>(held))) {
      KVSPAN_TRY(session.cache, session.caches->brought_home(std::move(loaded->cache)));
    } else {
      held = 0;
    }
  }
  if (held == last) return PromptRead{};
  const Stopwatch reading;
  {
    ProgressBar bar("reading", "tokens", last - held);
    const Status status = session.engine->prefill(*session.cache, prompt.subspan(held, last - held),
                                                  [&](std::size_t done) { bar.update(done); });
    if (!status) return status.error();
  }
  const PromptRead read{last - held, reading.seconds()};
  KVSPAN_CHECK_OK(save_prompt_cache(path, session, prompt.first(last)));
  return read;
}

}  // namespace kvspan::cli
