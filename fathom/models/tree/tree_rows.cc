#include "fathom/models/tree/tree_rows.h"

#include <algorithm>
#include <numeric>

#include "fathom/base/check.h"

namespace fathom {

// So that no step of an engine takes memory.
TreeRows::TreeRows() {
  parents_.reserve(kMostTreeRows + 1);
  masks_.reserve(kMostTreeRows + 1);
}

int64_t TreeRows::num_roots(std::span<const int32_t> parents) {
  return std::ranges::count(parents, -1) == 1 ? 1 : 0;
}

void TreeRows::set(int64_t before, std::span<const int32_t> parents) {
  if (parents.data() != parents_.data()) parents_.assign(parents.begin(), parents.end());
  const int64_t roots = num_roots(parents_);
  FATHOM_CHECK(std::ssize(parents_) - roots <= kMostTreeRows, "a mask has a bit for each row");
  before_ = before;
  begin_ = before + roots;
  masks_.clear();
  for (int64_t row = 0; row < std::ssize(parents_); ++row) {
    const int32_t parent = parents_[static_cast<size_t>(row)];
    uint64_t mask = parent < 0 ? 0 : masks_[static_cast<size_t>(parent)];
    if (row >= roots) mask |= uint64_t{1} << (row - roots);
    masks_.push_back(mask);
  }
}

void TreeRows::set_chain(int64_t before, int64_t count) {
  parents_.resize(static_cast<size_t>(count));
  std::iota(parents_.begin(), parents_.end(), -1);
  set(before, parents_);
}

void TreeRows::pool(int64_t tokens_per_row, GroupTree& out) const {
  out.begin = begin_ / tokens_per_row;
  out.places.clear();
  out.masks.clear();
  int64_t rows = 0;
  for (int64_t row = 0; row < size(); ++row) {
    const int32_t parent = parents_[static_cast<size_t>(row)];
    uint64_t mask = parent < 0 ? 0 : out.masks[static_cast<size_t>(parent)];
    int64_t place = -1;
    if ((position(row) + 1) % tokens_per_row == 0) {
      const bool is_root = this->place(row) < begin_;
      place = is_root ? out.begin - 1 : out.begin + rows;
      if (!is_root) mask |= uint64_t{1} << rows++;
    }
    out.places.push_back(place);
    out.masks.push_back(mask);
  }
}

}  // namespace fathom
