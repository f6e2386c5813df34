// --trace-requests: a line of JSON for each answer, with what the client wrote and what came back.
// It holds user text, so it is off unless asked for, and its file is for its owner alone (0600).
//
//   {"time":"2026-01-31T12:00:00Z","id":..,"path":..,"specs":[{"prompt":..,"prompt_tokens":[..]}],
//    "choices":[{"spec":0,"tokens":[..],"text":..,"finish":"stop","cached_tokens":..,
//    "repairs":{..}}],"error":null}
//
// Lines are made and written by a thread of its own: one with a prompt of 131,072 ids is a megabyte
// and takes 12 ms. When that thread is slower than the engine, lines are dropped and counted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/tokenizer/answer/answer_parser.h"

namespace fathom::serve {

/// What is known of an answer when it ends.
struct TracedAnswer {
  struct Spec {
    std::string prompt;  ///< the text of the ids, with control tokens
    std::vector<int32_t> prompt_tokens;
  };

  struct Choice {
    size_t spec = 0;
    std::vector<int32_t> tokens;
    std::string text;  ///< of the tokens, before it is cut into parts
    std::string finish;
    int64_t cached_tokens = 0;
    AnswerRepairs repairs;
  };

  std::string id;
  std::string path;
  std::vector<Spec> specs;
  std::vector<Choice> choices;
  std::string error;  ///< its code; empty: none
};

/// The line, without its end.
std::string traced_line(const TracedAnswer& answer, int64_t unix_seconds);

class RequestTrace {
 public:
  /// Appends to a file. Errors: Io.
  static Result<std::unique_ptr<RequestTrace>> open(const std::string& path);

  /// Writes the lines that wait; says how many were dropped.
  ~RequestTrace();
  RequestTrace(const RequestTrace&) = delete;
  RequestTrace& operator=(const RequestTrace&) = delete;

  /// Thread-safe and quick: neither makes the line nor waits for the disk.
  void add(TracedAnswer answer);

 private:
  explicit RequestTrace(int fd) : fd_(fd), thread_([this] { write(); }) {}

  struct Waiting {
    TracedAnswer answer;
    int64_t unix_seconds = 0;
    int64_t bytes = 0;  // about what it holds
  };

  void write();
  void write_line(const std::string& line);

  int fd_;
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Waiting> waiting_;
  int64_t waiting_bytes_ = 0;
  int64_t dropped_ = 0;
  bool stopping_ = false;
  bool failed_ = false;  // of the thread
  std::thread thread_;
};

}  // namespace fathom::serve
