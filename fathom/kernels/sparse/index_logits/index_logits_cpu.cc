#include <cmath>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sparse/index_logits/index_logits.h"
#include "fathom/kernels/sparse/index_logits/index_logits_call.h"
#include "fathom/kernels/sparse/request_offsets.h"

namespace fathom {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

// ---- the loop of the equation ----

/// The values of a row; of e4m3 without the scale.
void decode_row(Format format, const IndexRowIn& row, int64_t width, float* out) {
  if (format == Format::kU8) {
    mxfp4_dequantize(static_cast<const uint8_t*>(row.values), static_cast<const Ue8m0*>(row.scales),
                     1, width, out);
    return;
  }
  with_cache_type(format, [&]<class A>(A) {
    for (int64_t d = 0; d < width; ++d)
      out[d] = to_float(static_cast<const A*>(row.values)[d]);
  });
}

float dot(const float* a, const float* b, int64_t width) {
  float sum = 0.0f;
  for (int64_t d = 0; d < width; ++d)
    sum += a[d] * b[d];
  return sum;
}

/// Token t, which belongs to request b. queries: its heads in float32.
void logits_of_token(const IndexLogitsCall& call, int64_t b, int64_t t, const float* queries) {
  const int64_t D = call.width;
  float key[kMaxIndexWidth];
  float* out = call.logits.row<float>(t);
  std::fill_n(out, call.columns, kHidden);
  for (int64_t j = first_seen(call, t); j < end_seen(call, t); ++j) {
    const IndexRowIn row = key_at(call, b, t, j);
    decode_row(call.keys.format, row, D, key);
    float sum = 0.0f;
    for (int64_t h = 0; h < call.heads; ++h) {
      const float score = dot(queries + h * D, key, D);
      sum += call.w.row<const float>(t)[h] * (score <= 0.0f ? 0.0f : score);  // NaN stays
    }
    out[j] = sum * key_scale(call, row);
  }
}

int64_t request_of(const IndexLogitsCall& call, int64_t t) {
  return call.q_offsets == nullptr ? 0 : request_at(call.q_offsets, call.num_requests, t);
}

int64_t query_floats(const IndexLogitsCall& call) {
  return align_up<int64_t>(call.heads * call.width, 16);
}

void index_logits_portable(Exec& ex, const IndexLogitsCall& call) {
  auto* workspace = static_cast<float*>(ex.workspace);
  const int64_t D = call.width;
  const int64_t row_bytes = 4 * (call.columns + 1) * (call.heads + 1);
  for_rows_by_thread(ex, call.num_tokens, row_bytes, [&](int thread, int64_t begin, int64_t end) {
    float* queries = workspace + thread * query_floats(call);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < call.heads; ++h)
        decode_row(call.q.format, query_at(call, t, h), D, queries + h * D);
      logits_of_token(call, request_of(call, t), t, queries);
    }
  });
}

template <void (*Run)(Exec&, const IndexLogitsCall&), class Args>
Status index_logits(Exec& ex, const Args& a) {
  Run(ex, call_of(a));
  return {};
}

/// Keys are packed 64 channels at a time.
template <class Args>
bool accepts_packed(const Args& a) {
  return index_width(a.q.format, a.q.dim(2)) % 64 == 0;
}

/// A bf16 holds the values of every format but f32.
template <class Args>
bool accepts_bf16(const Args& a) {
  return accepts_packed(a) && a.q.format != Format::kF32 && a.keys.format != Format::kF32;
}

int64_t workspace_of(const IndexLogitsCall& call, int num_threads) {
  return num_threads *
         std::max(4 * query_floats(call), avx512::index_logits_bytes(call.heads, call.width));
}

// ---- what check() asks ----

/// `scales` is what rows of that format need: `row_scale` is that of e4m3.
Status check_row_scales(std::string_view name,
                        const View& values,
                        std::string_view scales_name,
                        const View& scales,
                        Format row_scale) {
  const bool groups = values.format == Format::kU8;
  const Format expected = groups                           ? Format::kUe8m0
                          : values.format == Format::kE4m3 ? row_scale
                                                           : Format::kNone;
  if (scales.format != expected) {
    return invalid_argument(str_cat(scales_name, " is ", format_name(scales.format), " but ", name,
                                    " in ", format_name(values.format), " needs ",
                                    format_name(expected)));
  }
  if (!scales.present()) return {};
  const int64_t width = index_width(values.format, values.dim(values.rank - 1));
  if (groups && width % kIndexScaleGroup != 0) {
    return invalid_argument(str_cat(
        name, " has ", width, " channels of e2m1, expected a multiple of ", kIndexScaleGroup));
  }
  const int64_t count = groups ? width / kIndexScaleGroup : 1;
  if (scales.dim(scales.rank - 1) == count) return {};
  return invalid_argument(str_cat(scales_name, " has ", scales.dim(scales.rank - 1),
                                  " scales a row, expected ", count));
}

template <class Args>
Status check_rows(const Args& a) {
  const int64_t q_width = index_width(a.q.format, a.q.dim(2));
  const int64_t k_width = index_width(a.keys.format, a.keys.dim(a.keys.rank - 1));
  if (q_width != k_width) {
    return invalid_argument(
        str_cat("q has rows of ", q_width, " channels but keys have ", k_width));
  }
  if (q_width > kMaxIndexWidth) {
    return invalid_argument(
        str_cat("q has ", q_width, " channels, expected at most ", kMaxIndexWidth));
  }
  FATHOM_TRY(check_row_scales("q", a.q, "q_scales", a.q_scales, Format::kNone));
  return check_row_scales("keys", a.keys, "key_scales", a.key_scales, Format::kF32);
}

/// Visible keys of all tokens.
double pairs_of(const IndexLogitsCall& call, bool readable, int64_t most) {
  if (!readable) return static_cast<double>(call.num_tokens * most);
  double pairs = 0;
  for (int64_t t = 0; t < call.num_tokens; ++t)
    pairs += static_cast<double>(end_seen(call, t) - first_seen(call, t));
  return pairs;
}

Cost cost_of_call(const IndexLogitsCall& call, bool readable, int64_t most) {
  const auto per_key = static_cast<double>(2 * call.heads * call.width);
  return {.flops = pairs_of(call, readable, most) * per_key};
}

/// Everything but the keys, and of those `keys`.
template <class Args>
void count_bytes(const Args& a, int64_t keys, Cost& cost) {
  const auto row_bytes = [](const View& v) {
    return v.present() ? v.dim(v.rank - 1) * element_bytes(v.format) : int64_t{0};
  };
  cost.bytes_read = operand_bytes(a.q) + operand_bytes(a.w) +
                    keys * (row_bytes(a.keys) + row_bytes(a.key_scales));
  if (a.q_scales.present()) cost.bytes_read += operand_bytes(a.q_scales);
  cost.bytes_written = operand_bytes(a.logits);
}

int64_t most_keys(const IndexLogitsPaged::Args& a) {
  return std::min(a.logits.dim(1), a.block_table.dim(1) * a.keys.dim(1));
}

bool has_data(const IndexLogitsPaged::Args& a) {
  return a.lengths.readable() && a.q_offsets.readable() &&
         a.tree_masks.present() == a.tree_masks.readable();
}

/// Behind the last key that token t sees.
int64_t end_place(const IndexLogitsCall& call, int64_t t) {
  const int64_t end = end_seen(call, t);
  if (call.tree_masks == nullptr || end == 0) return end;
  return place_of_seen(tree_token(call, t), end - 1) + 1;
}

bool has_data(const IndexLogitsRagged::Args& a) {
  return a.starts.readable() && a.ends.readable();
}

}  // namespace

Cost IndexLogitsPaged::cost(const Args& a) {
  return cost_of_call(call_of(a), has_data(a), most_keys(a));
}

Cost IndexLogitsRagged::cost(const Args& a) {
  return cost_of_call(call_of(a), has_data(a), a.logits.dim(1));
}

void IndexLogitsPaged::bytes(const Args& a, Cost& cost) {
  const IndexLogitsCall call = call_of(a);
  int64_t keys = 0;
  for (int64_t b = 0; b < call.num_requests; ++b) {
    int64_t seen = has_data(a) ? 0 : most_keys(a);
    for (int64_t t = 0; has_data(a) && t < call.num_tokens; ++t) {
      if (t >= first_token(call, b) && t < first_token(call, b + 1))
        seen = std::max(seen, end_place(call, t));
    }
    keys += seen;
  }
  count_bytes(a, keys, cost);
  const int64_t pages = ceil_div<int64_t>(keys, a.keys.dim(1));
  cost.bytes_read += 4 * (pages + a.q_offsets.dim(0) + a.lengths.dim(0));
  if (a.tree_masks.present()) cost.bytes_read += operand_bytes(a.tree_masks);
}

void IndexLogitsRagged::bytes(const Args& a, Cost& cost) {
  int64_t first = a.keys.dim(0);
  int64_t last = 0;
  for (int64_t t = 0; has_data(a) && t < a.q.dim(0); ++t) {
    const int64_t start = a.starts.as<const int32_t>()[t];
    const int64_t end = a.ends.as<const int32_t>()[t];
    if (end <= start) continue;
    first = std::min(first, start);
    last = std::max(last, end);
  }
  count_bytes(a, has_data(a) ? std::max<int64_t>(last - first, 0) : a.keys.dim(0), cost);
  cost.bytes_read += 4 * (a.starts.dim(0) + a.ends.dim(0));
}

int64_t IndexLogitsPaged::workspace(const Args& a, int num_threads) {
  return workspace_of(call_of(a), num_threads);
}

int64_t IndexLogitsRagged::workspace(const Args& a, int num_threads) {
  return workspace_of(call_of(a), num_threads);
}

Status IndexLogitsPaged::check(const Args& a) {
  FATHOM_TRY(check_rows(a));
  if (!has_data(a)) return {};
  FATHOM_TRY(check_request_offsets(a.q_offsets, a.q.dim(0)));
  const IndexLogitsCall call = call_of(a);
  const int64_t S = a.keys.dim(1);
  int64_t b = 0;
  for (int64_t t = 0; t < call.num_tokens; ++t) {
    while (b < call.num_requests && t >= first_token(call, b + 1))
      ++b;
    const int64_t length = a.lengths.as<const int32_t>()[t];
    const int64_t most = b < call.num_requests ? most_keys(a) : 0;
    if (length < 0 || length > most) {
      return invalid_argument(
          str_cat("lengths[", t, "] is ", length, ", expected 0 to ", most,
                  b < call.num_requests ? "" : ", since the token belongs to no request"));
    }
    if (call.tree_masks != nullptr) {
      const int64_t rows = a.block_table.dim(1) * S;
      const auto bits = count_bits(static_cast<uint64_t>(call.tree_masks[t]));
      if (bits > length || end_place(call, t) > rows) {
        return invalid_argument(str_cat("tree_masks[", t, "] names ", bits, " rows of the ", length,
                                        " keys that the token sees, expected at most as many, ",
                                        "and none behind ", rows, " keys"));
      }
    }
    if (length == 0 || !a.block_table.readable()) continue;
    // Tokens of a request see the same first pages: those of the longest are enough.
    const int64_t end = end_place(call, t);
    if (t > first_token(call, b) && end <= end_place(call, t - 1)) continue;
    FATHOM_TRY(
        check_pages(a.block_table.row<const int32_t>(b), 0, ceil_div(end, S), a.keys.dim(0)));
  }
  return {};
}

Status IndexLogitsRagged::check(const Args& a) {
  FATHOM_TRY(check_rows(a));
  if (!has_data(a)) return {};
  const int64_t L = a.keys.dim(0);
  for (int64_t t = 0; t < a.q.dim(0); ++t) {
    const int64_t start = a.starts.as<const int32_t>()[t];
    const int64_t end = a.ends.as<const int32_t>()[t];
    if (end <= start || (start >= 0 && end <= L)) continue;
    return invalid_argument(
        str_cat("token ", t, " sees keys ", start, " to ", end, " of which 0 to ", L, " exist"));
  }
  return {};
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<IndexLogitsPaged> index_logits_paged_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, index_logits<avx512::index_logits_bf16>,
     MathUnit::kBf16, accepts_bf16},
    {"avx512", Isa::kAvx512, "", kTraits, index_logits<avx512::index_logits_f32>, MathUnit::kF32,
     accepts_packed},
    {"portable", Isa::kPortable, "", kTraits, index_logits<index_logits_portable>},
};

constinit const VariantTable<IndexLogitsRagged> index_logits_ragged_cpu{
    {"avx512_bf16", Isa::kAvx512, "", kTraits, index_logits<avx512::index_logits_bf16>,
     MathUnit::kBf16, accepts_bf16},
    {"avx512", Isa::kAvx512, "", kTraits, index_logits<avx512::index_logits_f32>, MathUnit::kF32,
     accepts_packed},
    {"portable", Isa::kPortable, "", kTraits, index_logits<index_logits_portable>},
};

}  // namespace fathom
