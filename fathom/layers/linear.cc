#include "fathom/layers/linear.h"

#include "fathom/base/checked_math.h"
#include "fathom/formats/tile_layout.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/skinny_gemm/skinny_gemm.h"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {
namespace {

template <class K>
constexpr LinearRow row(Format format, LinearUse use) {
  return {.format = format,
          .use = use,
          .kernel = K::kInfo.name.data(),
          .run = [](Exec& ex, Op op, const View& x, const QuantView& w,
                    const View& y) { return launch<K>(ex, op, {.x = x, .w = w, .y = y}); },
          .takes = [](Exec& ex, Op op, const View& x, const QuantView& w,
                      const View& y) { return accepts<K>(ex, op, {.x = x, .w = w, .y = y}); },
          .why_not = [](Exec& ex, Op op, const View& x, const QuantView& w,
                        const View& y) { return why_not<K>(ex, op, {.x = x, .w = w, .y = y}); }};
}

constexpr LinearRow kLinearRows[] = {
    row<LatentDownGemm>(Format::kBf16, LinearUse::kLatentDown),
    row<RouterGemm>(Format::kBf16, LinearUse::kRouter),
    row<Bf16Gemm>(Format::kBf16, LinearUse::kAny),
    row<Bf16Gemm>(Format::kF32, LinearUse::kAny),
    row<Fp8BlockGemm>(Format::kFp8Block, LinearUse::kAny),
    row<Fp8BlockGemm>(Format::kFp8BlockUe8m0, LinearUse::kAny),
    row<Nvfp4Gemm>(Format::kNvfp4, LinearUse::kAny),
};

bool serves(const LinearRow& r, Format format, LinearUse use) {
  return r.format == format && (r.use == LinearUse::kAny || r.use == use);
}

Status no_row(Op op, const char* what, const LinearWeight& w, const std::string& reason) {
  return unsupported(str_cat(op.name, ": no ", what, " takes weights ", describe(w.w.values),
                             reason.empty() ? "" : ": ", reason));
}

}  // namespace

std::span<const LinearRow> linear_rows() {
  return kLinearRows;
}

Status linear(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y, LinearUse use) {
  int16_t index = 0;
  for (const LinearRow& r : kLinearRows) {
    if (serves(r, w.w.format(), use) && r.takes(ex, op, x, w.w, y)) {
      ex.selection_row = index;
      return r.run(ex, op, x, w.w, y);
    }
    ++index;
  }
  std::string reason;
  for (const LinearRow& r : kLinearRows) {
    if (serves(r, w.w.format(), use)) reason = r.why_not(ex, op, x, w.w, y);
  }
  return no_row(op, "linear kernel", w, reason);
}

Status linear_rows_of(Exec& ex,
                      Op op,
                      std::span<const Op> part_ops,
                      const View& x,
                      const RowsWeight& w,
                      const View& y,
                      LinearUse use) {
  if (w.num_parts == 1) return linear(ex, op, x, w.parts[0], y, use);
  int64_t column = 0;
  for (int i = 0; i < w.num_parts; ++i) {
    const int64_t rows = w.parts[i].w.rows();
    FATHOM_TRY(linear(ex, part_ops[static_cast<size_t>(i)], x, w.parts[i],
                      slice_cols(y, column, rows), use));
    column += rows;
  }
  return {};
}

LinearWeight shape_only_weight(Format format, int64_t n, int64_t k) {
  LinearWeight out;
  out.w.values = make_view(nullptr, {n, k}, format);
  if (!has_rows16(format)) return out;
  out.w.layout = WeightLayout::kRows16;
  const int64_t groups = ceil_div(n, kTileRows);
  const int64_t scales = rows16_group_scales(format, k);
  if (scales > 0) out.w.scales = make_view(nullptr, {groups, scales}, Format::kF32);
  if (format == Format::kNvfp4) out.w.global = make_view(nullptr, {groups}, Format::kF32);
  return out;
}

std::string explain_linear(Exec& ex,
                           Op op,
                           int64_t num_tokens,
                           const LinearWeight& w,
                           Format activations,
                           Format result,
                           LinearUse use) {
  const View x = make_view(nullptr, {num_tokens, w.w.cols()}, activations);
  const View y = make_view(nullptr, {num_tokens, w.w.rows()}, result);
  std::string out;
  bool chosen = false;
  int index = 0;
  for (const LinearRow& r : kLinearRows) {
    std::string verdict;
    if (r.format != w.w.format()) {
      verdict = str_cat("weights are ", format_name(w.w.format()));
    } else if (!serves(r, w.w.format(), use)) {
      verdict = "for another place in the model";
    } else if (chosen) {
      verdict = "an earlier row fits";
    } else if (verdict = r.why_not(ex, op, x, w.w, y); verdict.empty()) {
      verdict = "chosen";
      chosen = true;
    }
    str_append(out, str_cat("row ", index++, "  ", format_name(r.format), "  ", r.kernel, ": ",
                            verdict, "\n"));
  }
  return out;
}

Status group_linear(Exec& ex,
                    Op op,
                    const View& x,
                    const LinearWeight& w,
                    const View& offsets,
                    const View& y,
                    int64_t top_k) {
  const Format format = w.w.format();
  if (format == Format::kNvfp4) {
    return launch<Nvfp4GroupGemm>(ex, op,
                                  {.x = x, .w = w.w, .offsets = offsets, .y = y, .top_k = top_k});
  }
  if (format == Format::kFp8Block || format == Format::kFp8BlockUe8m0) {
    return launch<Fp8GroupGemm>(ex, op,
                                {.x = x, .w = w.w, .offsets = offsets, .y = y, .top_k = top_k});
  }
  if (format == Format::kBf16 || format == Format::kF32) {
    return launch<Bf16GroupGemm>(ex, op,
                                 {.x = x, .w = w.w, .offsets = offsets, .y = y, .top_k = top_k});
  }
  return no_row(op, "grouped kernel", w, "");
}

Status head_linear(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y) {
  return launch<Bf16Bmm>(ex, op, {.x = x, .w = w.w, .y = y});
}

}  // namespace fathom
