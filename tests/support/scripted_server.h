// A server of HTTP/1.1 on plain sockets whose replies a test writes byte by byte, broken ones too.
#pragma once

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cctype>
#include <functional>
#include <mutex>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "fathom/base/check.h"

namespace fathom {

/// One request as it came, and the socket to answer on.
struct ScriptedExchange {
  int socket = -1;
  int connection = 0;  ///< 0 for the first that was accepted
  std::string head;    ///< request line and headers
  std::string body;

  /// The request line holds this.
  bool asks(std::string_view words) const {
    return head.substr(0, head.find('\r')).find(words) != std::string::npos;
  }

  /// False once the client has gone.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  bool reply(int status, std::string_view body_text, std::string_view headers = "") const {
    std::string text = "HTTP/1.1 " + std::to_string(status) + " Word\r\n";
    text += headers;
    text += "Content-Length: " + std::to_string(body_text.size()) + "\r\n\r\n";
    text += body_text;
    return send(text);
  }

  /// A chunk of a chunked body; the empty one ends it.
  bool chunk(std::string_view bytes) const {
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    return send(std::string(size) + std::string(bytes) + "\r\n");
  }
};

class ScriptedServer {
 public:
  /// What becomes of the connection after a request was answered.
  enum class Then { kKeep, kClose };
  using Script = std::function<Then(const ScriptedExchange&)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    FATHOM_CHECK(::bind(listener_, any, size) == 0 && ::listen(listener_, 512) == 0, "no socket");
    ::getsockname(listener_, any, &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~ScriptedServer() {
    stopped_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int socket : sockets_)
        ::shutdown(socket, SHUT_RDWR);
    }
    for (std::thread& thread : threads_)
      thread.join();
    ::close(listener_);
  }

  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  int port() const { return port_; }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  int num_connections() const { return num_connections_; }

 private:
  void accept_all() {
    while (!stopped_) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      const int now = 1;  // pieces go out as they are written
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &now, sizeof now);
      const int number = num_connections_++;
      const std::lock_guard lock(mutex_);
      sockets_.push_back(socket);
      threads_.emplace_back([this, socket, number] { serve(socket, number); });
    }
  }

  void serve(int socket, int number) {
    std::string bytes;
    ScriptedExchange exchange{.socket = socket, .connection = number, .head = {}, .body = {}};
    while (!stopped_ && read_request(bytes, exchange)) {
      if (script_(exchange) == Then::kClose) break;
    }
    const std::lock_guard lock(mutex_);
    sockets_.erase(std::find(sockets_.begin(), sockets_.end(), socket));
    ::close(socket);
  }

  static bool read_request(std::string& bytes, ScriptedExchange& exchange) {
    size_t end = 0;
    while ((end = bytes.find("\r\n\r\n")) == std::string::npos)
      if (!read_more(exchange.socket, bytes)) return false;
    exchange.head = bytes.substr(0, end);
    bytes.erase(0, end + 4);
    constexpr std::string_view kLength = "Content-Length: ";
    const size_t at = exchange.head.find(kLength);
    size_t length = 0;
    if (at != std::string::npos) {
      for (size_t i = at + kLength.size(); std::isdigit(exchange.head[i]) != 0; ++i)
        length = length * 10 + static_cast<size_t>(exchange.head[i] - '0');
    }
    while (bytes.size() < length)
      if (!read_more(exchange.socket, bytes)) return false;
    exchange.body = bytes.substr(0, length);
    bytes.erase(0, length);
    return true;
  }

  static bool read_more(int socket, std::string& bytes) {
    char buffer[16 * 1024];
    const ssize_t got = ::recv(socket, buffer, sizeof buffer, 0);
    if (got > 0) bytes.append(buffer, static_cast<size_t>(got));
    return got > 0;
  }

  Script script_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopped_{false};
  std::atomic<int> num_connections_{0};
  std::mutex mutex_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace fathom
