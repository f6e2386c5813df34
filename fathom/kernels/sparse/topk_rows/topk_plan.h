// How a GPU goes through rows of scores: which form, and how many blocks share a row. All forms
// give the same bits.
#pragma once

#include <cstdint>

namespace fathom::topk_rows {

inline constexpr int kBlockScores = 8192;  ///< in the registers of a block, or a window of it
inline constexpr int kMostBlocks = 16;     ///< of a cluster that holds rows
inline constexpr int kMostStreaming = 8;   ///< of a cluster that streams a row

enum class RowForm : uint8_t {
  kShort,  ///< a block holds a row
  kHeld,   ///< a cluster holds a row
  kFew,    ///< a row is read once, by a block a multiprocessor or fewer
  kMany,   ///< a row is read once, by one of two blocks of a multiprocessor
};

struct RowPlan {
  RowForm form;
  int blocks;  ///< of a row

  bool operator==(const RowPlan&) const = default;
};

/// The plan for rows of so many scores. `scores` counts those that share the first sixteen bytes of
/// an unaligned row; any_start: rows begin anywhere, which the short form does not know.
///
/// Clusters hold rows while a block has a multiprocessor, or half of one in clusters of two: with
/// more, additions to histograms of all scores take longer than a bound and what it leaves.
inline RowPlan plan_rows(int64_t rows, int64_t scores, bool any_start, int num_sms) {
  if (!any_start && scores <= kBlockScores) return {RowForm::kShort, 1};
  int holding = 2;
  while (holding < kMostBlocks && holding * int64_t{kBlockScores} < scores)
    holding *= 2;
  if (holding * int64_t{kBlockScores} >= scores &&
      rows * holding <= int64_t{num_sms} * (holding == 2 ? 2 : 1)) {
    // Down to half as many scores a block while it has a multiprocessor.
    while (holding < kMostStreaming && 2 * holding * rows <= num_sms &&
           holding * int64_t{kBlockScores} <= scores)
      holding *= 2;
    return {RowForm::kHeld, holding};
  }
  if (rows > num_sms) return {RowForm::kMany, 1};
  // What blocks of a cluster send each other takes as long as some windows.
  constexpr int64_t kLeastWindows = 8;
  int blocks = 1;
  while (blocks < kMostStreaming && 2 * blocks * rows <= num_sms &&
         2 * blocks * kLeastWindows * kBlockScores <= scores)
    blocks *= 2;
  return {RowForm::kFew, blocks};
}

}  // namespace fathom::topk_rows
