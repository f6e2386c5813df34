#include "fathom/serve/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <future>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "fathom/base/log.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/clock.h"
#include "fathom/serve/http/connection.h"
#include "fathom/serve/http/listener.h"
#include "fathom/serve/http/loop.h"
#include "fathom/serve/http/server_context.h"
#include "fathom/serve/http/transport.h"

namespace fathom::serve {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr int64_t kAcceptPauseMs = 100;  // without descriptors
constexpr int64_t kKeptDescriptors = 256;
constexpr int64_t kMaxRejecting = 64;  // connections above the limit that are told so

std::string hex(uint64_t value, int digits) {
  std::string out(static_cast<size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; --i, value >>= 4)
    out[static_cast<size_t>(i)] = "0123456789abcdef"[value & 15];
  return out;
}

int64_t allowed_connections(int64_t asked) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return asked;
  const int64_t possible =
      std::max<int64_t>(1, static_cast<int64_t>(limit.rlim_cur) - kKeptDescriptors);
  if (possible < asked) {
    log_warn("--max-connections ", asked, " is lowered to ", possible, ": the process may have ",
             limit.rlim_cur, " descriptors (ulimit -n)");
  }
  return std::min(asked, possible);
}

// How often the timeouts are looked at: an eighth of the shortest.
int64_t tick_ms_of(const HttpSettings& s) {
  int64_t shortest = std::min({s.header_timeout_ms, s.body_timeout_ms, s.idle_timeout_ms,
                               s.write_stall_ms, s.linger_ms, s.slow_body_grace_ms});
  if (s.ping_interval_ms > 0) shortest = std::min(shortest, s.ping_interval_ms);
  return std::clamp<int64_t>(shortest / 8, 5, 250);
}

// What lives on the loop.
class Acceptor final : public FdListener {
 public:
  Acceptor(HttpSettings settings,
           HttpHandler handler,
           HttpGate gate,
           RefusalObserver on_refused,
           std::shared_ptr<Loop> loop,
           std::unique_ptr<TlsContext> tls,
           const Listener& listener)
      : tls_(std::move(tls)), unix_(listener.is_unix()) {
    context_.settings = std::move(settings);
    context_.rules = {.loopback_bind = listener.loopback() && !unix_, .gate = std::move(gate)};
    context_.handler = std::move(handler);
    context_.budget = std::make_shared<InputBudget>(context_.settings.max_buffered_input_bytes);
    context_.loop = std::move(loop);
    context_.on_refused = std::move(on_refused);
    context_.on_closed = [this](Connection& c) { forget(c); };
    tick_ms_ = tick_ms_of(context_.settings);
  }

  Status begin(int fd) {
    FATHOM_ASSIGN(watch_, context_.loop->watch(fd, this));
    watch_->wait(FdEvent::kReadable);
    return {};
  }

  ServerContext& context() { return context_; }

  void on_fd(FdEvent /*event*/) override { accept_some(); }

  void stop_accepting() {
    context_.draining = true;
    watch_.reset();
    stopped_ = true;
  }

  void close_all() {
    stop_accepting();
    const auto open = connections_;
    for (const auto& connection : open)
      connection->close();
  }

 private:
  void accept_some() {
    for (int i = 0; i < kAcceptsPerTurn && !stopped_; ++i) {
      const int fd = accept4(watch_->descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        serve(fd);
        continue;
      }
      if (errno == EAGAIN) break;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        const int64_t now = monotonic_ns();
        if (now - complained_ns_ > 10'000'000'000 || complained_ns_ == 0) {
          complained_ns_ = now;
          log_warn(
              "no connection can be accepted: the process or the system has no descriptors "
              "or no memory left; trying again each ",
              kAcceptPauseMs, " ms");
        }
        return context_.loop->after(kAcceptPauseMs,
                                    [this, self = shared_from_this()] { accept_some(); });
      }
      // What happened to a connection before it was accepted is no concern of the others.
    }
    if (!stopped_) watch_->wait(FdEvent::kReadable);
  }

  void serve(int fd) {
    ++context_.accepted;
    const bool full = context_.connections >= context_.settings.max_connections;
    if (full) {
      ++context_.rejected;
      if (rejecting_ >= kMaxRejecting || tls_) {
        ::close(fd);
        return;
      }
    }
    auto transport = tls_ ? tls_->transport(fd) : plain_transport(fd);
    if (!transport) {
      ::close(fd);
      return;
    }
    const auto connection = std::make_shared<Connection>(context_, peer_of(fd));
    connection->counted = !full;
    connection->slot = connections_.size();
    connections_.push_back(connection);
    ++(full ? rejecting_ : open_);
    context_.connections = open_;
    if (!connection->start(fd, std::move(transport))) return forget(*connection);
    if (full) connection->reject();
    start_ticking();
  }

  void forget(Connection& connection) {
    const size_t slot = connection.slot;
    --(connection.counted ? open_ : rejecting_);
    context_.connections = open_;
    connections_[slot].swap(connections_.back());
    connections_[slot]->slot = slot;
    connections_.pop_back();
    // 10,000 connections that went leave no list of 10,000.
    if (connections_.capacity() > 64 && connections_.size() < connections_.capacity() / 4)
      connections_.shrink_to_fit();
  }

  void start_ticking() {
    if (std::exchange(ticking_, true)) return;
    context_.loop->after(tick_ms_, [this, self = shared_from_this()] { tick(); });
  }

  void tick() {
    ticking_ = false;
    const int64_t now = monotonic_ns();
    // From the back: one that closes swaps with the last, which was looked at.
    for (size_t i = connections_.size(); i-- > 0;) {
      if (i >= connections_.size()) continue;
      const auto connection = connections_[i];
      connection->tick(now);
    }
    if (!connections_.empty()) start_ticking();
  }

  ServerContext context_;
  std::unique_ptr<TlsContext> tls_;
  bool unix_;
  std::unique_ptr<FdWatch> watch_;
  bool stopped_ = false;
  bool ticking_ = false;
  int64_t tick_ms_ = 250;
  int64_t complained_ns_ = 0;
  int64_t open_ = 0;
  int64_t rejecting_ = 0;
  std::vector<std::shared_ptr<Connection>> connections_;
};

class LoopServer final : public HttpServer {
 public:
  LoopServer(std::shared_ptr<Loop> loop, std::shared_ptr<Acceptor> acceptor, Listener listener)
      : loop_(std::move(loop)), acceptor_(std::move(acceptor)), listener_(std::move(listener)) {}

  ~LoopServer() override {
    std::promise<void> closed;
    loop_->post([&] {
      acceptor_->close_all();
      closed.set_value();
    });
    closed.get_future().wait();
    loop_->stop();
  }

  Status begin() {
    std::promise<Status> begun;
    const int fd = listener_.release();
    loop_->post([&] { begun.set_value(acceptor_->begin(fd)); });
    return begun.get_future().get();
  }

  const std::string& address() const override { return listener_.address(); }

  Post post() override {
    return [loop = loop_](std::function<void()> f) { loop->post(std::move(f)); };
  }

  void stop_accepting() override {
    acceptor_->context().draining = true;
    loop_->post([acceptor = acceptor_] { acceptor->stop_accepting(); });
  }

  bool wait_idle(int64_t timeout_ms) override {
    const int64_t end_ns = monotonic_ns() + timeout_ms * 1'000'000;
    while (acceptor_->context().busy.load() > 0) {
      if (monotonic_ns() >= end_ns) return false;
      const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
      nanosleep(&pause, nullptr);
    }
    return true;
  }

  HttpCounts counts() const override {
    const ServerContext& c = acceptor_->context();
    return {.connections = c.connections,
            .busy = c.busy,
            .input_bytes = c.budget->held_bytes(),
            .accepted_total = c.accepted,
            .rejected_total = c.rejected,
            .requests_total = c.requests,
            .refused_total = c.refused,
            .gone_total = c.gone,
            .given_up_total = c.given_up};
  }

 private:
  std::shared_ptr<Loop> loop_;
  std::shared_ptr<Acceptor> acceptor_;
  Listener listener_;
};

}  // namespace

const std::string& ServerContext::date() {
  const int64_t now = time(nullptr);
  if (now != date_s_) {
    date_s_ = now;
    date_ = http_date(now);
  }
  return date_;
}

std::string ServerContext::next_request_id() {
  if (id_prefix_.empty()) {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
      random = static_cast<uint64_t>(monotonic_ns());
    id_prefix_ = str_cat("req-", hex(random, 16), "-");
  }
  return id_prefix_ + hex(next_id_++, 8);
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpSettings settings,
                                                      HttpHandler handler,
                                                      HttpGate gate,
                                                      RefusalObserver on_refused) {
  FATHOM_TRY(check_settings(settings));
  settings.max_connections = allowed_connections(settings.max_connections);
  std::unique_ptr<TlsContext> tls;
  if (settings.tls()) {
    FATHOM_ASSIGN(tls, TlsContext::load(settings.tls_cert_file, settings.tls_key_file));
  }
  FATHOM_ASSIGN(Listener listener, Listener::open(settings));
  FATHOM_ASSIGN(auto loop, Loop::start());
  auto acceptor =
      std::make_shared<Acceptor>(std::move(settings), std::move(handler), std::move(gate),
                                 std::move(on_refused), loop, std::move(tls), listener);
  auto server =
      std::make_unique<LoopServer>(std::move(loop), std::move(acceptor), std::move(listener));
  FATHOM_TRY(server->begin());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace fathom::serve
