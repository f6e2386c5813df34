// The socket that a server listens on.
#pragma once

#include <string>

#include "fathom/base/status.h"
#include "fathom/serve/http/http_settings.h"

namespace fathom::serve {

/// Bound and listening; a Unix socket's file goes with the object. Move-only.
class Listener {
 public:
  Listener() = default;
  ~Listener();
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;

  /// The file of a Unix socket is for its owner alone (mode 0600); one that a dead server left is
  /// replaced. Errors: InvalidArgument for a host that is none and a path that is too long; Io for
  /// an address in use, naming it.
  static Result<Listener> open(const HttpSettings& settings);

  /// "http://127.0.0.1:8000", "https://[::1]:8000", "unix:/run/fathom.sock".
  const std::string& address() const { return address_; }

  /// Reached from this machine alone, by a network address.
  bool loopback() const { return loopback_; }

  bool is_unix() const { return !unlink_path_.empty(); }

  /// Gives the descriptor away: from then on its owner closes it.
  int release();

 private:
  Status bind_tcp(const HttpSettings& settings);
  Status bind_unix(const std::string& path);

  int fd_ = -1;
  std::string address_;
  std::string unlink_path_;
  bool loopback_ = false;
};

/// The other end of an accepted connection.
struct Peer {
  std::string name;  ///< "127.0.0.1:51234", "unix"
  bool on_loopback = false;
};

Peer peer_of(int fd);

}  // namespace fathom::serve
