#include "fathom/serve/answer/request_trace.h"

#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "fathom/base/log.h"
#include "fathom/os/clock.h"
#include "fathom/os/file.h"
#include "fathom/serve/answer/reply_form.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMostWaitingBytes = 64ll << 20;

void write_repairs(JsonWriter& w, const AnswerRepairs& r) {
  w.begin_object();
  for_each_repair(r, [&](std::string_view kind, int count) {
    if (count > 0) w.key(kind).integer(count);
  });
  w.end_object();
}

int64_t held_bytes(const TracedAnswer& a) {
  size_t bytes = sizeof a;
  for (const TracedAnswer::Spec& spec : a.specs)
    bytes += sizeof spec + spec.prompt.size() + spec.prompt_tokens.size() * sizeof(int32_t);
  for (const TracedAnswer::Choice& choice : a.choices)
    bytes += sizeof choice + choice.text.size() + choice.tokens.size() * sizeof(int32_t);
  return static_cast<int64_t>(bytes);
}

}  // namespace

std::string traced_line(const TracedAnswer& a, int64_t unix_seconds) {
  JsonWriter w;
  w.begin_object();
  w.key("time")
      .string(utc_timestamp(unix_seconds))
      .key("id")
      .string(a.id)
      .key("path")
      .string(a.path);
  w.key("specs").begin_array();
  for (const TracedAnswer::Spec& spec : a.specs) {
    w.begin_object().key("prompt").string(spec.prompt).key("prompt_tokens");
    write_ids(w, spec.prompt_tokens);
    w.end_object();
  }
  w.end_array().key("choices").begin_array();
  for (const TracedAnswer::Choice& c : a.choices) {
    w.begin_object();
    w.key("spec").integer(static_cast<int64_t>(c.spec)).key("tokens");
    write_ids(w, c.tokens);
    w.key("text").string(c.text).key("finish").string(c.finish);
    w.key("cached_tokens").integer(c.cached_tokens).key("repairs");
    write_repairs(w, c.repairs);
    w.end_object();
  }
  w.end_array().key("error");
  a.error.empty() ? w.null() : w.string(a.error);
  w.end_object();
  return w.take();
}

Result<std::unique_ptr<RequestTrace>> RequestTrace::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) {
    // Io whatever the number: NotFound speaks of inputs.
    return io_error(errno_status("open", path, errno).message()).add_context("--trace-requests");
  }
  return std::unique_ptr<RequestTrace>(new RequestTrace(fd));
}

RequestTrace::~RequestTrace() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  filled_.notify_all();
  thread_.join();
  ::close(fd_);
  if (dropped_ > 0) log_warn("--trace-requests: ", dropped_, " lines were dropped: a slow disk");
}

void RequestTrace::add(TracedAnswer answer) {
  const int64_t bytes = held_bytes(answer);
  const std::lock_guard lock(mutex_);
  if (waiting_bytes_ + bytes > kMostWaitingBytes) {
    ++dropped_;
    return;
  }
  waiting_bytes_ += bytes;
  waiting_.push_back({std::move(answer), std::time(nullptr), bytes});
  filled_.notify_one();
}

void RequestTrace::write() {
  for (;;) {
    Waiting next;
    {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
      waiting_bytes_ -= next.bytes;
    }
    write_line(traced_line(next.answer, next.unix_seconds) + "\n");
  }
}

void RequestTrace::write_line(const std::string& line) {
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (!std::exchange(failed_, true))
        log_error("--trace-requests: ", std::generic_category().message(errno));
      return;
    }
    done += static_cast<size_t>(n);
  }
}

}  // namespace fathom::serve
