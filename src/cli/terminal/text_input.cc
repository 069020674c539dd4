// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/text_input.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/fail.h"
#include "cli/output/format.h"
#include "cli/terminal/interrupt.h"
#include "io/atomic_file.h"
#include "llama/tokenizer.h"

namespace kvspan::cli {
namespace {

// More than any context holds; keeps a wrong redirection from filling the memory.
constexpr std::size_t kLimitBytes = std::size_t{256} << 20;

Result<std::string> read_standard_input() {
  std::string text;
  std::array<char, 65536> block;
  for (;;) {
    const ssize_t got = ::read(0, block.data(), block.size());
    if (got == 0) return text;
    if (got < 0) {
      if (errno == EINTR && !interrupted()) continue;
      if (errno == EINTR) return fail(ErrorCode::kCancelled, "interrupted");
      return fail(ErrorCode::kIo, "cannot read standard input: {}", std::strerror(errno));
    }
    text.append(block.data(), static_cast<std::size_t>(got));
    if (text.size() > kLimitBytes) {
      return fail(ErrorCode::kOutOfBudget, "standard input gives more than {}",
                  format_bytes(kLimitBytes));
    }
  }
}

}  // namespace

void add_text_flags(CLI::App& app, TextFlags& flags, const std::string& text_names) {
  flags.text_option =
      app.add_option(text_names, flags.text, "The text; without it and -f, standard input is read")
          ->type_name("TEXT");
  flags.file_option =
      app.add_option("-f,--file", flags.file, "A file with the text (-: standard input)")
          ->type_name("FILE")
          ->excludes(flags.text_option);
}

Status check_text(std::string_view text, std::string_view source) {
  if (const std::size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "{} is not valid UTF-8 at byte {} (0x{:02x})", source,
                bad, static_cast<unsigned char>(text[bad]));
  }
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "{} has a NUL at byte {}; text is expected", source,
                nul);
  }
  return {};
}

Result<std::string> read_text(const TextFlags& flags, LastNewline last_newline) {
  std::string text, source;
  const bool from_file = flags.file_option->count() > 0 && flags.file != "-";
  if (flags.text_option->count() > 0) {
    text = flags.text;
    source = "the text";
  } else if (from_file) {
    source = fmt::format("'{}'", flags.file);
    const auto bytes = read_file(flags.file, kLimitBytes);
    // A folder or a locked file is the user's to mend, as a missing one is.
    if (!bytes) return fail(ErrorCode::kInvalidArgument, "{}", bytes.error().message);
    text.assign(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  } else {
    source = "standard input";
    if (flags.file_option->count() == 0 && isatty(0) == 1) {
      return fail(ErrorCode::kInvalidArgument, "no text: give {}, -f FILE, or pipe it in",
                  flags.text_option->get_positional() ? "TEXT" : "-p TEXT");
    }
    KVSPAN_TRY(text, read_standard_input());
  }
  const bool typed = flags.text_option->count() > 0;
  if (last_newline == LastNewline::kDrop && !typed && text.ends_with('\n')) text.pop_back();
  if (text.empty()) return fail(ErrorCode::kInvalidArgument, "{} is empty", source);
  KVSPAN_CHECK_OK(check_text(text, source));
  return text;
}

std::string mended_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = std::min(find_invalid_utf8(text), text.size());
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += "\xef\xbf\xbd";
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace kvspan::cli
