#include "fathom/kernels/attn/tree_keys.h"

#include "fathom/base/str_cat.h"

namespace fathom {

Status check_tree_operands(const View& masks, const View& begins) {
  if (masks.present() == begins.present()) return {};
  return invalid_argument(masks.present() ? "tree_masks are there without tree_begins"
                                          : "tree_begins are there without tree_masks");
}

Status check_trees(const View& masks, const View& begins, const View& kv_lens) {
  FATHOM_TRY(check_tree_operands(masks, begins));
  if (!masks.present() || !masks.readable() || !begins.readable() || !kv_lens.readable()) return {};
  for (int64_t b = 0; b < masks.dim(0); ++b) {
    const int64_t keys = kv_lens.as<const int32_t>()[b];
    const int64_t begin = begins.as<const int32_t>()[b];
    if (begin < 0 || begin > keys || keys - begin > kMostTreeRows) {
      return invalid_argument(str_cat("tree_begins[", b, "] is ", begin, " of ", keys,
                                      " keys, expected one of them with at most ", kMostTreeRows,
                                      " keys from there on"));
    }
    const auto rows = static_cast<int>(keys - begin);
    for (int64_t j = 0; j < masks.dim(1); ++j) {
      const auto mask = static_cast<uint64_t>(masks.row<const int64_t>(b)[j]);
      if (rows == kMostTreeRows || mask >> rows == 0) continue;
      return invalid_argument(str_cat("tree_masks[", b, ",", j, "] names rows of the tree behind ",
                                      "the last one, expected bits below ", rows));
    }
  }
  return {};
}

}  // namespace fathom
