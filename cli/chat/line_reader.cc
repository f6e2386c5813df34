#include "cli/chat/line_reader.h"

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <histedit.h>
#include <iterator>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include "cli/engine/text_engine.h"
#include "cli/io/interrupt.h"
#include "cli/io/terminal.h"
#include "cli/io/text_input.h"

namespace fathom::cli {

namespace {

constexpr wchar_t kReplacement = 0xfffd;
constexpr int kHistory = 1000;

volatile std::sig_atomic_t g_stop_asked = 0;
volatile std::sig_atomic_t g_resized = 0;

void note_signal(int signal) {
  if (signal == SIGTSTP) g_stop_asked = 1;
  if (signal == SIGWINCH) g_resized = 1;
}

// While a line is edited, signals come where a key is awaited and nowhere else, so that none falls
// between a look at its mark and the wait.
class EditingSignals {
 public:
  EditingSignals() {
    struct sigaction action {};

    action.sa_handler = note_signal;
    sigemptyset(&action.sa_mask);
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      sigaddset(&held, kSignals[i]);
      sigaction(kSignals[i], &action, &before_[i]);
    }
    sigprocmask(SIG_BLOCK, &held, &mask_before_);
  }

  ~EditingSignals() {
    for (size_t i = 0; i < std::size(kSignals); ++i)
      sigaction(kSignals[i], &before_[i], nullptr);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }

  EditingSignals(const EditingSignals&) = delete;
  EditingSignals& operator=(const EditingSignals&) = delete;

  /// The signals that may come while no key does.
  const sigset_t& while_waiting() const { return mask_before_; }

 private:
  static constexpr int kSignals[] = {SIGTSTP, SIGWINCH};
  struct sigaction before_[2] = {};
  sigset_t mask_before_{};
};

}  // namespace

class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  bool works() const { return line_ != nullptr && history_ != nullptr; }

  std::optional<TypedLine> next(const std::string& prompt);
  void remember(const std::string& text);

 private:
  static LineEditor& of(EditLine* line);
  static char* show_prompt(EditLine* line);
  static int read_character(EditLine* line, wchar_t* out);
  static unsigned char take_paste(EditLine* line, int key);

  enum class Bytes { kSome, kEnd, kInterrupted };
  Bytes read_byte(unsigned char& byte);
  Bytes await_key();
  void stop_here();
  void mark_pastes(bool on) const;
  void bind(const char* keys, const char* action);

  EditLine* line_;
  History* history_;
  std::string prompt_;
  const EditingSignals* signals_ = nullptr;
  const bool codes_ = terminal_takes_codes();
  bool interrupted_ = false;
};

LineEditor::LineEditor()
    : line_(el_init("fathom", stdin, stdout, stderr)), history_(history_init()) {
  if (!works()) return;
  // The library knows the width of characters by the locale. What fathom reads and writes is UTF-8.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  HistEvent event;
  history(history_, &event, H_SETSIZE, kHistory);
  if (!codes_) el_set(line_, EL_TERMINAL, "dumb");
  el_set(line_, EL_CLIENTDATA, this);
  el_set(line_, EL_PROMPT, show_prompt);
  el_set(line_, EL_EDITOR, "emacs");
  el_set(line_, EL_HIST, history, history_);
  el_set(line_, EL_GETCFN, read_character);
  // The wide call keeps the pointers; the narrow one would leak copies of both texts.
  el_wset(line_, EL_ADDFN, L"fathom-paste", L"Insert what is pasted", take_paste);
  bind("\\e[200~", "fathom-paste");
  // What shells have taught people, where the library has other habits.
  bind("^R", "em-inc-search-prev");
  bind("^U", "vi-kill-line-prev");
  bind("^W", "ed-delete-prev-word");
  bind("\\e[3~", "ed-delete-next-char");
  bind("\\e[1~", "ed-move-to-beg");
  bind("\\e[4~", "ed-move-to-end");
  bind("\\e[1;5D", "ed-prev-word");
  bind("\\e[1;5C", "em-next-word");
}

LineEditor::~LineEditor() {
  if (history_ != nullptr) history_end(history_);
  if (line_ != nullptr) el_end(line_);
}

void LineEditor::bind(const char* keys, const char* action) {
  el_set(line_, EL_BIND, keys, action, nullptr);
}

LineEditor& LineEditor::of(EditLine* line) {
  void* data = nullptr;
  el_get(line, EL_CLIENTDATA, &data);
  return *static_cast<LineEditor*>(data);
}

// The library takes the prompt as char*, and does not change it.
char* LineEditor::show_prompt(EditLine* line) {
  return const_cast<char*>(of(line).prompt_.c_str());
}

std::optional<TypedLine> LineEditor::next(const std::string& prompt) {
  prompt_ = prompt;
  interrupted_ = false;
  std::fflush(stdout);
  int count = 0;
  const char* text = nullptr;
  {
    const EditingSignals signals;
    signals_ = &signals;
    // The library would do so after the prompt, and what is typed in between would be echoed twice.
    el_set(line_, EL_PREP_TERM, 1);
    mark_pastes(true);
    text = el_gets(line_, &count);
    mark_pastes(false);
    signals_ = nullptr;
  }
  if (interrupted_) {
    std::printf("^C\n");
    return TypedLine{.interrupted = true};
  }
  if (text == nullptr || count <= 0) {
    std::printf("\n");
    return std::nullopt;
  }
  TypedLine out{.text = std::string(text, static_cast<size_t>(count))};
  if (out.text.ends_with('\n')) out.text.pop_back();
  return out;
}

void LineEditor::remember(const std::string& text) {
  HistEvent event;
  history(history_, &event, H_ENTER, text.c_str());
}

void LineEditor::mark_pastes(bool on) const {
  if (!codes_) return;
  std::printf("%s", on ? "\033[?2004h" : "\033[?2004l");
  std::fflush(stdout);
}

// As Ctrl-Z does elsewhere: the shell gets its terminal back, and when it lets the program go on,
// the line is shown again.
void LineEditor::stop_here() {
  mark_pastes(false);
  el_set(line_, EL_PREP_TERM, 0);

  struct sigaction usual {};

  usual.sa_handler = SIG_DFL;

  struct sigaction ours {};

  sigaction(SIGTSTP, &usual, &ours);
  std::raise(SIGTSTP);  // held until it is let through
  sigset_t stop, mask;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &stop, &mask);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  sigaction(SIGTSTP, &ours, nullptr);
  el_set(line_, EL_PREP_TERM, 1);
  mark_pastes(true);
  el_set(line_, EL_REFRESH);
}

LineEditor::Bytes LineEditor::await_key() {
  // Another thread may have taken a signal while this one held it; its mark is seen a moment later.
  constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 200'000'000};
  for (;;) {
    if (take_interrupt()) {
      interrupted_ = true;
      return Bytes::kInterrupted;
    }
    if (std::exchange(g_stop_asked, 0) != 0) stop_here();
    if (std::exchange(g_resized, 0) != 0) el_resize(line_);
    pollfd keys{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (ppoll(&keys, 1, &kLook, &signals_->while_waiting()) > 0) return Bytes::kSome;
  }
}

LineEditor::Bytes LineEditor::read_byte(unsigned char& byte) {
  const Bytes found = await_key();
  if (found != Bytes::kSome) return found;
  return ::read(STDIN_FILENO, &byte, 1) == 1 ? Bytes::kSome : Bytes::kEnd;
}

// One character of UTF-8; bytes that are none give U+FFFD. 1, or 0 at the end, or -1.
int LineEditor::read_character(EditLine* line, wchar_t* out) {
  LineEditor& editor = of(line);
  unsigned char lead = 0;
  const Bytes found = editor.read_byte(lead);
  if (found != Bytes::kSome) return found == Bytes::kEnd ? 0 : -1;
  if (lead < 0x80) {
    *out = static_cast<wchar_t>(lead);
    return 1;
  }
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
  uint32_t code = lead & (0x3fu >> more);
  for (int i = 0; i < more; ++i) {
    unsigned char byte = 0;
    if (editor.read_byte(byte) != Bytes::kSome) return -1;
    if ((byte & 0xc0) != 0x80) code = UINT32_MAX >> 6;
    code = code << 6 | (byte & 0x3fu);
  }
  constexpr uint32_t kLeast[] = {UINT32_MAX, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool good = code >= kLeast[more] && code <= 0x10ffff && !surrogate;
  *out = good ? static_cast<wchar_t>(code) : kReplacement;
  return 1;
}

// Everything up to the mark of its end goes into the line, newlines too; one at the end is dropped,
// which a copied line brings along.
unsigned char LineEditor::take_paste(EditLine* line, int) {
  constexpr std::wstring_view kEnd = L"\033[201~";
  std::wstring text;
  while (!text.ends_with(kEnd)) {
    wchar_t c = 0;
    if (read_character(line, &c) != 1) return CC_EOF;
    if (static_cast<int64_t>(text.size()) >= kMaxInputBytes) return CC_ERROR;
    text += c;
  }
  text.resize(text.size() - kEnd.size());
  std::wstring kept;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == L'\0' || (text[i] == L'\n' && i > 0 && text[i - 1] == L'\r')) continue;
    kept += text[i] == L'\r' ? L'\n' : text[i];  // terminals send Enter for a newline
  }
  if (kept.ends_with(L'\n')) kept.pop_back();
  if (!kept.empty()) el_winsertstr(line, kept.c_str());
  return CC_REFRESH;
}

LineReader::LineReader() : typed_(isatty(STDIN_FILENO) == 1) {
  if (!typed_ || !stdout_is_terminal()) return;
  editor_ = std::make_unique<LineEditor>();
  if (!editor_->works()) editor_.reset();
}

LineReader::~LineReader() = default;

Result<std::optional<TypedLine>> LineReader::next(const std::string& prompt) {
  return editor_ != nullptr ? editor_->next(prompt) : next_plain();
}

void LineReader::remember(const std::string& text) {
  if (editor_ != nullptr) editor_->remember(text);
}

Result<std::optional<TypedLine>> LineReader::next_plain() {
  TypedLine line;
  int c = 0;
  errno = 0;
  while ((c = std::getchar()) != EOF && c != '\n') {
    if (static_cast<int64_t>(line.text.size()) == kMaxInputBytes) return standard_input_too_long();
    line.text.push_back(static_cast<char>(c));
  }
  // Ctrl-C while a pipe is silent ends the input.
  if (c == EOF && std::ferror(stdin) != 0 && errno != EINTR) return standard_input_error(errno);
  if (c == EOF && line.text.empty()) return std::optional<TypedLine>{};
  while (line.text.ends_with('\r'))
    line.text.pop_back();
  return std::optional(std::move(line));
}

}  // namespace fathom::cli
