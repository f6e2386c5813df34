// The AVX-512 loops of this group: rows [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/moe/permute/permute.h"

namespace fathom::avx512 {

/// Columns [col_begin, col_end) of those rows.
void unpermute_rows(const UnpermuteWeightedSum::Args& a,
                    int64_t begin,
                    int64_t end,
                    int64_t col_begin,
                    int64_t col_end);
void topk_sum_rows(const TopkSum::Args& a, int64_t begin, int64_t end);

}  // namespace fathom::avx512
