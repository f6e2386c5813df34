// What a case of sparse attention is made of; sinks and gates are those of both kernels.
#pragma once

#include "fathom/kernels/attn/attention_oracle.h"
#include "fathom/kernels/attn/sparse_mla/sparse_mla.h"
#include "fathom/kernels/conformance/call_tokens.h"
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

/// How rows are stored.
struct RowForm {
  std::string_view name;
  Format values = Format::kBf16;
  Format scale = Format::kNone;
  int64_t w = 48;  ///< channels of `values`
  int64_t r = 0;   ///< channels of `rope`
  int64_t group = 0;

  bool coded() const { return scale != Format::kNone; }

  double largest() const { return values == Format::kU8 ? 6 : 448; }
};

/// What the entries of lists name.
enum class Listed {
  kAny,     ///< random rows, some of them -1
  kWindow,  ///< the newest tokens of the request, whose ring a page is
  kChosen,  ///< rows of the request's pages, ascending by place and none twice
};

/// Rows of one cache and lists of them.
struct SourceShape {
  RowForm form = {.name = "bf16"};
  int64_t k = 0;  ///< entries of a list; 0 of the second source: there is none
  int64_t pages = 7;
  int64_t page_size = 16;
  int64_t row_gap = 0;     ///< between rows of `values`
  int64_t page_gap = 0;    ///< rows of a page that are not part of it
  int64_t none_every = 4;  ///< each so-many-th entry is -1; 0: none is
  Listed listed = Listed::kAny;
  int64_t rope_gap = 0, scale_gap = 0;
};

struct SparseShape {
  CaseSpec spec;
  int64_t t = 3;
  int64_t n = 4;
  int64_t l = 48;
  Format q = Format::kBf16;
  Format o = Format::kNone;  ///< none: that of q
  SourceShape rows;
  SourceShape extra = {};
  Sink sink = Sink::kNone;
  bool lse = true;
  bool empty_token = true;  ///< token 1 has no rows
  double q_scale = 1.0;     ///< large: one row gets nearly all the weight
  int64_t q_gap = 2, o_gap = 4;
  CallTokens of = {};       ///< where lists are those of a request
  int64_t turned = 0;       ///< channels that are turned back; 0: there is no table
  int64_t positions = 512;  ///< rows of the table

  Format out() const { return o == Format::kNone ? q : o; }

  int64_t d() const { return rows.form.w + rows.form.r; }
};

void add_sparse_decode_case(CaseList& list, const SparseShape& s);

/// What sparse_mla_prefill_cases.cc adds.
void add_sparse_mla_prefill_cases(CaseList& list);

}  // namespace fathom
