// What the contracts of all matrix products share: their workspace, cost and the check of a weight.
#pragma once

#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/tensor/quant_view.h"
#include "fathom/trace/cost.h"

namespace fathom {

/// 2 FLOPs for each of rows * n * k products.
inline Cost product_cost(int64_t rows, int64_t n, int64_t k) {
  return {.flops =
              2.0 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(k)};
}

/// Bytes of scratch for products of at most `rows` rows of k columns at once, every variant.
int64_t product_workspace(int64_t rows, int64_t k, int num_threads);

/// Whether global scales must be there for a format that has one: they may be left out where the
/// call brings a factor of its own.
enum class GlobalScale { kNeeded, kOptional };

/// What the shape language cannot say about a weight [N, K] or [E, N, K]: that its layout exists
/// for its format, that it is packed, and that scales and global scale are there with their formats
/// and counts (tensor/quant_view.h, formats/layout/tile_layout.h). Errors: InvalidArgument
/// naming what was found and what is expected.
Status check_weight(const QuantView& w, GlobalScale global = GlobalScale::kNeeded);

/// Experts that have slots, expected where tokens choose top_k different experts each:
/// E * (1 - (1 - top_k/E)^(slots/top_k)).
double expected_experts(int64_t experts, int64_t slots, int64_t top_k);

/// bytes() of a grouped product: x and y once, `offsets` once, and the weights of the experts that
/// have rows. Which experts those are is known to the device alone: the count is the expected one.
void grouped_product_bytes(
    const View& x, const View& w, const View& offsets, const View& y, int64_t top_k, Cost& cost);

}  // namespace fathom
