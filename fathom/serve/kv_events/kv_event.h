// What the prefix cache can find, as events for routers that send a prompt to where its prefix
// lies. A batch holds the events of one step, in order:
//
//   [timestamp, [event, ...], dp_rank]        MessagePack
//   event  {"type": "BlockStored", "block_hashes": [..], "parent_block_hash": .., ...}
//          {"type": "BlockRemoved", "block_hashes": [..], ...}
//          {"type": "AllBlocksCleared"}
//
// A hash is the first 64 bits of our key of the block. Subscribers that hash otherwise make their
// own from the token ids. The form is that of vLLM's events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fathom/runtime/kv/prefix_cache.h"

namespace fathom::serve {

/// Blocks that follow each other are one event.
struct KvEvent {
  enum class Type : uint8_t { kStored, kRemoved, kCleared };

  Type type = Type::kCleared;
  std::vector<uint64_t> hashes;    ///< stored: a chain, first block first; removed: in any order
  std::optional<uint64_t> parent;  ///< stored: of the block before; none: a prompt begins here
  std::vector<int32_t> tokens;     ///< stored: of all blocks, one behind the other

  bool operator==(const KvEvent&) const = default;
};

/// How an event is written: maps, or the arrays of before 2026-06 (--kv-events-form array).
enum class KvEventForm : uint8_t { kMap, kArray };

/// Fields that are the same in every event.
struct KvEventFrame {
  int64_t block_size = 0;
  std::string medium = "CPU";  ///< "GPU", "CPU", "DISK": where the blocks lie
  int64_t dp_rank = 0;
  KvEventForm form = KvEventForm::kMap;
};

/// The bytes of a batch. `timestamp`: Unix time in seconds.
std::string encode_kv_batch(const KvEventFrame& frame,
                            double timestamp,
                            const std::vector<KvEvent>& events);

/// Collects the events of a step.
class KvEventRecorder final : public PrefixObserver {
 public:
  void on_stored(const PrefixKey& key,
                 const PrefixKey& parent,
                 std::span<const int32_t> tokens) override;
  void on_removed(const PrefixKey& key) override;
  void on_cleared() override;

  bool empty() const { return events_.empty(); }

  /// The events since the last call.
  std::vector<KvEvent> take();

 private:
  std::vector<KvEvent> events_;
};

}  // namespace fathom::serve
