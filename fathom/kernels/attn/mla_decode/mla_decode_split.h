// The AVX-512 form of decode: many rows at a time over one split of a request's keys. This part
// divides the work and the workspace; mla_decode_avx512.cc computes. All operands have the query
// axis (mla_decode_plan.h); "row" counts the Q * N query rows of a request, heads innermost.
#pragma once

#include "fathom/kernels/attn/mla_decode/mla_decode.h"

namespace fathom::mla_decode {

/// Bytes of workspace that run_splits takes.
int64_t split_workspace(const MlaDecode::Args& a, int num_threads);

/// Runs the call. q and the cache are bf16 or e4m3, o is bf16.
void run_splits(Exec& ex, const MlaDecode::Args& a);

}  // namespace fathom::mla_decode

namespace fathom::avx512 {

/// Rows that share the packing of a key block. Says nothing about results.
inline constexpr int64_t kMaxDecodeRows = 128;

/// Attention of some rows over some keys, not normalised: `max` and `sum` of the weights and the
/// weighted sum `o` of the values, per row. Rows of o are padded_width floats apart.
struct PartialRows {
  float* o;
  float* max;
  float* sum;
};

/// L rounded up to what a row of PartialRows::o takes.
int64_t padded_width(int64_t L);

/// Bytes of scratch of one thread.
int64_t decode_scratch(const MlaDecode::Args& a);

/// Rows [row, row + count) of request b over keys [begin, end); rows see fewer if they must.
/// count <= kMaxDecodeRows.
void decode_rows(const MlaDecode::Args& a,
                 int64_t b,
                 int64_t row,
                 int64_t count,
                 int64_t begin,
                 int64_t end,
                 void* scratch,
                 const PartialRows& out);

/// Adds the keys of `part`, which follow those of `into`.
void merge_rows(int64_t count, int64_t L, const PartialRows& part, const PartialRows& into);

/// Normalises rows and writes them to o and lse.
void store_rows(
    const MlaDecode::Args& a, int64_t b, int64_t row, int64_t count, const PartialRows& from);

}  // namespace fathom::avx512
