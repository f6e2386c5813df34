// Bytes in and out of a connected socket, in the clear or in TLS. Never blocks, never raises
// SIGPIPE.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom::serve {

enum class IoState : uint8_t {
  kDone,       ///< `bytes` were moved
  kWantRead,   ///< try again when the socket can be read
  kWantWrite,  ///< try again when it can be written
  kEnd,        ///< the peer sends no more; it may still read
  kFailed,     ///< the connection is dead
};

struct IoResult {
  IoState state = IoState::kFailed;
  size_t bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual bool needs_handshake() const = 0;

  /// To be repeated until it is kDone.
  virtual IoResult handshake() = 0;

  virtual IoResult read(std::span<char> into) = 0;

  /// The same bytes have to come again, though not at the same place, after a kWant.
  virtual IoResult write(std::string_view bytes) = 0;

  /// Tells the peer that nothing more comes.
  virtual void end_output() = 0;
};

/// In the clear. The descriptor stays the caller's and outlives the transport.
std::unique_ptr<Transport> plain_transport(int fd);

/// Certificate and key, shared by the connections.
class TlsContext {
 public:
  virtual ~TlsContext() = default;

  /// TLS 1.2 and later. Errors: InvalidArgument naming the file that cannot be read, and when key
  /// and certificate do not belong together.
  static Result<std::unique_ptr<TlsContext>> load(const std::string& cert_file,
                                                  const std::string& key_file);

  /// Null without memory.
  virtual std::unique_ptr<Transport> transport(int fd) = 0;
};

}  // namespace fathom::serve
