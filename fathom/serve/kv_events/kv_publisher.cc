#include "fathom/serve/kv_events/kv_publisher.h"

#include <algorithm>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <utility>

#include "fathom/base/hint.h"
#include "fathom/base/log.h"

namespace fathom::serve {
namespace {

constexpr uint64_t kEndOfReplay = UINT64_MAX;  // -1

std::string big_endian(uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes += static_cast<char>((value >> shift) & 0xff);
  return bytes;
}

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char c : bytes)
    value = (value << 8) | static_cast<unsigned char>(c);
  return value;
}

double unix_seconds() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

KvPublisher::KvPublisher(KvPublisherSettings settings)
    : settings_(std::move(settings)),
      topic_(str_cat("kv@", settings_.pod_id, "@", settings_.model_name)) {}

Result<std::unique_ptr<KvPublisher>> KvPublisher::create(KvPublisherSettings settings) {
  std::unique_ptr<KvPublisher> publisher(new KvPublisher(std::move(settings)));
  FATHOM_TRY(publisher->open_sockets());
  publisher->thread_ = std::thread([p = publisher.get()] { p->run(); });
  return publisher;
}

Status KvPublisher::open_sockets() {
  FATHOM_ASSIGN(library_, ZmqLibrary::open());
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    return with_hint(io_error("no descriptor is left for KV events"),
                     "raise the limit of open files (ulimit -n)");
  }
  const auto context = std::make_shared<ZmqContext>(*library_);
  // A replay is handed over at once, so as much as is kept must fit.
  const auto limit = static_cast<int>(std::min<int64_t>(settings_.kept_batches + 16, INT32_MAX));
  FATHOM_ASSIGN(pub_, ZmqSocket::create(context, ZmqSocketType::kPub, limit));
  FATHOM_TRY(pub_->attach(settings_.endpoint));
  endpoint_ = pub_->endpoint();
  if (settings_.replay_endpoint.empty()) return {};
  FATHOM_ASSIGN(router_, ZmqSocket::create(context, ZmqSocketType::kRouter, limit));
  FATHOM_TRY(router_->attach(settings_.replay_endpoint));
  replay_endpoint_ = router_->endpoint();
  return {};
}

KvPublisher::~KvPublisher() {
  stopping_ = true;
  if (thread_.joinable()) {
    wake();
    thread_.join();
  }
  router_.reset();
  pub_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
}

void KvPublisher::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is woken already.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void KvPublisher::on_stored(const PrefixKey& key,
                            const PrefixKey& parent,
                            std::span<const int32_t> tokens) {
  recorder_.on_stored(key, parent, tokens);
}

void KvPublisher::on_removed(const PrefixKey& key) {
  recorder_.on_removed(key);
}

void KvPublisher::on_cleared() {
  recorder_.on_cleared();
  end_step();
}

void KvPublisher::end_step() {
  if (recorder_.empty()) return;
  Batch batch{
      .sequence = next_sequence_++, .timestamp = unix_seconds(), .events = recorder_.take()};
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(queue_.size()) >= settings_.max_queued) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    queue_.push_back(std::move(batch));
  }
  wake();
}

void KvPublisher::run() {
  while (true) {
    ZmqPollItem items[2] = {
        {.socket = nullptr, .fd = wake_fd_, .events = kZmqPollIn, .revents = 0},
        {.socket = router_ != nullptr ? router_->handle() : nullptr,
         .fd = -1,
         .events = kZmqPollIn,
         .revents = 0},
    };
    library_->poll(items, router_ != nullptr ? 2 : 1, -1);
    const bool last = stopping_;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = read(wake_fd_, &count, sizeof count);
    send_queued();
    if (last) return;
    if (items[1].revents != 0) answer_replay();
  }
}

void KvPublisher::send_queued() {
  std::deque<Batch> batches;
  {
    const std::lock_guard lock(mutex_);
    batches.swap(queue_);
  }
  for (const Batch& batch : batches) {
    std::string bytes = encode_kv_batch(settings_.frame, batch.timestamp, batch.events);
    if (pub_->send({topic_, big_endian(batch.sequence), bytes})) {
      published_.fetch_add(1, std::memory_order_relaxed);
    } else {
      dropped_.fetch_add(1, std::memory_order_relaxed);
    }
    keep(batch.sequence, std::move(bytes));
  }
}

void KvPublisher::keep(uint64_t sequence, std::string bytes) {
  if (router_ == nullptr) return;
  kept_bytes_ += static_cast<int64_t>(bytes.size());
  kept_.push_back({sequence, std::move(bytes)});
  while (!kept_.empty() && (static_cast<int64_t>(kept_.size()) > settings_.kept_batches ||
                            kept_bytes_ > settings_.kept_bytes)) {
    kept_bytes_ -= static_cast<int64_t>(kept_.front().bytes.size());
    kept_.pop_front();
  }
}

void KvPublisher::answer_replay() {
  const std::vector<std::string> frames = router_->receive(0);
  if (frames.empty()) return;
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) {
    log_warn("kv events: a replay request of ", frames.size(),
             " frames was ignored, expected peer, an empty one and 8 bytes");
    return;
  }
  const uint64_t start = from_big_endian(frames[2]);
  const auto first = std::ranges::lower_bound(kept_, start, {}, &Kept::sequence);
  for (auto batch = first; batch != kept_.end(); ++batch) {
    if (!router_->send({frames[0], "", big_endian(batch->sequence), batch->bytes})) return;
  }
  router_->send({frames[0], "", big_endian(kEndOfReplay), ""});
}

}  // namespace fathom::serve
