// SPDX-License-Identifier: Apache-2.0
// Line editing by libedit (BSD licence).
#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <string>
#include <string_view>
#include <utility>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/line_reader.h"
#include "cli/terminal/terminal.h"

namespace kvspan::cli::detail {
namespace {

constexpr int kHistoryLines = 1000;
constexpr std::wstring_view kPasteEnd = L"\033[201~";

// What terminals send for keys that libedit does not know by itself.
constexpr std::pair<const char*, const char*> kKeys[] = {
    {"\\e[200~", "kvspan-paste"},     {"\\e[1;5D", "ed-prev-word"},  // Ctrl and Alt with the arrows
    {"\\e[1;3D", "ed-prev-word"},     {"\\e[1;5C", "em-next-word"},
    {"\\e[1;3C", "em-next-word"},     {"^W", "ed-delete-prev-word"},
    {"\\e^?", "ed-delete-prev-word"}, {"\\e[H", "ed-move-to-beg"},  // Home, End
    {"\\e[1~", "ed-move-to-beg"},     {"\\e[F", "ed-move-to-end"},
    {"\\e[4~", "ed-move-to-end"},     {"\\e[3~", "ed-delete-next-char"},
};

struct FreeEditor {
  void operator()(EditLine* editor) const { el_end(editor); }
};
struct FreeHistory {
  void operator()(History* history) const { history_end(history); }
};

class EditingReader final : public LineReader {
 public:
  explicit EditingReader(std::string history_file) : history_file_(std::move(history_file)) {
    // Typed bytes become characters by the locale. Without one that knows UTF-8, take this.
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor_.reset(el_init("kvspan", stdin, stderr, stderr));
    history_.reset(history_init());
    if (!editor_ || !history_) return;
    HistEvent event{};
    ::history(history_.get(), &event, H_SETSIZE, kHistoryLines);
    ::history(history_.get(), &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) {
      ::history(history_.get(), &event, H_LOAD, history_file_.c_str());
    }
    EditLine* editor = editor_.get();
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT_ESC, prompt_text, kEscape);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 0);  // Ctrl-C is ours
    el_set(editor, EL_GETCFN, read_character);
    el_set(editor, EL_HIST, ::history, history_.get());
    el_set(editor, EL_ADDFN, "kvspan-paste", "Insert what is pasted", paste);
    for (const auto& [keys, what] : kKeys) el_set(editor, EL_BIND, keys, what, nullptr);
    el_source(editor, nullptr);  // the user's ~/.editrc
  }

  ~EditingReader() override {
    if (!history_ || history_file_.empty()) return;
    HistEvent event{};
    ::history(history_.get(), &event, H_SAVE, history_file_.c_str());
  }

  bool usable() const { return editor_ && history_; }

  Line read(const std::string& prompt) override {
    const Terminal terminal = describe_terminal(2);
    prompt_ = prompt;
    if (terminal.colours) prompt_ = "\1\033[32m\1" + prompt + "\1\033[0m\1";
    typed_.clear();
    keys_ = 0;
    was_interrupted_ = false;
    int length = 0;
    // Asks the terminal to mark what is pasted, while there is somebody to understand the marks.
    std::fputs("\033[?2004h", stderr);
    const char* text = el_gets(editor_.get(), &length);
    std::fputs("\033[?2004l", stderr);
    if (was_interrupted_) {
      std::fputs("^C\n", stderr);
      return {Kind::kInterrupted, typed_, keys_};
    }
    if (text == nullptr || length <= 0) {
      std::fputs("\n", stderr);
      return {};
    }
    std::string line(text, static_cast<std::size_t>(length));
    if (line.ends_with('\n')) line.pop_back();
    return {Kind::kText, line, keys_};
  }

  void remember(const std::string& line) override {
    HistEvent event{};
    ::history(history_.get(), &event, H_ENTER, line.c_str());
  }

 private:
  static constexpr char kEscape = '\1';  // brackets what takes no columns

  static EditingReader& of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<EditingReader*>(self);
  }

  // Called at the mark before what is pasted: takes all up to the mark after it.
  static unsigned char paste(EditLine* editor, int) {
    std::wstring text;
    wchar_t character = 0;
    while (!text.ends_with(kPasteEnd)) {
      if (el_wgetc(editor, &character) != 1) return CC_EOF;
      text += character == L'\r' ? L'\n' : character;
    }
    text.resize(text.size() - kPasteEnd.size());
    if (!text.empty() && el_winsertstr(editor, text.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
  }

  static char* prompt_text(EditLine* editor) { return of(editor).prompt_.data(); }

  // libedit's own reader tries again after a signal; this one gives up the line.
  static int read_character(EditLine* editor, wchar_t* out) {
    std::mbstate_t state{};
    for (;;) {
      EditingReader& self = of(editor);
      if (!wait_readable(0)) {
        const LineInfo* line = el_line(editor);
        self.typed_.assign(line->buffer, line->lastchar);
        self.was_interrupted_ = true;
        return -1;
      }
      char byte = 0;
      const ssize_t got = ::read(0, &byte, 1);
      if (got == 0) return 0;
      if (got < 0) {
        if (errno == EINTR) continue;  // a window size, a stop and continue
        return -1;
      }
      ++self.keys_;
      const std::size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<std::size_t>(-2)) continue;  // more bytes belong to it
      if (used == static_cast<std::size_t>(-1)) *out = L'\ufffd';
      return 1;
    }
  }

  std::string history_file_;
  std::unique_ptr<History, FreeHistory> history_;  // read by the editor
  std::unique_ptr<EditLine, FreeEditor> editor_;
  std::string prompt_;
  std::string typed_;
  int keys_ = 0;  // pressed since the line began
  bool was_interrupted_ = false;
};

}  // namespace

std::unique_ptr<LineReader> make_editing_reader(const std::string& history) {
  auto reader = std::make_unique<EditingReader>(history);
  if (!reader->usable()) return nullptr;
  return reader;
}

}  // namespace kvspan::cli::detail
