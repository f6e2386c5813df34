#include "fathom/serve/http/client/http_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cmath>
#include <map>

#include "fathom/base/ascii.h"
#include "fathom/base/str_cat.h"
#include "fathom/serve/http/client/outbound_connection.h"
#include "fathom/serve/http/client/reply_parser.h"

namespace fathom::serve {
namespace {

using Error = boost::system::error_code;
using Tcp = boost::asio::ip::tcp;
using boost::asio::steady_timer;

constexpr double kLongestTimeout = 1e8;  // seconds, three years: what a clock can add

std::chrono::nanoseconds seconds(double s) {
  return std::chrono::nanoseconds(static_cast<int64_t>(std::clamp(s, 0.0, kLongestTimeout) * 1e9));
}

class LoopClient;

// One call, from its connection to the end of its reply.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(LoopClient& client, CallId id, ClientCall call, CallListener listener);

  void begin();
  void finish(CallFault fault, Status status);

 private:
  void take_connection();
  void resolve();
  void connect(const std::vector<Tcp::endpoint>& endpoints);
  void handshake();
  void exchange();
  std::unique_ptr<ReplyParser> new_parser();
  void read();
  void on_read(const Error& error, size_t bytes);
  void on_bytes();
  void on_close(const Error& error);
  void limit(double timeout_s, std::string what);
  void fail_to_connect(std::string_view why);
  std::string name() const;

  LoopClient& client_;
  CallId id_;
  ClientCall call_;
  CallListener listener_;
  std::string request_;
  std::shared_ptr<OutboundConnection> connection_;
  std::unique_ptr<ReplyParser> parser_;
  steady_timer timer_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::array<char, 32 * 1024> chunk_;
  std::string pending_;  // bytes that came and are not parsed
  int status_ = 0;
  bool reused_ = false;
  bool written_ = false;
  bool ended_ = false;
};

class LoopClient final : public HttpClient {
 public:
  LoopClient(HttpClientOptions options, BaseUrl url)
      : options_(std::move(options)), url_(std::move(url)) {}

  ~LoopClient() override {
    // Handlers that still wait hold calls, which point here.
    idle_.clear();
    calls_.clear();
    timers_.clear();
  }

  Status set_up_tls() {
    if (!url_.tls) return {};
    Error error;
    tls_.set_options(boost::asio::ssl::context::no_sslv2 | boost::asio::ssl::context::no_sslv3 |
                         boost::asio::ssl::context::no_tlsv1 |
                         boost::asio::ssl::context::no_tlsv1_1,
                     error);
    if (!error && verifies()) tls_.set_default_verify_paths(error);
    if (!error) return {};
    return unavailable(str_cat("TLS cannot be set up: ", error.message()));
  }

  const BaseUrl& url() const override { return url_; }

  CallId start(ClientCall call, CallListener listener) override {
    const CallId id = ++last_id_;
    auto made = std::make_shared<Call>(*this, id, std::move(call), std::move(listener));
    calls_.emplace(id, made);
    boost::asio::post(io_, [made] { made->begin(); });
    return id;
  }

  void cancel(CallId id) override {
    const auto found = calls_.find(id);
    if (found == calls_.end()) return;
    boost::asio::post(io_, [call = found->second] {
      call->finish(CallFault::kCancelled, cancelled("the call was cancelled"));
    });
  }

  TimerId after(int64_t delay_ns, std::function<void()> then) override {
    const TimerId id = ++last_id_;
    auto timer = std::make_unique<steady_timer>(io_, std::chrono::nanoseconds(delay_ns));
    timer->async_wait([this, id, then = std::move(then)](const Error& error) {
      if (error || timers_.erase(id) == 0) return;  // one that was dropped is gone already
      then();
    });
    timers_.emplace(id, std::move(timer));
    return id;
  }

  void drop(TimerId id) override { timers_.erase(id); }

  void run() override {
    io_.restart();
    io_.run();
  }

  bool verifies() const { return options_.certificates == Certificates::kVerify; }

  HttpClientOptions options_;
  BaseUrl url_;
  boost::asio::io_context io_{1};
  boost::asio::ssl::context tls_{boost::asio::ssl::context::tls_client};
  std::vector<Tcp::endpoint> endpoints_;  // of the host, once it was found
  std::vector<std::shared_ptr<OutboundConnection>> idle_;
  std::map<CallId, std::shared_ptr<Call>> calls_;
  std::map<TimerId, std::unique_ptr<steady_timer>> timers_;
  CallId last_id_ = 0;
};

Call::Call(LoopClient& client, CallId id, ClientCall call, CallListener listener)
    : client_(client),
      id_(id),
      call_(std::move(call)),
      listener_(std::move(listener)),
      timer_(client.io_) {
  const BaseUrl& url = client.url_;
  request_ =
      str_cat(call_.method, " ", url.prefix, call_.path, " HTTP/1.1\r\nHost: ", url.host_header(),
              "\r\nUser-Agent: fathom\r\nAccept: */*\r\n");
  for (const auto* headers : {&client.options_.headers, &call_.headers}) {
    for (const auto& [name, value] : *headers)
      str_append(request_, str_cat(name, ": ", value, "\r\n"));
  }
  if (!call_.body.empty()) {
    str_append(
        request_,
        str_cat("Content-Type: application/json\r\nContent-Length: ", call_.body.size(), "\r\n"));
  } else if (call_.method != "GET") {
    request_ += "Content-Length: 0\r\n";
  }
  request_ += "\r\n";
  request_ += call_.body;
  std::string().swap(call_.body);
}

std::string Call::name() const {
  return str_cat(call_.method, " ", client_.url_.prefix, call_.path, " at ",
                 client_.url_.address());
}

void Call::begin() {
  if (ended_) return;
  started_ = std::chrono::steady_clock::now();
  take_connection();
}

void Call::take_connection() {
  reused_ = !client_.idle_.empty();
  if (reused_) {
    connection_ = std::move(client_.idle_.back());
    client_.idle_.pop_back();
    exchange();
    return;
  }
  connection_ = std::make_shared<OutboundConnection>(client_.io_);
  limit(client_.options_.connect_timeout_s, "no connection");
  if (!client_.endpoints_.empty()) {
    connect(client_.endpoints_);
  } else {
    resolve();
  }
}

void Call::resolve() {
  auto resolver = std::make_shared<Tcp::resolver>(client_.io_);
  const std::string port = str_cat(client_.url_.port);
  resolver->async_resolve(client_.url_.host, port,
                          [self = shared_from_this(), resolver](
                              const Error& error, const Tcp::resolver::results_type& found) {
                            if (self->ended_) return;
                            if (error) return self->fail_to_connect(error.message());
                            std::vector<Tcp::endpoint> endpoints;
                            for (const auto& entry : found)
                              endpoints.push_back(entry.endpoint());
                            self->client_.endpoints_ = endpoints;
                            self->connect(endpoints);
                          });
}

void Call::connect(const std::vector<Tcp::endpoint>& endpoints) {
  boost::asio::async_connect(connection_->socket(), endpoints,
                             [self = shared_from_this()](const Error& error, const Tcp::endpoint&) {
                               if (self->ended_) return;
                               if (error) return self->fail_to_connect(error.message());
                               Error ignored;  // small requests must not wait for each other
                               self->connection_->socket().set_option(Tcp::no_delay(true), ignored);
                               if (self->client_.url_.tls) return self->handshake();
                               self->exchange();
                             });
}

void Call::handshake() {
  connection_->handshake(
      client_.tls_, client_.url_.host, client_.verifies(),
      [self = shared_from_this()](const Error& error) {
        if (self->ended_) return;
        if (!error) return self->exchange();
        const std::string address = self->client_.url_.address();
        const std::string reason = self->connection_->certificate_error();
        const bool untrusted = self->client_.verifies() && !reason.empty();
        self->finish(
            CallFault::kTls,
            unavailable(untrusted ? str_cat("the certificate of ", address, " is not trusted: ",
                                            reason, "\nhint: --insecure accepts any")
                                  : str_cat("no TLS with ", address, ": ", error.message())));
      });
}

void Call::fail_to_connect(std::string_view why) {
  finish(
      CallFault::kConnect,
      unavailable(str_cat("cannot connect to ", client_.url_.address(), ": ", why,
                          "\nhint: `fathom serve MODEL` starts a server; is the address right?")));
}

void Call::exchange() {
  const double total = client_.options_.total_timeout_s;
  const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - started_;
  timer_.cancel();
  if (total > 0) limit(std::max(total - gone.count(), 0.0), "no complete reply");
  pending_.clear();
  written_ = false;
  connection_->write(request_,
                     [self = shared_from_this(), used = connection_](const Error& error, size_t) {
                       // A server may answer and close before it read everything: what it said
                       // counts, and a connection that is gone shows when it is read.
                       self->written_ = self->written_ || (!error && used == self->connection_);
                     });
  parser_ = new_parser();
  read();
}

std::unique_ptr<ReplyParser> Call::new_parser() {
  return std::make_unique<ReplyParser>(
      [this](const ReplyHead& head) {
        status_ = head.status;
        if (status_ >= 200 && listener_.on_head) listener_.on_head(head);
      },
      [this](std::string_view body) {
        if (!ended_ && listener_.on_body) listener_.on_body(body);
      });
}

void Call::read() {
  connection_->read_some(boost::asio::buffer(chunk_),
                         [self = shared_from_this()](const Error& error, size_t bytes) {
                           if (!self->ended_) self->on_read(error, bytes);
                         });
}

void Call::on_read(const Error& error, size_t bytes) {
  pending_.append(chunk_.data(), bytes);
  if (bytes > 0) on_bytes();
  if (ended_) return;
  if (error) {
    on_close(error);
  } else {
    read();
  }
}

void Call::on_bytes() {
  Status parsed = parser_->push(pending_);
  if (ended_) return;
  if (!parsed.ok()) return finish(CallFault::kBrokenReply, std::move(parsed).add_context(name()));
  if (!parser_->is_done()) return;
  if (status_ < 200) {  // an interim reply: the real one follows
    parser_ = new_parser();
    if (!pending_.empty()) on_bytes();
    return;
  }
  if (parser_->keep_alive() && written_ && pending_.empty()) {
    client_.idle_.push_back(std::move(connection_));
  }
  finish(CallFault::kNone, {});
}

void Call::on_close(const Error& error) {
  // A kept connection that the server had closed meanwhile never carried the request.
  if (reused_ && !parser_->any_byte()) {
    connection_->close();
    return take_connection();
  }
  if (parser_->end().ok()) return finish(CallFault::kNone, {});
  const std::string came = parser_->any_byte()
                               ? str_cat("after ", parser_->body_bytes(), " bytes of the body")
                               : "before it replied";
  const bool plain =
      error == boost::asio::error::eof || error == boost::asio::ssl::error::stream_truncated;
  finish(CallFault::kClosed, io_error(str_cat(name(), ": the connection ended ", came,
                                              plain ? "" : str_cat(" (", error.message(), ")"))));
}

void Call::limit(double timeout_s, std::string what) {
  timer_.expires_after(seconds(timeout_s));
  timer_.async_wait([self = shared_from_this(), what = std::move(what)](const Error& error) {
    // One that was set anew while its call waited has another end.
    const bool over = self->timer_.expiry() <= std::chrono::steady_clock::now();
    if (error || self->ended_ || !over) return;
    const HttpClientOptions& options = self->client_.options_;
    const bool connecting = self->parser_ == nullptr;
    const double allowed = connecting ? options.connect_timeout_s : options.total_timeout_s;
    self->finish(connecting ? CallFault::kConnect : CallFault::kTimeout,
                 unavailable(str_cat(self->name(), ": ", what, " within ", allowed, " s")));
  });
}

void Call::finish(CallFault fault, Status status) {
  if (ended_) return;
  ended_ = true;
  const auto self = shared_from_this();
  timer_.cancel();
  if (connection_) connection_->close();
  client_.calls_.erase(id_);
  const CallListener listener = std::move(listener_);
  if (listener.on_end) listener.on_end(fault, status);
}

}  // namespace

std::string_view call_fault_name(CallFault fault) {
  switch (fault) {
    case CallFault::kNone:
      return "none";
    case CallFault::kConnect:
      return "connect";
    case CallFault::kTls:
      return "tls";
    case CallFault::kTimeout:
      return "timeout";
    case CallFault::kClosed:
      return "closed";
    case CallFault::kBrokenReply:
      return "broken_reply";
    case CallFault::kCancelled:
      return "cancelled";
  }
  return "none";
}

std::string_view ReplyHead::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_without_case(key, name)) return value;
  }
  return {};
}

Result<std::unique_ptr<HttpClient>> HttpClient::create(const HttpClientOptions& options) {
  FATHOM_ASSIGN(BaseUrl url, parse_base_url(options.base_url));
  try {
    auto client = std::make_unique<LoopClient>(options, std::move(url));
    FATHOM_TRY(client->set_up_tls());
    return std::unique_ptr<HttpClient>(std::move(client));
  } catch (const boost::system::system_error& error) {
    return unavailable(str_cat("no client of HTTP: ", std::string_view(error.what())));
  }
}

Result<ClientReply> HttpClient::fetch(ClientCall call, int64_t max_bytes) {
  ClientReply reply;
  Status ended;
  bool too_long = false;
  CallId id = 0;
  const std::string path = call.path;
  CallListener listener;
  listener.on_head = [&](const ReplyHead& head) { reply.head = head; };
  listener.on_body = [&](std::string_view piece) {
    if (too_long) return;
    too_long = static_cast<int64_t>(reply.body.size() + piece.size()) > max_bytes;
    if (too_long) return cancel(id);
    reply.body += piece;
  };
  listener.on_end = [&](CallFault fault, const Status& status) {
    if (fault != CallFault::kNone) ended = Status::error(status.code(), status.message());
  };
  id = start(std::move(call), std::move(listener));
  run();
  if (too_long) {
    return corrupt(str_cat("the reply to ", path, " has more than ", max_bytes, " bytes"));
  }
  if (!ended.ok()) return ended;
  return reply;
}

}  // namespace fathom::serve
