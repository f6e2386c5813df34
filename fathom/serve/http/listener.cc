#include "fathom/serve/http/listener.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "fathom/base/hint.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"

namespace fathom::serve {
namespace {

constexpr int kBacklog = 4'096;

struct Name {
  std::string host;  // with brackets if it needs them
  int port = 0;
  bool loopback = false;
};

Name name_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &four.sin_addr, text.data(), text.size());
    return {text.data(), ntohs(four.sin_port), (ntohl(four.sin_addr.s_addr) >> 24) == 127};
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &six.sin6_addr, text.data(), text.size());
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && six.sin6_addr.s6_addr[12] == 127;
  return {str_cat("[", text.data(), "]"), ntohs(six.sin6_port),
          mapped || IN6_IS_ADDR_LOOPBACK(&six.sin6_addr)};
}

// An error of the machine, whatever its number, with the flag that helps.
Status listen_error(std::string_view action, std::string_view place, int error) {
  std::string_view hint;
  if (error == EADDRINUSE) {
    hint = "another program listens there; give another --port, or --port 0 for a free one";
  } else if (error == EADDRNOTAVAIL) {
    hint = "--host takes an address of this machine, 0.0.0.0 for all of them";
  } else if (error == EACCES || error == EPERM) {
    hint = "ports below 1024 are for root; give another --port, or another place for --uds";
  } else if (error == ENOENT || error == ENOTDIR) {
    hint = "the directory of --uds must be there";
  }
  Status status = io_error(errno_status(action, place, error).message());
  if (hint.empty()) return status;
  return with_hint_instead(std::move(status), hint);
}

// Whether a server answers at the path.
bool someone_listens(const sockaddr_un& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return true;
  const bool refused =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED;
  close(fd);
  return !refused;
}

}  // namespace

Listener::~Listener() {
  if (fd_ >= 0) close(fd_);
  if (!unlink_path_.empty()) unlink(unlink_path_.c_str());
}

Listener::Listener(Listener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      address_(std::move(other.address_)),
      unlink_path_(std::exchange(other.unlink_path_, {})),
      loopback_(other.loopback_) {}

Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(address_, other.address_);
  std::swap(unlink_path_, other.unlink_path_);
  std::swap(loopback_, other.loopback_);
  return *this;
}

Result<Listener> Listener::open(const HttpSettings& settings) {
  Listener listener;
  if (settings.uds_path.empty()) {
    FATHOM_TRY(listener.bind_tcp(settings));
  } else {
    FATHOM_TRY(listener.bind_unix(settings.uds_path));
  }
  if (listen(listener.fd_, kBacklog) != 0)
    return listen_error("listen at", listener.address_, errno);
  return listener;
}

Status Listener::bind_tcp(const HttpSettings& settings) {
  std::string host = settings.host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), str_cat(settings.port).c_str(), &hints, &found);
  if (failed != 0) {
    return invalid_argument(str_cat("--host ", settings.host,
                                    " is no address of this machine: ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  // "localhost" is both: the older one is what clients try when they know no better.
  const addrinfo* chosen = found;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    if (a->ai_family != AF_INET) continue;
    chosen = a;
    break;
  }
  address_ = str_cat(host, ":", settings.port);
  fd_ = socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return listen_error("make a socket for", address_, errno);
  const int on = 1;
  setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd_, chosen->ai_addr, chosen->ai_addrlen) != 0) {
    const int error = errno;
    return listen_error("bind (--host, --port)", address_, error);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return listen_error("tell the address of", address_, errno);
  const Name name = name_of(bound);
  loopback_ = name.loopback;
  address_ = str_cat(settings.tls() ? "https://" : "http://", name.host, ":", name.port);
  return {};
}

Status Listener::bind_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid_argument(str_cat("--uds ", path, " is of ", path.size(), " bytes, at most ",
                                    sizeof address.sun_path - 1, " are possible"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());

  struct stat there {};

  if (lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode))
      return invalid_argument(str_cat("--uds ", path, " is there and no socket"));
    if (someone_listens(address))
      return with_hint(io_error(str_cat("--uds ", path, " is in use by another server")),
                       "end that one, or give another path");
    unlink(path.c_str());
  }
  address_ = str_cat("unix:", path);
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return listen_error("make a socket for", path, errno);
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return listen_error("bind (--uds)", path, errno);
  unlink_path_ = path;
  // Before it listens nobody can connect.
  if (chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0)
    return listen_error("set the mode of", path, errno);
  return {};
}

int Listener::release() {
  return std::exchange(fd_, -1);
}

Peer peer_of(int fd) {
  sockaddr_storage here{};
  socklen_t size = sizeof here;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size) != 0 || here.ss_family == AF_UNIX)
    return {"unix", true};
  sockaddr_storage there{};
  size = sizeof there;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &size) != 0) return {"gone", false};
  const Name name = name_of(there);
  return {str_cat(name.host, ":", name.port), name_of(here).loopback};
}

}  // namespace fathom::serve
