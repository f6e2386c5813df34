#include "fathom/serve/kv_events/zmq_library.h"

#include <algorithm>
#include <cerrno>
#include <dlfcn.h>

#include "fathom/base/hint.h"

namespace fathom::serve {
namespace {

// From zmq.h, whose numbers are part of its binary interface.
constexpr int kOptionSubscribe = 6;
constexpr int kOptionReceiveMore = 13;
constexpr int kOptionLinger = 17;
constexpr int kOptionMaxMessage = 22;
constexpr int kOptionSendLimit = 23;
constexpr int kOptionLastEndpoint = 32;
constexpr int kDontWait = 1;
constexpr int kSendMore = 2;

constexpr int kLingerMs = 500;
constexpr int64_t kLargestFrame = 64 << 10;
constexpr size_t kMostFrames = 16;  // of a message; no one of ours has more

struct Loaded {
  ZmqLibrary library;
  std::string error;
};

template <class Function>
void find(void* handle, const char* name, Function*& function, std::string& error) {
  function = reinterpret_cast<Function*>(dlsym(handle, name));
  if (function == nullptr && error.empty()) error = str_cat("it has no ", name);
}

Loaded load() {
  Loaded loaded;
  void* handle = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    loaded.error = reason != nullptr ? reason : "it cannot be opened";
    return loaded;
  }
  ZmqLibrary& z = loaded.library;
  find(handle, "zmq_ctx_new", z.ctx_new, loaded.error);
  find(handle, "zmq_ctx_term", z.ctx_term, loaded.error);
  find(handle, "zmq_socket", z.socket, loaded.error);
  find(handle, "zmq_close", z.close, loaded.error);
  find(handle, "zmq_bind", z.bind, loaded.error);
  find(handle, "zmq_connect", z.connect, loaded.error);
  find(handle, "zmq_setsockopt", z.setsockopt, loaded.error);
  find(handle, "zmq_getsockopt", z.getsockopt, loaded.error);
  find(handle, "zmq_send", z.send, loaded.error);
  find(handle, "zmq_recv", z.recv, loaded.error);
  find(handle, "zmq_poll", z.poll, loaded.error);
  find(handle, "zmq_errno", z.error_number, loaded.error);
  find(handle, "zmq_strerror", z.strerror, loaded.error);
  return loaded;
}

std::string last_error(const ZmqLibrary& library) {
  return library.strerror(library.error_number());
}

}  // namespace

Result<const ZmqLibrary*> ZmqLibrary::open() {
  static const Loaded loaded = load();
  if (!loaded.error.empty()) {
    return with_hint(
        unavailable(str_cat("--kv-events needs the library libzmq.so.5: ", loaded.error)),
        "Debian has it in the package libzmq5; without --kv-events nothing needs it");
  }
  return &loaded.library;
}

ZmqContext::ZmqContext(const ZmqLibrary& zmq) : library(zmq), handle(zmq.ctx_new()) {}

ZmqContext::~ZmqContext() {
  if (handle != nullptr) library.ctx_term(handle);
}

ZmqSocket::ZmqSocket(std::shared_ptr<ZmqContext> context, void* handle)
    : context_(std::move(context)), handle_(handle) {}

ZmqSocket::~ZmqSocket() {
  context_->library.close(handle_);
}

Result<std::unique_ptr<ZmqSocket>> ZmqSocket::create(std::shared_ptr<ZmqContext> context,
                                                     ZmqSocketType type,
                                                     int send_limit) {
  const ZmqLibrary& zmq = context->library;
  void* handle =
      context->handle != nullptr ? zmq.socket(context->handle, static_cast<int>(type)) : nullptr;
  if (handle == nullptr) {
    return with_hint(unavailable(str_cat("ZeroMQ gives no socket: ", last_error(zmq))),
                     "raise the limit of open files (ulimit -n)");
  }
  zmq.setsockopt(handle, kOptionLinger, &kLingerMs, sizeof kLingerMs);
  zmq.setsockopt(handle, kOptionSendLimit, &send_limit, sizeof send_limit);
  if (type == ZmqSocketType::kRouter) {
    zmq.setsockopt(handle, kOptionMaxMessage, &kLargestFrame, sizeof kLargestFrame);
  }
  return std::unique_ptr<ZmqSocket>(new ZmqSocket(std::move(context), handle));
}

Status ZmqSocket::attach(const std::string& endpoint) {
  const ZmqLibrary& zmq = context_->library;
  constexpr std::string_view kConnect = "connect:";
  const bool connects = endpoint.starts_with(kConnect);
  const std::string address = connects ? endpoint.substr(kConnect.size()) : endpoint;
  const int failed =
      connects ? zmq.connect(handle_, address.c_str()) : zmq.bind(handle_, address.c_str());
  if (failed == 0) return {};
  const int error = zmq.error_number();
  const std::string what = str_cat("endpoint \"", endpoint, "\" of KV events cannot be ",
                                   connects ? "connected to" : "bound", ": ", zmq.strerror(error));
  if (error == EADDRINUSE) return with_hint(io_error(what), "it is taken: give another port");
  return invalid_argument(
      str_cat(what, "; expected tcp://ADDRESS:PORT or connect:tcp://HOST:PORT"));
}

void ZmqSocket::subscribe(std::string_view topic) {
  context_->library.setsockopt(handle_, kOptionSubscribe, topic.data(), topic.size());
}

std::vector<std::string> ZmqSocket::receive(int timeout_ms) {
  const ZmqLibrary& zmq = context_->library;
  std::vector<std::string> frames;
  ZmqPollItem item{.socket = handle_, .fd = -1, .events = kZmqPollIn, .revents = 0};
  if (zmq.poll(&item, 1, timeout_ms) <= 0) return frames;
  for (int more = 1; more != 0;) {
    std::string frame(kLargestFrame, '\0');
    const int size = zmq.recv(handle_, frame.data(), frame.size(), kDontWait);
    if (size < 0) return {};
    frame.resize(std::min(frame.size(), static_cast<size_t>(size)));
    if (frames.size() < kMostFrames) frames.push_back(std::move(frame));
    size_t more_size = sizeof more;
    if (zmq.getsockopt(handle_, kOptionReceiveMore, &more, &more_size) != 0) more = 0;
  }
  return frames;
}

bool ZmqSocket::send(const std::vector<std::string_view>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int flags = kDontWait | (i + 1 < frames.size() ? kSendMore : 0);
    if (context_->library.send(handle_, frames[i].data(), frames[i].size(), flags) < 0) {
      return false;
    }
  }
  return true;
}

std::string ZmqSocket::endpoint() const {
  char text[256] = {};
  size_t size = sizeof text;
  context_->library.getsockopt(handle_, kOptionLastEndpoint, text, &size);
  return text;
}

}  // namespace fathom::serve
