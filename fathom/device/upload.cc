#include "fathom/device/upload.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fathom {

Result<Uploader> Uploader::create(int64_t piece_bytes) {
  FATHOM_ASSIGN(Stream stream, Stream::create());
  Uploader uploader(std::move(stream));
  for (int i = 0; i < 2; ++i) {
    FATHOM_ASSIGN(Buffer memory, Buffer::allocate_pinned(piece_bytes, "staging of weights"));
    FATHOM_ASSIGN(Event sent, Event::create());
    uploader.slots_.push_back({.memory = std::move(memory), .sent = std::move(sent)});
  }
  return uploader;
}

Result<std::span<std::byte>> Uploader::next_piece(int64_t bytes) {
  current_ = 1 - current_;
  Slot& slot = slots_[current_];
  if (slot.in_flight) FATHOM_TRY(slot.sent.synchronize());
  slot.in_flight = false;
  if (slot.memory.size() < bytes) {
    slot.memory = Buffer();
    FATHOM_ASSIGN(slot.memory, Buffer::allocate_pinned(bytes, "staging of weights"));
  }
  return std::span(slot.memory.data(), static_cast<size_t>(slot.memory.size()));
}

Status Uploader::send_piece(std::byte* to, int64_t bytes, int64_t from) {
  Slot& slot = slots_[current_];
  FATHOM_CHECK(from + bytes <= slot.memory.size(), "a piece larger than its memory");
  FATHOM_TRY(stream_.copy(to, slot.memory.data() + from, bytes));
  FATHOM_TRY(slot.sent.record(stream_));
  slot.in_flight = true;
  return {};
}

Status Uploader::copy(std::byte* to, std::span<const std::byte> from) {
  while (!from.empty()) {
    FATHOM_ASSIGN(const std::span<std::byte> piece, next_piece());
    const size_t size = std::min(piece.size(), from.size());
    std::memcpy(piece.data(), from.data(), size);
    FATHOM_TRY(send_piece(to, static_cast<int64_t>(size)));
    to += size;
    from = from.subspan(size);
  }
  return {};
}

Status Uploader::repeat(std::byte* to, int64_t period, int64_t bytes) {
  // What is there doubles with each copy, and stays a whole number of periods until the last.
  for (int64_t done = period; done < bytes; done *= 2) {
    FATHOM_TRY(stream_.copy(to + done, to, std::min(done, bytes - done)));
  }
  return {};
}

Status copy_to_gpu(std::byte* to, std::span<const std::byte> from) {
  FATHOM_ASSIGN(Stream stream, Stream::create());
  FATHOM_TRY(stream.copy(to, from.data(), static_cast<int64_t>(from.size())));
  return stream.synchronize();
}

}  // namespace fathom
