#include <algorithm>
#include <cmath>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_rows.h"

namespace fathom {
namespace {

constexpr int64_t kMaxProducts = kMaxStreams * (kMaxStreams + 2);

/// Tokens whose sums are in memory at once: their streams stay in the caches until they are mixed.
constexpr int64_t kBlock = 64;

/// Tokens of one unit of work: fn passes through the first-level cache once for them.
constexpr int64_t kGroup = 16;

// ---- loops over channels, portable ----

/// Sixteen partial sums by i mod 16, folded in halves.
template <class Term>
float sum_of(int64_t count, Term term) {
  constexpr int kPartials = 16;
  float partial[kPartials] = {};
  for (int64_t i = 0; i < count; ++i)
    partial[i % kPartials] += term(i);
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p)
      partial[p] += partial[p + half];
  }
  return partial[0];
}

struct Portable {
  template <class A>
  static void piece(const MhcPiece<A>& p) {
    for (int64_t t = 0; t < p.num_tokens; ++t) {
      const A* x = p.x + t * p.x_stride;
      float* sums = p.sums + t * p.sums_stride;
      for (int64_t q = 0; q < p.num_rows; ++q) {
        const float* f = p.fn + q * p.fn_stride;
        sums[q] = sum_of(p.width, [&](int64_t i) { return f[i] * to_float(x[i]); });
      }
      sums[p.num_rows] =
          sum_of(p.width, [&](int64_t i) { return to_float(x[i]) * to_float(x[i]); });
    }
  }

  template <class A>
  static void mix(const MhcMix<A>& m) {
    for (int64_t d = 0; d < m.width; ++d) {
      float sum = m.weights[0] * to_float(m.streams[d]);
      for (int64_t j = 1; j < m.num_streams; ++j)
        sum += m.weights[j] * to_float(m.streams[j * m.stride + d]);
      m.y[d] = from_float<A>(sum);
    }
  }
};

struct Avx512 {
  template <class A>
  static void piece(const MhcPiece<A>& p) {
    avx512::mhc_piece(p);
  }

  template <class A>
  static void mix(const MhcMix<A>& m) {
    avx512::mhc_mix(m);
  }
};

// ---- a token's numbers ----

float sigmoid(float z) {
  return 1.0f / (1.0f + std::exp(-z));
}

void softmax_rows(float* c, int64_t n, float hc_eps) {
  for (int64_t j = 0; j < n; ++j) {
    float* row = c + j * n;
    const float max = *std::max_element(row, row + n);
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      row[k] = std::exp(row[k] - max);
      sum += row[k];
    }
    for (int64_t k = 0; k < n; ++k)
      row[k] = row[k] / sum + hc_eps;
  }
}

void divide_rows(float* c, int64_t n, float hc_eps) {
  for (int64_t j = 0; j < n; ++j) {
    float sum = 0;
    for (int64_t k = 0; k < n; ++k)
      sum += c[j * n + k];
    for (int64_t k = 0; k < n; ++k)
      c[j * n + k] /= sum + hc_eps;
  }
}

void divide_columns(float* c, int64_t n, float hc_eps) {
  float sum[kMaxStreams] = {};
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < n; ++k)
      sum[k] += c[j * n + k];
  }
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t k = 0; k < n; ++k)
      c[j * n + k] /= sum[k] + hc_eps;
  }
}

void sinkhorn(float* c, int64_t n, int iterations, float hc_eps) {
  softmax_rows(c, n, hc_eps);
  divide_columns(c, n, hc_eps);
  for (int i = 1; i < iterations; ++i) {
    divide_rows(c, n, hc_eps);
    divide_columns(c, n, hc_eps);
  }
}

// ---- products with fn ----

struct Pieces {
  int64_t per_stream = 0;
  int64_t count = 0;
  int64_t sums = 0;  ///< floats of one piece: products, then the sum of squares

  Pieces(const View& streams, const View& fn)
      : per_stream((streams.dim(2) + kMhcPiece - 1) / kMhcPiece),
        count(per_stream * streams.dim(1)),
        sums(fn.dim(0) + 1) {}
};

int64_t workspace_of(const View& streams, const View& fn) {
  const Pieces pieces(streams, fn);
  return std::min(streams.dim(0), kBlock) * pieces.count * pieces.sums *
         static_cast<int64_t>(sizeof(float));
}

/// Sums of every piece of tokens [begin, begin + count) into the workspace [token][piece][sum].
/// Threads share out pieces and groups of tokens, so that one token keeps all of them busy.
template <class Loops, class A>
void sum_pieces(Exec& ex, const View& streams, const View& fn, int64_t begin, int64_t count) {
  const Pieces pieces(streams, fn);
  auto* sums = static_cast<float*>(ex.workspace);
  const int64_t groups = (count + kGroup - 1) / kGroup;
  const int64_t bytes = (fn.dim(0) * 4 + std::min(count, kGroup) * 2) * kMhcPiece;
  for_rows(ex, pieces.count * groups, bytes, [&](int64_t first, int64_t last) {
    for (int64_t unit = first; unit < last; ++unit) {
      const int64_t piece = unit / groups;
      const int64_t t = unit % groups * kGroup;
      const int64_t j = piece / pieces.per_stream;
      const int64_t d = piece % pieces.per_stream * kMhcPiece;
      Loops::piece(MhcPiece<A>{
          .x = streams.row<const A>(begin + t) + j * streams.stride(1) + d,
          .x_stride = streams.stride(0),
          .fn = fn.as<const float>() + j * streams.dim(2) + d,
          .fn_stride = fn.stride(0),
          .sums = sums + (t * pieces.count + piece) * pieces.sums,
          .sums_stride = pieces.count * pieces.sums,
          .num_tokens = std::min(kGroup, count - t),
          .num_rows = fn.dim(0),
          .width = std::min(kMhcPiece, streams.dim(2) - d),
      });
    }
  });
}

/// m[q] of token t of the block: the pieces in order, then the norm.
void products_of(
    const float* sums, const Pieces& pieces, int64_t t, float width, float eps, float* m) {
  float total[kMaxProducts + 1] = {};
  for (int64_t piece = 0; piece < pieces.count; ++piece) {
    const float* part = sums + (t * pieces.count + piece) * pieces.sums;
    for (int64_t q = 0; q < pieces.sums; ++q)
      total[q] += part[q];
  }
  const float rho = 1.0f / std::sqrt(total[pieces.sums - 1] / width + eps);
  for (int64_t q = 0; q + 1 < pieces.sums; ++q)
    m[q] = rho * total[q];
}

/// For every token: its m, then finish(t, m, pre), which fills the weights of its streams, then
/// their weighted sum into y.
template <class Loops, class A, class Finish>
void reduce_streams(
    Exec& ex, const View& streams, const View& fn, float eps, const View& y, Finish finish) {
  const Pieces pieces(streams, fn);
  const int64_t n = streams.dim(1);
  const int64_t width = streams.dim(2);
  const auto* sums = static_cast<const float*>(ex.workspace);
  for (int64_t begin = 0; begin < streams.dim(0); begin += kBlock) {
    const int64_t count = std::min(kBlock, streams.dim(0) - begin);
    sum_pieces<Loops, A>(ex, streams, fn, begin, count);
    for_rows(ex, count, 2 * n * width, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        float m[kMaxProducts];
        float pre[kMaxStreams];
        products_of(sums, pieces, t, static_cast<float>(n * width), eps, m);
        finish(begin + t, m, pre);
        Loops::mix(MhcMix<A>{.streams = streams.row<const A>(begin + t),
                             .stride = streams.stride(1),
                             .weights = pre,
                             .y = y.row<A>(begin + t),
                             .num_streams = n,
                             .width = width});
      }
    });
  }
}

template <class Loops>
Status mhc_pre(Exec& ex, const MhcPre::Args& a) {
  const int64_t n = a.streams.dim(1);
  const float* base = a.base.as<const float>();
  const float* scale = a.scale.as<const float>();
  const auto finish = [&](int64_t t, const float* m, float* pre) {
    float* post = a.post.row<float>(t);
    for (int64_t j = 0; j < n; ++j) {
      pre[j] = sigmoid(m[j] * scale[0] + base[j]) + a.hc_eps;
      post[j] = 2.0f * sigmoid(m[n + j] * scale[1] + base[n + j]);
    }
    float c[kMaxStreams * kMaxStreams];
    for (int64_t i = 0; i < n * n; ++i)
      c[i] = m[2 * n + i] * scale[2] + base[2 * n + i];
    sinkhorn(c, n, a.iterations, a.hc_eps);
    for (int64_t j = 0; j < n; ++j)
      std::copy_n(c + j * n, n, a.comb.row<float>(t) + j * a.comb.stride(1));
  };
  with_activation_type(a.streams.format, [&]<class A>(A) {
    reduce_streams<Loops, A>(ex, a.streams, a.fn, a.eps, a.x, finish);
  });
  return {};
}

template <class Loops>
Status mhc_head(Exec& ex, const MhcHead::Args& a) {
  const float* base = a.base.as<const float>();
  const float scale = *a.scale.as<const float>();
  const auto finish = [&](int64_t, const float* m, float* pre) {
    for (int64_t j = 0; j < a.streams.dim(1); ++j)
      pre[j] = sigmoid(m[j] * scale + base[j]) + a.hc_eps;
  };
  with_activation_type(a.streams.format, [&]<class A>(A) {
    reduce_streams<Loops, A>(ex, a.streams, a.fn, a.eps, a.h, finish);
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status MhcPre::check(const Args& a) {
  if (a.iterations < 1)
    return invalid_argument(str_cat("iterations is ", a.iterations, ", expected 1 or more"));
  return check_same_format("streams", a.streams, "x", a.x);
}

int64_t MhcPre::workspace(const Args& a, int) {
  return workspace_of(a.streams, a.fn);
}

Status MhcHead::check(const Args& a) {
  return check_same_format("streams", a.streams, "h", a.h);
}

int64_t MhcHead::workspace(const Args& a, int) {
  return workspace_of(a.streams, a.fn);
}

constinit const VariantTable<MhcPre> mhc_pre_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, mhc_pre<Avx512>},
    {"portable", Isa::kPortable, "", kTraits, mhc_pre<Portable>},
};

constinit const VariantTable<MhcHead> mhc_head_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, mhc_head<Avx512>},
    {"portable", Isa::kPortable, "", kTraits, mhc_head<Portable>},
};

}  // namespace fathom
