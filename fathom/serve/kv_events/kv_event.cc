#include "fathom/serve/kv_events/kv_event.h"

#include <utility>

#include "fathom/serve/kv_events/msgpack.h"

namespace fathom::serve {
namespace {

uint64_t hash_of(const PrefixKey& key) {
  return key[0];
}

void write_hashes(MsgpackWriter& w, const std::vector<uint64_t>& hashes) {
  w.array(static_cast<uint32_t>(hashes.size()));
  for (const uint64_t hash : hashes)
    w.unsigned_integer(hash);
}

void write_tokens(MsgpackWriter& w, const std::vector<int32_t>& tokens) {
  w.array(static_cast<uint32_t>(tokens.size()));
  for (const int32_t token : tokens)
    w.integer(token);
}

void write_parent(MsgpackWriter& w, const KvEvent& event) {
  event.parent ? w.unsigned_integer(*event.parent) : w.nil();
}

void write_map(MsgpackWriter& w, const KvEventFrame& frame, const KvEvent& event) {
  switch (event.type) {
    case KvEvent::Type::kStored:
      w.map(12).string("type").string("BlockStored");
      write_hashes(w.string("block_hashes"), event.hashes);
      write_parent(w.string("parent_block_hash"), event);
      write_tokens(w.string("token_ids"), event.tokens);
      w.string("block_size").integer(frame.block_size);
      w.string("lora_id").nil();
      w.string("medium").string(frame.medium);
      w.string("lora_name").nil();
      w.string("extra_keys").nil();
      // A block holds all groups of the cache: there is one group to those outside.
      w.string("group_idx").nil();
      w.string("kv_cache_spec_kind").nil();
      w.string("kv_cache_spec_sliding_window").nil();
      return;
    case KvEvent::Type::kRemoved:
      w.map(4).string("type").string("BlockRemoved");
      write_hashes(w.string("block_hashes"), event.hashes);
      w.string("medium").string(frame.medium);
      w.string("group_idx").nil();
      return;
    case KvEvent::Type::kCleared:
      w.map(1).string("type").string("AllBlocksCleared");
      return;
  }
}

void write_array(MsgpackWriter& w, const KvEventFrame& frame, const KvEvent& event) {
  switch (event.type) {
    case KvEvent::Type::kStored:
      w.array(7).string("BlockStored");
      write_hashes(w, event.hashes);
      write_parent(w, event);
      write_tokens(w, event.tokens);
      w.integer(frame.block_size).nil().string(frame.medium);
      return;
    case KvEvent::Type::kRemoved:
      w.array(3).string("BlockRemoved");
      write_hashes(w, event.hashes);
      w.string(frame.medium);
      return;
    case KvEvent::Type::kCleared:
      w.array(1).string("AllBlocksCleared");
      return;
  }
}

}  // namespace

std::string encode_kv_batch(const KvEventFrame& frame,
                            double timestamp,
                            const std::vector<KvEvent>& events) {
  MsgpackWriter w;
  w.array(3).number(timestamp).array(static_cast<uint32_t>(events.size()));
  for (const KvEvent& event : events)
    frame.form == KvEventForm::kMap ? write_map(w, frame, event) : write_array(w, frame, event);
  w.integer(frame.dp_rank);
  return w.take();
}

void KvEventRecorder::on_stored(const PrefixKey& key,
                                const PrefixKey& parent,
                                std::span<const int32_t> tokens) {
  const bool follows = !events_.empty() && events_.back().type == KvEvent::Type::kStored &&
                       !is_root(parent) && events_.back().hashes.back() == hash_of(parent);
  if (!follows) {
    events_.push_back({.type = KvEvent::Type::kStored, .hashes = {}, .parent = {}, .tokens = {}});
    if (!is_root(parent)) events_.back().parent = hash_of(parent);
  }
  events_.back().hashes.push_back(hash_of(key));
  events_.back().tokens.insert(events_.back().tokens.end(), tokens.begin(), tokens.end());
}

void KvEventRecorder::on_removed(const PrefixKey& key) {
  if (events_.empty() || events_.back().type != KvEvent::Type::kRemoved) {
    events_.push_back({.type = KvEvent::Type::kRemoved, .hashes = {}, .parent = {}, .tokens = {}});
  }
  events_.back().hashes.push_back(hash_of(key));
}

void KvEventRecorder::on_cleared() {
  events_.push_back({});
}

std::vector<KvEvent> KvEventRecorder::take() {
  return std::exchange(events_, {});
}

}  // namespace fathom::serve
