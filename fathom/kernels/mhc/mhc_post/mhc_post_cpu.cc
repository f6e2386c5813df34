#include <algorithm>
#include <cstring>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post_rows.h"

namespace fathom {
namespace {

/// Channels of a token that one thread takes: a token alone keeps several busy.
constexpr int64_t kPiece = 1024;

/// Calls f(t, begin, count) for pieces of the channels of every token.
template <class F>
void for_pieces(Exec& ex, int64_t tokens, int64_t width, int64_t bytes_per_channel, F f) {
  const int64_t per_token = (width + kPiece - 1) / kPiece;
  const int64_t bytes = bytes_per_channel * std::min(width, kPiece);
  for_rows(ex, tokens * per_token, bytes, [&](int64_t first, int64_t last) {
    for (int64_t unit = first; unit < last; ++unit) {
      const int64_t begin = unit % per_token * kPiece;
      f(unit / per_token, begin, std::min(kPiece, width - begin));
    }
  });
}

Status mhc_expand(Exec& ex, const MhcExpand::Args& a) {
  const int64_t n = a.streams.dim(1);
  with_activation_type(a.x.format, [&]<class A>(A) {
    constexpr auto kSize = static_cast<int64_t>(sizeof(A));
    for_pieces(ex, a.x.dim(0), a.x.dim(1), (n + 1) * kSize,
               [&](int64_t t, int64_t d, int64_t count) {
                 for (int64_t j = 0; j < n; ++j) {
                   std::memcpy(a.streams.row<A>(t) + j * a.streams.stride(1) + d,
                               a.x.row<const A>(t) + d, static_cast<size_t>(count * kSize));
                 }
               });
  });
  return {};
}

struct Portable {
  template <class A>
  static void row(const MhcPostRow<A>& r) {
    for (int64_t d = 0; d < r.width; ++d) {
      float x[kMaxStreams];
      for (int64_t j = 0; j < r.num_streams; ++j)
        x[j] = to_float(r.streams[j * r.stream_stride + d]);
      const float y = to_float(r.y[d]);
      for (int64_t k = 0; k < r.num_streams; ++k) {
        float sum = r.post[k] * y;
        for (int64_t j = 0; j < r.num_streams; ++j)
          sum += r.comb[j * r.comb_stride + k] * x[j];
        r.out[k * r.out_stride + d] = from_float<A>(sum);
      }
    }
  }
};

struct Avx512 {
  template <class A>
  static void row(const MhcPostRow<A>& r) {
    avx512::mhc_post_row(r);
  }
};

template <class Loops>
Status mhc_post(Exec& ex, const MhcPost::Args& a) {
  const int64_t n = a.streams.dim(1);
  with_activation_type(a.y.format, [&]<class A>(A) {
    constexpr auto kSize = static_cast<int64_t>(sizeof(A));
    const auto piece = [&](int64_t t, int64_t d, int64_t count) {
      Loops::row(MhcPostRow<A>{.y = a.y.row<const A>(t) + d,
                               .streams = a.streams.row<const A>(t) + d,
                               .stream_stride = a.streams.stride(1),
                               .out = a.out.row<A>(t) + d,
                               .out_stride = a.out.stride(1),
                               .post = a.post.row<const float>(t),
                               .comb = a.comb.row<const float>(t),
                               .comb_stride = a.comb.stride(1),
                               .num_streams = n,
                               .width = count});
    };
    for_pieces(ex, a.y.dim(0), a.y.dim(1), (2 * n + 1) * kSize, piece);
  });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Status MhcExpand::check(const Args& a) {
  return check_same_format("x", a.x, "streams", a.streams);
}

Status MhcPost::check(const Args& a) {
  FATHOM_TRY(check_same_format("y", a.y, "streams", a.streams));
  return check_same_format("streams", a.streams, "out", a.out);
}

constinit const VariantTable<MhcExpand> mhc_expand_cpu{
    {"portable", Isa::kPortable, "", kTraits, mhc_expand},
};

constinit const VariantTable<MhcPost> mhc_post_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, mhc_post<Avx512>},
    {"portable", Isa::kPortable, "", kTraits, mhc_post<Portable>},
};

}  // namespace fathom
