// A server on a free port of the loopback, with routes that tests need:
//
//   /echo    "METHOD path query body"       /drop    lets the exchange go
//   /slow, /hold   kept for the test        /twice   replies "one", then "two"
//   /stream3 "0", "1", "2" as a stream      /cut     begins a stream and lets it go
//   /large   64 MiB
#pragma once

#include <arpa/inet.h>
#include <charconv>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <set>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/serve/http/http_server.h"
#include "tests/support/temp_dir.h"

namespace fathom::serve {

inline std::string get(const std::string& target,
                       const std::string& headers = {},
                       const std::string& host = "localhost") {
  return "GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n" + headers + "\r\n";
}

inline std::string post(const std::string& target,
                        const std::string& body,
                        const std::string& headers = {}) {
  return "POST " + target +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

class TestServer {
 public:
  explicit TestServer(HttpSettings settings = {},
                      HttpGate gate = {},
                      RefusalObserver on_refused = {}) {
    settings.port = 0;
    auto started = HttpServer::start(
        std::move(settings), [this](ExchangePtr x) { handle(std::move(x)); }, std::move(gate),
        std::move(on_refused));
    EXPECT_TRUE(started.ok()) << (started.ok() ? "" : started.status().message());
    server_ = std::move(started).value();
  }

  HttpServer* operator->() { return server_.get(); }

  const std::string& address() const { return server_->address(); }

  /// The newest of the exchanges kept, once there are so many. Waits at most ten seconds.
  ExchangePtr wait_for_held(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(10), [&] { return held_.size() >= count; }));
    return held_.empty() ? nullptr : held_.back();
  }

  /// Replies to all of them.
  void release_held(const std::string& body) {
    std::vector<ExchangePtr> held;
    {
      const std::lock_guard lock(mutex_);
      held.swap(held_);
    }
    for (const ExchangePtr& x : held)
      x->reply(text(body));
  }

  static HttpReply text(std::string body) {
    return {.status = 200, .content_type = "text/plain", .headers = {}, .body = std::move(body)};
  }

 private:
  void handle(ExchangePtr x) {
    const HttpRequest& r = x->request();
    if (r.path == "/slow" || r.path == "/hold") {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(x));
      changed_.notify_all();
    } else if (r.path == "/drop") {
      return;
    } else if (r.path == "/twice") {
      x->reply(text("one"));
      x->reply(text("two"));
      x->begin_stream(text("three"), {});
    } else if (r.path == "/stream3") {
      x->begin_stream(text("0"), {});
      x->send("1");
      x->send("2");
      x->end_stream();
    } else if (r.path == "/cut") {
      x->begin_stream(text("begun"), {});
    } else if (r.path == "/large") {
      x->reply(text(std::string(64 << 20, 'l')));
    } else {
      x->reply(text(str_cat(r.method, " ", r.path, " ", r.query, " ", r.body)));
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ExchangePtr> held_;
  std::unique_ptr<HttpServer> server_;  // last: it ends before what its handler uses
};

}  // namespace fathom::serve
