// What the cases of both sparse attention kernels share: sinks and gates.
#pragma once

#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"
#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {

enum class Sink {
  kNone,
  kNormal,
  kInfinite,  ///< of three heads one has -inf, one +inf
};

/// Absent for kNone.
Tensor make_sparse_sink(CaseData& c, Sink kind, int64_t n);

/// The sink in the output, not in the log-sum-exp.
void apply_sparse_sink(oracle::AttentionRow& row, const Tensor& sink, int64_t head);

/// With a float32 query and output nothing is rounded but sums.
Gate sparse_gate(Format q, Format o);

/// What sparse_mla_prefill_cases.cc adds.
void add_sparse_mla_prefill_cases(CaseList& list);

}  // namespace fathom
