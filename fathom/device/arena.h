// Bump arenas: memory of one step or of one call, taken in order and given back all at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/base/checked_math.h"
#include "fathom/base/status.h"
#include "fathom/device/memory.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// A bump arena over a buffer, or a dry one that only counts.
///
/// `take` never frees; `reset` gives everything back, `release(mark)` back to a mark. The
/// high-water mark of a dry run sizes the buffer of the real one. Not thread-safe.
class Arena {
 public:
  static constexpr int64_t kAlignment = 64;

  /// A dry arena: hands out null pointers and counts bytes.
  Arena() = default;

  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)), dry_(false) {}

  bool dry() const { return dry_; }

  /// True if what it hands out is memory of a GPU.
  bool on_device() const { return buffer_.on_device(); }

  /// `bytes` of 64-byte aligned memory; null when dry or when bytes is 0. Errors: OutOfMemory with
  /// the sizes (a broken memory plan).
  Result<void*> take(int64_t bytes) {
    void* memory = nullptr;
    if (!try_take(bytes, &memory)) [[unlikely]]
      return exhausted(bytes);
    return memory;
  }

  /// As take, without a Status: false when the arena is too small. For the launch path.
  bool try_take(int64_t bytes, void** memory) {
    FATHOM_DCHECK(bytes >= 0);
    const int64_t begin = used_;
    const int64_t end = begin + align_up(bytes, kAlignment);
    *memory = nullptr;
    if (!dry_ && end > buffer_.size()) return false;
    used_ = end;
    high_water_ = std::max(high_water_, used_);
    if (!dry_ && bytes > 0) *memory = buffer_.data() + begin;
    return true;
  }

  /// The error of a request for `bytes` that did not fit.
  Status exhausted(int64_t bytes) const;

  /// A contiguous view of a dense format. Its bytes are not initialised.
  Result<View> tensor(std::initializer_list<int64_t> dims,
                      Format format,
                      const char* axes = nullptr);

  int64_t mark() const { return used_; }

  /// Nothing while the arena is held.
  void release(int64_t mark) {
    FATHOM_DCHECK(mark <= used_);
    if (!held_) used_ = mark;
  }

  /// While held, what was taken stays taken: work that runs beside the work to come may use it.
  void hold(bool held) { held_ = held; }

  void reset() { used_ = 0; }

  int64_t capacity() const { return buffer_.size(); }

  int64_t high_water() const { return high_water_; }

 private:
  Buffer buffer_;
  int64_t used_ = 0;
  int64_t high_water_ = 0;
  bool dry_ = true;
  bool held_ = false;
};

/// Gives back what was taken from an arena since its construction.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}

  ~ArenaScope() { arena_.release(mark_); }

  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  int64_t mark_;
};

}  // namespace fathom
