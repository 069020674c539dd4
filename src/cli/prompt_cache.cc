// SPDX-License-Identifier: Apache-2.0
#include "cli/prompt_cache.h"

#include <algorithm>
#include <array>

#include "base/fail.h"
#include "cli/output/progress_bar.h"
#include "io/atomic_file.h"
#include "io/folder_files.h"
#include "io/random_file.h"
#include "io/stopwatch.h"

namespace kvspan::cli {
namespace {

// Whether there is a prompt cache of that name. Fails if there is another file.
Result<bool> is_there(const std::string& path) {
  if (!file_exists(path)) return false;
  const auto file = RandomFile::open(path);
  std::array<std::byte, kPromptCacheMagic.size()> start{};
  if (file && file->read(0, start) && starts_as_prompt_cache(start)) return true;
  return fail(ErrorCode::kInvalidArgument, "'{}' is not a prompt cache; not overwritten", path);
}

}  // namespace

Status save_prompt_cache(const std::string& path, const Session& session,
                         std::span<const Token> tokens) {
  KVSPAN_CHECK_OK(is_there(path));
  KVSPAN_TRY(AtomicFile file, AtomicFile::create(path));
  KVSPAN_CHECK_OK(write_prompt_cache(session.engine->fingerprint(), *session.cache, tokens,
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
  if (!starts_as_prompt_cache(bytes)) {
    return fail(ErrorCode::kInvalidArgument, "'{}' is no prompt cache, and is left as it is", path);
  }
  auto loaded = read_prompt_cache(bytes, session.engine->fingerprint(), *session.caches);
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
