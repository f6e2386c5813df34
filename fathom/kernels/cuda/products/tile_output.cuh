// How the sums of a tile (tile_products.cuh) become rows of y.
#pragma once

#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/products/tile_walk.cuh"

namespace fathom::cuda {

/// Where the outputs of a tile go: sums of row n of w and row `token` of the tile.
struct TileOutput {
  const ProductCall& c;
  ProductTile tile;
  int64_t y_first;  ///< element of y of the tile's first row of x, column 0
  float factor;

  __device__ TileOutput(const ProductCall& call, const ProductTile& t, float codec_factor)
      : c(call),
        tile(t),
        y_first((call.offsets != nullptr ? 0 : t.e * call.y_matrix) + t.first * call.y_row),
        factor(codec_factor * call.factor(t.e)) {}

  __device__ __forceinline__ float value(float sum, int token, int n) const {
    return n < c.N && token < tile.count
               ? c.finished_of(tile.e, sum * factor, tile.first + token, n)
               : 0.0f;
  }

  /// Element of y of the row of a token, column 0.
  __device__ __forceinline__ int64_t row_begin(int token) const {
    return y_first + (c.row_of_y(tile.first + token) - tile.first) * c.y_row;
  }

  __device__ __forceinline__ void store(float sum, int token, int n) const {
    if (n >= c.N || token >= tile.count) return;
    store_any(c.y, c.y_format, row_begin(token) + n, value(sum, token, n));
  }
};

/// Four neighbours of a row of y, of a call without offsets.
struct FourOutputs {
  const TileOutput& out;
  int token;
  int n;

  __device__ __forceinline__ float value(float sum, int i) const {
    const bool exists = n + i < out.c.N && token < out.tile.count;
    return exists ? out.c.finished(sum * out.factor, out.tile.first + token, n + i) : 0.0f;
  }

  __device__ __forceinline__ void store(const float4& sums) const {
    const ProductCall& c = out.c;
    if (token >= out.tile.count) return;
    const int64_t at = out.y_first + token * c.y_row + n;
    const bool whole = c.y_format == Format::kBf16 && n + 4 <= c.N &&
                       (c.y_row | out.y_first) % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(c.y) % 8 == 0;
    if (!whole) {
      const float each[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n + i < c.N) store_any(c.y, c.y_format, at + i, value(each[i], i));
      }
      return;
    }
    const uint2 words = {pair_of_floats(value(sums.x, 0), value(sums.y, 1)),
                         pair_of_floats(value(sums.z, 2), value(sums.w, 3))};
    *reinterpret_cast<uint2*>(static_cast<Bf16*>(c.y) + at) = words;
  }
};

template <class T>
__device__ __forceinline__ uint32_t pair_of(float low, float high);

template <>
__device__ __forceinline__ uint32_t pair_of<Bf16>(float low, float high) {
  return pair_of_floats(low, high);
}

template <>
__device__ __forceinline__ uint32_t pair_of<F16>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return uint32_t{__half_as_ushort(__high2half(pair))} << 16 | __half_as_ushort(__low2half(pair));
}

/// Eight neighbours of a row of y, as far as they exist.
template <class T>
__device__ __forceinline__ void store_eight(T* to, uint4 words, int exist) {
  if (exist >= 8) {
    *reinterpret_cast<uint4*>(to) = words;
    return;
  }
  const uint32_t each[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < exist) to[i].bits = static_cast<uint16_t>(each[i / 2] >> (16 * (i & 1)));
  }
}

/// Eight neighbours of a row of y that need not lie on more than two bytes.
__device__ __forceinline__ void store_eight_apart(Bf16* to, uint4 words) {
  const uint32_t each[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    to[i].bits = static_cast<uint16_t>(each[i / 2] >> (16 * (i & 1)));
}

/// Two neighbours of a row of y, as far as they exist; `whole`: they lie on four bytes.
template <class T>
__device__ __forceinline__ void store_two(T* to, uint32_t word, int exist, bool whole) {
  if (whole && exist >= 2) {
    *reinterpret_cast<uint32_t*>(to) = word;
    return;
  }
  if (exist > 0) to[0].bits = static_cast<uint16_t>(word);
  if (exist > 1) to[1].bits = static_cast<uint16_t>(word >> 16);
}

/// What sums become on their way to y.
enum class Finish {
  kPlain,      ///< times the factor of their matrix
  kScattered,  ///< that, times a weight of their row, in any row of y
  kAny,
};

/// Where the rows of a tile lie in y, and their weights. Of rows that are scattered these are
/// loaded once, before the stores: lane i has those of row i of 32. Each call is for all lanes of a
/// warp.
template <Finish kFinish, int kTokens>
class TileRows {
 public:
  __device__ __forceinline__ explicit TileRows(const TileOutput& out) : out_(out) {
    if constexpr (kFinish == Finish::kScattered) {
      const ProductCall& c = out.c;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const int token = min(32 * i + lane_id(), out.tile.count - 1);
        const int64_t row = int64_t{out.tile.first} + token;
        row_[i] = static_cast<int32_t>(c.row_of_y(row) - out.tile.first);
        weight_[i] = c.row_weights != nullptr ? c.row_weights[row] : 1.0f;
      }
    }
  }

  /// Element of y of row 32 * part + at, column 0. `part` is known when this is compiled.
  __device__ __forceinline__ int64_t begin(int part, int at) const {
    if constexpr (kFinish == Finish::kAny) {
      const int token = 32 * part + at;
      return token < out_.tile.count ? out_.row_begin(token) : 0;
    }
    int row = 32 * part + at;
    if constexpr (kFinish == Finish::kScattered) row = __shfl_sync(0xFFFFFFFFu, row_[part], at);
    return out_.y_first + row * out_.c.y_row;
  }

  /// Output of that row and of column n.
  __device__ __forceinline__ float value(float sum, int part, int at, int n) const {
    if constexpr (kFinish == Finish::kAny) return out_.value(sum, 32 * part + at, n);
    sum *= out_.factor;
    if constexpr (kFinish == Finish::kScattered) sum *= __shfl_sync(0xFFFFFFFFu, weight_[part], at);
    return sum;
  }

 private:
  static constexpr int kParts = (kTokens + 31) / 32;

  const TileOutput& out_;
  int32_t row_[kParts];  // of y, less the tile's first
  float weight_[kParts];
};

/// The same of sixteen rows of a warp: lane i asks for row i.
template <Finish kFinish>
class SixteenRows {
 public:
  __device__ __forceinline__ SixteenRows(const TileOutput& out, int first_token)
      : out_(out), first_(first_token) {
    if constexpr (kFinish != Finish::kScattered) return;
    const ProductCall& c = out.c;
    const int64_t row = int64_t{out.tile.first} + min(first_ + lane_id() % 16, out.tile.count - 1);
    row_ = static_cast<int32_t>(c.row_of_y(row) - out.tile.first);
    weight_ = c.row_weights != nullptr ? c.row_weights[row] : 1.0f;
  }

  __device__ __forceinline__ bool exists(int row) const { return first_ + row < out_.tile.count; }

  /// Element of y of row `row`, column 0.
  __device__ __forceinline__ int64_t begin(int row) const {
    if constexpr (kFinish == Finish::kAny) return exists(row) ? out_.row_begin(first_ + row) : 0;
    int of_y = first_ + row;
    if constexpr (kFinish == Finish::kScattered) of_y = __shfl_sync(0xFFFFFFFFu, row_, row);
    return out_.y_first + of_y * out_.c.y_row;
  }

  /// Output of that row and of column n.
  __device__ __forceinline__ float value(float sum, int row, int n) const {
    if constexpr (kFinish == Finish::kAny) return out_.value(sum, first_ + row, n);
    sum *= out_.factor;
    if constexpr (kFinish == Finish::kScattered) sum *= __shfl_sync(0xFFFFFFFFu, weight_, row);
    return sum;
  }

 private:
  const TileOutput& out_;
  int first_;    // row of the tile
  int32_t row_;  // of y, less the tile's first
  float weight_;
};

/// 64 outputs of each of kRows rows from a panel of shared memory to y. Rows that lie on sixteen
/// bytes go by eight outputs a thread, others by two a lane, so that a warp still writes
/// neighbours.
template <class T, int kRows, class Rows>
__device__ __forceinline__ void store_panel(
    const TileOutput& out, const Rows& rows, int part, int first_n, uint32_t panel) {
  const ProductCall& c = out.c;
  const int lane = lane_id();
  const int warp = warp_id() & 3;
  T* const y = static_cast<T*>(c.y);
  const int64_t strides = c.y_row | c.y_matrix;
  const auto address = reinterpret_cast<uintptr_t>(c.y);
  if (address % 16 == 0 && strides % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const int at = i % 2 * 16 + warp * 4 + lane / 8;
      const int token = i / 2 * 32 + at;
      const int chunk = lane & 7;
      const uint4 words = load_shared_16(panel + panel_offset(token, chunk));
      const int n = first_n + 8 * chunk;
      const int64_t begin = rows.begin(2 * part + i / 2, at);
      if (part * 64 + token < out.tile.count) store_eight(y + begin + n, words, c.N - n);
    }
    return;
  }
  const bool in_pairs = address % 4 == 0 && strides % 2 == 0;
#pragma unroll
  for (int half = 0; half < (kRows + 31) / 32; ++half) {
#pragma unroll 2
    for (int i = 0; i < std::min(8, kRows / 4); ++i) {
      const int at = i * 4 + warp;
      const int token = half * 32 + at;
      const uint32_t word = load_shared_4(panel + panel_offset(token, lane / 4) +
                                          4 * static_cast<uint32_t>(lane & 3));
      const int n = first_n + 2 * lane;
      const int64_t begin = rows.begin(2 * part + half, at);
      if (part * 64 + token < out.tile.count) store_two(y + begin + n, word, c.N - n, in_pairs);
    }
  }
}

/// Two-byte outputs of 64 rows of w: by up to 64 rows of x, through a panel of shared memory that
/// turns them over. `panel` belongs to this warpgroup, whose named barrier is `barrier`.
template <class T, Finish kFinish, int kSums>
__device__ __forceinline__ void store_panels(
    const TileOutput& out, const float (&d)[kSums], int first_n, uint32_t panel, int barrier) {
  constexpr int kTokens = 2 * kSums;
  constexpr int kRows = std::min(64, kTokens);  // of a panel
  const TileRows<kFinish, kTokens> rows(out);
  const int lane = lane_id();
  const int warp = warp_id() & 3;
  const int row = first_n + warp * 16 + (lane >> 2);
#pragma unroll
  for (int part = 0; part < kTokens / kRows; ++part) {
#pragma unroll
    for (int j = 0; j < kRows / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int eight = j + i / 2;
        const int column = eight % 4 * 8 + 2 * (lane & 3);
        const int at = part * 32 + eight * 4 + 2 * (i & 1);
        const int n = row + 8 * (i & 1);
        const int rows32 = 2 * part + eight / 4;
        words[i] = pair_of<T>(rows.value(d[at], rows32, column, n),
                              rows.value(d[at + 1], rows32, column + 1, n));
      }
      // Lane 8 i + r names the place of row r of the turned-over matrix i.
      const int token = (j + (lane >> 4)) * 8 + (lane & 7);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       panel + panel_offset(token, 2 * warp + (lane >> 3 & 1))),
                   "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
    named_sync(barrier, kWarpgroup);
    store_panel<T, kRows>(out, rows, part, first_n, panel);
    named_sync(barrier, kWarpgroup);
  }
}

/// The same of 64 rows of x from row `first_token` on and 2 * kSums rows of w, where x is the first
/// operand: by 64 columns, each warp its sixteen rows, through a part of the panel of its own.
template <class T, Finish kFinish, int kSums>
__device__ __forceinline__ void store_row_panels(
    const TileOutput& out, const float (&d)[kSums], int first_token, int first_n, uint32_t panel) {
  const ProductCall& c = out.c;
  const int lane = lane_id();
  const int first_row = (warp_id() & 3) * 16;  // of the panel
  const SixteenRows<kFinish> rows(out, first_token + first_row);
  T* const y = static_cast<T*>(c.y);
  const int64_t strides = c.y_row | c.y_matrix;
  const auto address = reinterpret_cast<uintptr_t>(c.y);
  const bool in_eights = address % 16 == 0 && strides % 8 == 0;
  const bool in_pairs = address % 4 == 0 && strides % 2 == 0;
#pragma unroll
  for (int part = 0; part < kSums / 32; ++part) {
    const int n = first_n + 64 * part;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int eight = j + i / 2;
        const int at = part * 32 + eight * 4 + 2 * (i & 1);
        const int row = (lane >> 2) + 8 * (i & 1);
        const int column = n + eight * 8 + 2 * (lane & 3);
        words[i] =
            pair_of<T>(rows.value(d[at], row, column), rows.value(d[at + 1], row, column + 1));
      }
      // Lane 8 i + r names the place of row r of matrix i.
      const int row = first_row + (lane >> 3 & 1) * 8 + (lane & 7);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       panel + panel_offset(row, j + (lane >> 4))),
                   "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
    __syncwarp();
    if (in_eights) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 4 * i + lane / 8;
        const int chunk = lane & 7;
        const uint4 words = load_shared_16(panel + panel_offset(first_row + row, chunk));
        const int64_t begin = rows.begin(row);
        if (rows.exists(row)) store_eight(y + begin + n + 8 * chunk, words, c.N - n - 8 * chunk);
      }
    } else {
#pragma unroll 2
      for (int row = 0; row < 16; ++row) {
        const uint32_t word = load_shared_4(panel + panel_offset(first_row + row, lane / 4) +
                                            4 * static_cast<uint32_t>(lane & 3));
        const int64_t begin = rows.begin(row);
        if (rows.exists(row))
          store_two(y + begin + n + 2 * lane, word, c.N - n - 2 * lane, in_pairs);
      }
    }
    __syncwarp();
  }
}

/// Gated outputs of a block of sums of 64 rows of w, gate and up rows in groups (kGatedRows): 32
/// columns of y from first_n on. As store_panels, with half of each row of the panel.
template <int kSums>
__device__ __forceinline__ void store_gated_tile(
    const TileOutput& out, const float (&d)[kSums], int first_n, uint32_t panel, int barrier) {
  constexpr int kTokens = 2 * kSums;
  constexpr int kRows = std::min(64, kTokens);     // of a panel
  constexpr int kAtOnce = std::min(4, kRows / 8);  // matrices of 8 x 8 that are turned over
  constexpr int kRowsAtOnce = kWarpgroup / 4;      // stored, a row by four threads
  static_assert(kAtOnce == 2 || kAtOnce == 4);
  const ProductCall& c = out.c;
  const int lane = lane_id();
  const int warp = warp_id() & 3;
  Bf16* const y = static_cast<Bf16*>(c.y);
  const bool in_eights = reinterpret_cast<uintptr_t>(c.y) % 16 == 0 && c.y_row % 8 == 0;
  const auto output = [&](float gate, float up) {
    return swiglu(gate * out.factor, up * out.factor, c.gate_limit);
  };
#pragma unroll
  for (int part = 0; part < kTokens / kRows; ++part) {
#pragma unroll
    for (int j = 0; j < kRows / 8; j += kAtOnce) {
      uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // Gate rows of tokens 2t and 2t + 1 of eight, then the up rows.
        const int at = part * 32 + (j + i) * 4;
        words[i] = pair_of_floats(output(d[at], d[at + 2]), output(d[at + 1], d[at + 3]));
      }
      // Lane 8 i + r names the place of row r of the turned-over matrix i.
      const uint32_t to = panel + panel_offset((j + (lane >> 3) % kAtOnce) * 8 + (lane & 7), warp);
      if constexpr (kAtOnce == 4) {
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
            "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
            : "memory");
      } else {
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
                     "r"(words[0]), "r"(words[1])
                     : "memory");
      }
    }
    named_sync(barrier, kWarpgroup);
#pragma unroll
    for (int i = 0; i < (kRows + kRowsAtOnce - 1) / kRowsAtOnce; ++i) {
      const int row = i * kRowsAtOnce + warp * 8 + lane / 4;
      const int chunk = lane & 3;
      const int token = part * kRows + row;
      const int n = first_n + 8 * chunk;
      if (row >= kRows || token >= out.tile.count || n >= c.width()) continue;
      const uint4 words = load_shared_16(panel + panel_offset(row, chunk));
      Bf16* const to = y + out.y_first + token * c.y_row + n;
      if (in_eights) {
        *reinterpret_cast<uint4*>(to) = words;
      } else {
        store_eight_apart(to, words);
      }
    }
    named_sync(barrier, kWarpgroup);
  }
}

/// Outputs of a block of sums: from rows first_token of the tile and first_n of w on.
template <bool kXIsFirst, int kSums>
__device__ __forceinline__ void store_tile(const TileOutput& out,
                                           const float (&d)[kSums],
                                           int first_token,
                                           int first_n,
                                           uint32_t panel,
                                           int barrier) {
  const bool plain = out.c.is_plain();
  const bool scattered = out.c.y_rows != nullptr || out.c.row_weights != nullptr;
  const auto store = [&]<class T, Finish kFinish>() {
    if constexpr (kXIsFirst) {
      store_row_panels<T, kFinish>(out, d, first_token, first_n, panel);
    } else {
      store_panels<T, kFinish>(out, d, first_n, panel, barrier);
    }
  };
  if (out.c.y_format == Format::kBf16 && plain && !scattered)
    return store.template operator()<Bf16, Finish::kPlain>();
  if (out.c.y_format == Format::kBf16 && plain)
    return store.template operator()<Bf16, Finish::kScattered>();
  if (out.c.y_format == Format::kBf16) return store.template operator()<Bf16, Finish::kAny>();
  if (out.c.y_format == Format::kF16) return store.template operator()<F16, Finish::kAny>();
  const int row = (kXIsFirst ? first_token : first_n) + (warp_id() & 3) * 16 + (lane_id() >> 2);
  const int pair = (kXIsFirst ? first_n : first_token) + 2 * (lane_id() & 3);
  const bool direct = out.c.y_format == Format::kF32 && plain && !scattered;
  float* const y = static_cast<float*>(out.c.y) + out.y_first;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int of_first = row + (i >> 1 & 1) * 8;
    const int of_second = pair + i / 4 * 8 + (i & 1);
    const int t = kXIsFirst ? of_first : of_second;
    const int column = kXIsFirst ? of_second : of_first;
    if (!direct) {
      out.store(d[i], t, column);
    } else if (t < out.tile.count && column < out.c.N) {
      y[t * out.c.y_row + column] = d[i] * out.factor;
    }
  }
}

/// Sums of a slice of k to shared memory, [token][row of the tile].
template <bool kXIsFirst, int kPitch, int kSums>
__device__ __forceinline__ void keep_sums(const float (&d)[kSums],
                                          float* sums,
                                          int first_token,
                                          int first_row) {
  const int row = (kXIsFirst ? first_token : first_row) + (warp_id() & 3) * 16 + (lane_id() >> 2);
  const int pair = (kXIsFirst ? first_row : first_token) + 2 * (lane_id() & 3);
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int of_first = row + (i >> 1 & 1) * 8;
    const int of_second = pair + i / 4 * 8 + (i & 1);
    sums[(kXIsFirst ? of_first : of_second) * kPitch + (kXIsFirst ? of_second : of_first)] = d[i];
  }
}

/// Lends the sums of this warp to the block that finishes their tile.
template <int kThreads, int kSums>
__device__ __forceinline__ void lend_sums(const float (&d)[kSums], const TilePlan& plan) {
  const auto block = static_cast<int>(blockIdx.x);
  float4* const to = plan.parts + block * (kSums / 4 * kThreads) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kSums / 4; ++i)
    __stcg(to + i * kThreads, float4{d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]});
  __syncwarp();
  if (lane_id() == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(plan.ready + block * kMostTileWarps +
                                                             warp_id()),
                 "r"(1)
                 : "memory");
  }
}

/// Adds the sums of its tile that blocks `first` to the one before this have lent this warp, in
/// their order, which is that of k; its own come last. A block waits for lower ones alone. Lower
/// ones are seen to start first, though CUDA does not promise it: so this ends, however few blocks
/// run at once.
template <int kThreads, int kSums>
__device__ __forceinline__ void take_sums(float (&d)[kSums], const TilePlan& plan, int first) {
  const int count = static_cast<int>(blockIdx.x) - first;
  const bool waits = lane_id() < count;
  uint32_t* const ready = plan.ready + (first + lane_id()) * kMostTileWarps + warp_id();
  uint32_t is_ready = 0;
  do {
    if (waits)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is_ready) : "l"(ready) : "memory");
  } while (!__all_sync(0xFFFFFFFFu, !waits || is_ready != 0));
  __syncwarp();  // what one lane has acquired, all may read
  if (waits) *ready = 0;
  const float4* from = plan.parts + first * (kSums / 4 * kThreads) + threadIdx.x;
  float sums[kSums] = {};
  constexpr int kAtOnce = 32 / kSums;  // blocks
#pragma unroll kAtOnce
  for (int s = 0; s < count; ++s, from += kSums / 4 * kThreads) {
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const float4 v = __ldcg(from + i * kThreads);
      sums[4 * i] += v.x;
      sums[4 * i + 1] += v.y;
      sums[4 * i + 2] += v.z;
      sums[4 * i + 3] += v.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    d[i] = sums[i] + d[i];
}

/// Adds up the slices of a tile: every block of the cluster a share of its outputs.
template <int kRows, int kPitch, int kThreads>
__device__ void combine_slices(const TileOutput& out, float* sums, int split) {
  constexpr int kFours = kRows / 4;
  const int first = static_cast<int>(cluster_rank()) * kThreads + static_cast<int>(threadIdx.x);
#pragma unroll 2
  for (int i = first; i < out.tile.count * kFours; i += split * kThreads) {
    const int token = i / kFours;
    const int row = i % kFours * 4;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int s = 0; s < split; ++s) {
      const float* theirs = in_block(sums, static_cast<unsigned>(s)) + token * kPitch + row;
      const float4 v = *reinterpret_cast<const float4*>(theirs);
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    FourOutputs{out, token, out.tile.row_tile * kRows + row}.store(sum);
  }
}

}  // namespace fathom::cuda
