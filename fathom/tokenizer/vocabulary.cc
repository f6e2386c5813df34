#include "fathom/tokenizer/vocabulary.h"

#include <bit>
#include <cstring>

#include "fathom/text/byte_level.h"
#include "fathom/text/utf8.h"

namespace fathom {
namespace {

uint64_t hash_of(std::string_view text) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t hash = text.size() * kMultiplier;
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t taken = text.size() < sizeof word ? text.size() : sizeof word;
    std::memcpy(&word, text.data(), taken);
    text.remove_prefix(taken);
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 29;
  }
  return hash ^ hash >> 32;
}

std::string quoted(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  return str_cat('"', utf8_lossy(text.substr(0, kMaxBytes)),
                 text.size() > kMaxBytes ? "...\"" : "\"");
}

}  // namespace

void Vocabulary::reserve(size_t num_entries, size_t num_text_bytes) {
  entries_.reserve(num_entries);
  pool_.reserve(num_text_bytes);
  slots_.reserve(std::bit_ceil(num_entries * 2 + 1));
}

bool Vocabulary::contains(int64_t id) const {
  return id >= 0 && id < size() && entries_[id].text_size != 0;
}

std::string_view Vocabulary::text(int32_t id) const {
  if (!contains(id)) return {};
  return std::string_view{pool_}.substr(entries_[id].text_offset, entries_[id].text_size);
}

std::string_view Vocabulary::bytes(int32_t id) const {
  if (!contains(id)) return {};
  return std::string_view{pool_}.substr(entries_[id].bytes_offset, entries_[id].bytes_size);
}

std::optional<size_t> Vocabulary::slot_of(std::string_view text) const {
  // With a table at most half full, chance does not fill so many slots in a row; a file made for it
  // would, and is refused, so that loading stays linear.
  constexpr size_t kMaxProbes = 512;
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(text) & mask;
  for (size_t i = 0; i < kMaxProbes; ++i, slot = (slot + 1) & mask) {
    if (slots_[slot] == kFree || this->text(slots_[slot]) == text) return slot;
  }
  return std::nullopt;
}

Status Vocabulary::grow(size_t num_slots) {
  slots_.assign(num_slots, kFree);
  for (int32_t id = 0; id < size(); ++id) {
    if (!contains(id)) continue;
    const auto slot = slot_of(text(id));
    if (!slot) return corrupt("the entries of the vocabulary are made to collide");
    slots_[*slot] = id;
  }
  return {};
}

Status Vocabulary::add(std::string_view text, int64_t id) {
  if (id < 0 || id >= kMaxVocabulary) {
    return corrupt(str_cat("the token ", quoted(text), " has the id ", id, ", expected 0 to ",
                           kMaxVocabulary - 1));
  }
  if (text.empty()) return corrupt(str_cat("the token with the id ", id, " is empty"));
  std::string bytes = byte_level_decode(text);
  if (static_cast<int64_t>(bytes.size()) > kMaxTokenBytes) {
    return corrupt(str_cat("the token ", quoted(text), " has ", bytes.size(),
                           " bytes, more than the limit of ", kMaxTokenBytes));
  }
  if (contains(id)) {
    return corrupt(str_cat("the tokens ", quoted(this->text(static_cast<int32_t>(id))), " and ",
                           quoted(text), " both have the id ", id));
  }
  if ((num_used_ + 1) * 2 > slots_.size()) FATHOM_TRY(grow(std::bit_ceil((num_used_ + 1) * 4)));
  const auto slot = slot_of(text);
  if (!slot) return corrupt("the entries of the vocabulary are made to collide");
  if (slots_[*slot] != kFree) {
    return corrupt(
        str_cat("the token ", quoted(text), " has the ids ", slots_[*slot], " and ", id));
  }
  if (id >= size()) entries_.resize(id + 1);
  Entry& entry = entries_[id];
  entry.text_offset = static_cast<uint32_t>(pool_.size());
  entry.text_size = static_cast<uint32_t>(text.size());
  pool_.append(text);
  entry.bytes_offset = entry.text_offset;
  entry.bytes_size = static_cast<uint32_t>(bytes.size());
  if (bytes != text) {
    entry.bytes_offset = static_cast<uint32_t>(pool_.size());
    pool_.append(bytes);
  }
  slots_[*slot] = static_cast<int32_t>(id);
  ++num_used_;
  return {};
}

std::optional<int32_t> Vocabulary::find(std::string_view text) const {
  if (slots_.empty() || text.empty()) return std::nullopt;
  const auto slot = slot_of(text);
  if (!slot || slots_[*slot] == kFree) return std::nullopt;
  return slots_[*slot];
}

}  // namespace fathom
