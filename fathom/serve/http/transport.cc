#include "fathom/serve/http/transport.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <sys/socket.h>

namespace fathom::serve {
namespace {

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(int fd) : fd_(fd) {}

  bool needs_handshake() const override { return false; }

  IoResult handshake() override { return {IoState::kDone, 0}; }

  IoResult read(std::span<char> into) override {
    for (;;) {
      const ssize_t got = recv(fd_, into.data(), into.size(), MSG_DONTWAIT);
      if (got > 0) return {IoState::kDone, static_cast<size_t>(got)};
      if (got == 0) return {IoState::kEnd, 0};
      if (errno == EINTR) continue;
      return {errno == EAGAIN ? IoState::kWantRead : IoState::kFailed, 0};
    }
  }

  IoResult write(std::string_view bytes) override {
    for (;;) {
      const ssize_t put = send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (put >= 0) return {IoState::kDone, static_cast<size_t>(put)};
      if (errno == EINTR) continue;
      return {errno == EAGAIN ? IoState::kWantWrite : IoState::kFailed, 0};
    }
  }

  void end_output() override { shutdown(fd_, SHUT_WR); }

 private:
  int fd_;
};

}  // namespace

std::unique_ptr<Transport> plain_transport(int fd) {
  return std::make_unique<PlainTransport>(fd);
}

}  // namespace fathom::serve
