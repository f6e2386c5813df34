// Publishes KV events over ZeroMQ.
//
//   engine thread                      publisher thread
//   prefix cache -> recorder           PUB     [topic, sequence, batch]
//   end_step() ---bounded queue------>         kept: the last batches, for
//                                      ROUTER  [peer, "", start] -> [peer, "", sequence, batch]
//                                      ...,
//                                              [peer, "", -1, ""]
//
// The sequence number is 8 bytes, big end first, and counts batches from 0. The engine thread takes
// a short lock and never waits for the network: when the queue is full the batch is dropped and its
// number left out, so that subscribers see a gap.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/serve/kv_events/kv_event.h"
#include "fathom/serve/kv_events/zmq_library.h"

namespace fathom::serve {

struct KvPublisherSettings {
  std::string endpoint;         ///< --kv-events: "tcp://*:5556" binds, "connect:tcp://..." connects
  std::string replay_endpoint;  ///< --kv-events-replay; empty: no replay
  std::string pod_id;           ///< --pod-id, else POD_IP or POD_NAME
  std::string model_name;
  KvEventFrame frame;
  int64_t max_queued = 1'000;       ///< batches between the threads
  int64_t kept_batches = 10'000;    ///< for replay
  int64_t kept_bytes = 64ll << 20;  ///< for replay
};

class KvPublisher final : public PrefixObserver {
 public:
  /// Errors: Unavailable without libzmq; InvalidArgument for an endpoint that cannot be had.
  static Result<std::unique_ptr<KvPublisher>> create(KvPublisherSettings settings);

  /// Sends what waits, half a second at most.
  ~KvPublisher() override;
  KvPublisher(const KvPublisher&) = delete;
  KvPublisher& operator=(const KvPublisher&) = delete;

  // On the engine thread. A clearing is published at once, the rest by end_step().
  void on_stored(const PrefixKey& key,
                 const PrefixKey& parent,
                 std::span<const int32_t> tokens) override;
  void on_removed(const PrefixKey& key) override;
  void on_cleared() override;

  /// The step has ended: its events go out as one batch.
  void end_step();

  /// Thread-safe.
  int64_t num_published() const { return published_.load(std::memory_order_relaxed); }

  int64_t num_dropped() const { return dropped_.load(std::memory_order_relaxed); }

  /// Where the sockets are bound.
  const std::string& endpoint() const { return endpoint_; }

  const std::string& replay_endpoint() const { return replay_endpoint_; }

  /// "kv@POD@MODEL".
  const std::string& topic() const { return topic_; }

 private:
  struct Batch {
    uint64_t sequence = 0;
    double timestamp = 0;
    std::vector<KvEvent> events;
  };

  struct Kept {
    uint64_t sequence = 0;
    std::string bytes;
  };

  explicit KvPublisher(KvPublisherSettings settings);

  Status open_sockets();
  void run();
  void send_queued();
  void keep(uint64_t sequence, std::string bytes);
  void answer_replay();
  void wake();

  const KvPublisherSettings settings_;
  std::string topic_;
  std::string endpoint_;
  std::string replay_endpoint_;
  KvEventRecorder recorder_;    // of the engine thread
  uint64_t next_sequence_ = 0;  // of the engine thread
  std::atomic<int64_t> published_ = 0;
  std::atomic<int64_t> dropped_ = 0;
  std::atomic<bool> stopping_ = false;
  int wake_fd_ = -1;

  std::mutex mutex_;
  std::deque<Batch> queue_;  // under mutex_

  // Of the publisher thread.
  std::unique_ptr<ZmqSocket> pub_;
  std::unique_ptr<ZmqSocket> router_;
  std::deque<Kept> kept_;
  int64_t kept_bytes_ = 0;
  const ZmqLibrary* library_ = nullptr;
  std::thread thread_;
};

}  // namespace fathom::serve
