// The cases of kernels, shared out over processes: a shard is some of the cases of one kernel, and
// whichever process is free takes the next. Counts lie in memory that all of them share, made
// before they are forked; whoever ends the last shard of a kernel can say how the kernel did.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Every `step`th case of a kernel, from `first` on: cases that follow each other are alike, and
/// so are shards that take them in turn.
struct Shard {
  int kernel;
  int first;
  int step;

  template <class T>
  std::vector<T> of(const std::vector<T>& cases) const {
    std::vector<T> out;
    for (auto i = static_cast<size_t>(first); i < cases.size(); i += static_cast<size_t>(step))
      out.push_back(cases[i]);
    return out;
  }
};

/// A case that was left out as too large.
struct LargeCase {
  float size;  ///< how many times what is allowed
  uint32_t number;
};

/// The smallest of the large cases that all processes have seen.
class SmallestCase {
 public:
  void add(LargeCase c);
  std::optional<LargeCase> get() const;

 private:
  std::atomic<uint64_t> packed_{UINT64_MAX};  // size, as the bits of a float, then number
};

/// Counts of a kernel over all of its shards. What belongs to variants is in their order.
struct KernelCounts {
  std::atomic<int> shards_left{0};
  std::atomic<int> cases{0};     ///< begun
  std::atomic<int> left_out{0};  ///< of these, by a variant or more
  std::atomic<int> failures{0};
  std::atomic<int> crashes{0};
  std::atomic<int> not_taken{0};                      ///< cases that no variant takes
  std::array<std::atomic<int>, kMaxVariants> runs{};  ///< of a case by the variant
  std::array<SmallestCase, kMaxVariants> not_run{};   ///< left out, and taken by the variant
};

class CaseShards {
 public:
  /// Of kernels with these numbers of cases; a kernel without any has one empty shard. `most` is of
  /// the cases of a shard. Errors: OutOfMemory.
  static Result<CaseShards> create(const std::vector<size_t>& num_cases, size_t most);

  /// The next shard that nobody has taken; empty when there is none.
  std::optional<Shard> take();

  /// Says that a shard is done; true if it was the last of its kernel.
  bool finish(const Shard& shard);

  std::span<KernelCounts> kernels() { return kernels_; }

 private:
  std::vector<Shard> shards_;
  std::atomic<size_t>* next_ = nullptr;  // shared, as are the counts
  std::span<KernelCounts> kernels_;
};

}  // namespace fathom
