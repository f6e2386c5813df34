// A client for tests that sends bytes as they are and reads replies, over TCP or a Unix socket.
// Each read gives up after ten seconds.
#pragma once

#include <arpa/inet.h>
#include <charconv>
#include <cstring>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "fathom/base/check.h"

namespace fathom {

/// A reply, read whole; chunks are joined.
struct RawReply {
  int status = 0;  ///< 0: the connection ended first
  std::string head;
  std::string body;
  bool whole = false;  ///< the body came to its end

  /// The value of a header; empty if it is absent.
  std::string header(std::string_view name) const {
    const size_t at = head.find("\r\n" + std::string(name) + ": ");
    if (at == std::string::npos) return {};
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

class RawHttpClient {
 public:
  /// Of an address as HttpServer says it: "http://127.0.0.1:8000" or "unix:/path".
  explicit RawHttpClient(const std::string& address, int receive_buffer = 0) {
    if (address.starts_with("unix:")) {
      sockaddr_un un{};
      un.sun_family = AF_UNIX;
      std::strncpy(un.sun_path, address.c_str() + 5, sizeof un.sun_path - 1);
      connect_to(AF_UNIX, &un, sizeof un, 0);
      return;
    }
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    uint16_t port = 0;
    std::from_chars(address.data() + address.rfind(':') + 1, address.data() + address.size(), port);
    in.sin_port = htons(port);
    connect_to(AF_INET, &in, sizeof in, receive_buffer);
  }

  ~RawHttpClient() { leave(); }

  RawHttpClient(RawHttpClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), read_(std::move(other.read_)) {}

  RawHttpClient(const RawHttpClient&) = delete;
  RawHttpClient& operator=(const RawHttpClient&) = delete;

  int descriptor() const { return fd_; }

  bool connected() const { return fd_ >= 0; }

  /// False if the server does not take it all.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(put));
    }
    return true;
  }

  void end_output() { shutdown(fd_, SHUT_WR); }

  void leave() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

  /// Closes with a reset, as a killed process with unread bytes does.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    leave();
  }

  /// Reads one reply to its end.
  RawReply reply() {
    RawReply r;
    while (read_.find("\r\n\r\n") == std::string::npos) {
      if (!more()) return r;
    }
    const size_t end = read_.find("\r\n\r\n") + 4;
    r.head = read_.substr(0, end);
    read_.erase(0, end);
    std::from_chars(r.head.data() + 9, r.head.data() + 12, r.status);
    if (r.status < 200 || r.status == 204) {
      r.whole = true;
      return r;
    }
    if (r.header("Transfer-Encoding") == "chunked") {
      read_chunks(r);
    } else if (const std::string length = r.header("Content-Length"); !length.empty()) {
      size_t bytes = 0;
      std::from_chars(length.data(), length.data() + length.size(), bytes);
      while (read_.size() < bytes && more()) {
      }
      r.body = read_.substr(0, bytes);
      r.whole = r.body.size() == bytes;
      read_.erase(0, r.body.size());
    } else {
      r.body = all();
      r.whole = true;
    }
    return r;
  }

  /// Sends and reads one reply.
  RawReply ask(std::string_view bytes) {
    send(bytes);
    return reply();
  }

  /// Reads until `text` has come, which is taken with what goes before it.
  bool read_until(std::string_view text) {
    while (read_.find(text) == std::string::npos) {
      if (!more()) return false;
    }
    read_.erase(0, read_.find(text) + text.size());
    return true;
  }

  /// Everything until the server ends the connection.
  std::string all() {
    while (more()) {
    }
    return std::exchange(read_, {});
  }

  /// Whether the server has ended the connection, and nothing else came.
  bool ended() { return !more() && read_.empty() && !timed_out_; }

 private:
  template <class Address>
  void connect_to(int family, const Address* address, socklen_t size, int receive_buffer) {
    fd_ = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FATHOM_CHECK(fd_ >= 0, "no socket");
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    if (connect(fd_, reinterpret_cast<const sockaddr*>(address), size) != 0) leave();
  }

  bool more() {
    if (fd_ < 0) return false;
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 10'000) != 1) {
      timed_out_ = true;
      return false;
    }
    char bytes[16 << 10];
    const ssize_t got = recv(fd_, bytes, sizeof bytes, 0);
    if (got <= 0) return false;
    read_.append(bytes, static_cast<size_t>(got));
    return true;
  }

  void read_chunks(RawReply& r) {
    for (;;) {
      size_t end = 0;
      while ((end = read_.find("\r\n")) == std::string::npos) {
        if (!more()) return;
      }
      size_t size = 0;
      std::from_chars(read_.data(), read_.data() + end, size, 16);
      while (read_.size() < end + size + 4) {
        if (!more()) return;
      }
      r.body += read_.substr(end + 2, size);
      read_.erase(0, end + size + 4);
      if (size > 0) continue;
      r.whole = true;
      return;
    }
  }

  int fd_ = -1;
  bool timed_out_ = false;
  std::string read_;
};

}  // namespace fathom
