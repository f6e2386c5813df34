// The part of ZeroMQ that KV events need, from libzmq.so.5, which is opened when somebody asks for
// events and not before. Its header is not needed to build.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"

namespace fathom::serve {

/// zmq_pollitem_t: a socket, or a descriptor if that is null.
struct ZmqPollItem {
  void* socket = nullptr;
  int fd = -1;
  short events = 0;
  short revents = 0;
};

/// The functions of the library, by their names without zmq_.
struct ZmqLibrary {
  /// Opens the library. Errors: Unavailable, naming the package.
  static Result<const ZmqLibrary*> open();

  void* (*ctx_new)() = nullptr;
  int (*ctx_term)(void* context) = nullptr;
  void* (*socket)(void* context, int type) = nullptr;
  int (*close)(void* socket) = nullptr;
  int (*bind)(void* socket, const char* endpoint) = nullptr;
  int (*connect)(void* socket, const char* endpoint) = nullptr;
  int (*setsockopt)(void* socket, int option, const void* value, size_t size) = nullptr;
  int (*getsockopt)(void* socket, int option, void* value, size_t* size) = nullptr;
  int (*send)(void* socket, const void* data, size_t size, int flags) = nullptr;
  int (*recv)(void* socket, void* data, size_t size, int flags) = nullptr;
  int (*poll)(ZmqPollItem* items, int count, long timeout_ms) = nullptr;
  int (*error_number)() = nullptr;
  const char* (*strerror)(int error) = nullptr;
};

inline constexpr short kZmqPollIn = 1;

enum class ZmqSocketType : int { kPub = 1, kSub = 2, kDealer = 5, kRouter = 6 };

/// A context with one kind of owner. Not thread-safe; may be handed to another thread.
class ZmqContext {
 public:
  explicit ZmqContext(const ZmqLibrary& library);
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  const ZmqLibrary& library;
  void* const handle;
};

/// One socket. Nothing here blocks but receive() with a timeout.
class ZmqSocket {
 public:
  /// Errors: Unavailable with ZeroMQ's words.
  static Result<std::unique_ptr<ZmqSocket>> create(std::shared_ptr<ZmqContext> context,
                                                   ZmqSocketType type,
                                                   int send_limit);
  ~ZmqSocket();
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  /// Binds to "tcp://*:5556", or connects to what stands behind "connect:". Errors:
  /// InvalidArgument, naming the endpoint.
  Status attach(const std::string& endpoint);

  /// Of a SUB socket: all topics that begin so.
  void subscribe(std::string_view topic);

  /// The frames of one message, or an empty list if none came for `timeout_ms`. Frames are cut at
  /// 64 KiB, and those behind the sixteenth dropped.
  std::vector<std::string> receive(int timeout_ms);

  /// Hands a message over; false if it is not taken at once.
  bool send(const std::vector<std::string_view>& frames);

  /// Where it is bound: with the port that "tcp://127.0.0.1:*" was given.
  std::string endpoint() const;

  void* handle() const { return handle_; }

 private:
  ZmqSocket(std::shared_ptr<ZmqContext> context, void* handle);

  std::shared_ptr<ZmqContext> context_;  // shared: it ends behind its last socket
  void* handle_;
};

}  // namespace fathom::serve
