#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/compress/kv_compress/kv_compress.h"
#include "fathom/kernels/compress/kv_compress/kv_compress_rows.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/norm/inverse_rms.h"
#include "fathom/kernels/rope/rope/rope_loops.h"

namespace fathom {
namespace {

// ---- compress_state_write ----

template <class A>
void write_state(const CompressStateWrite::Args& a, int64_t t) {
  const int64_t slot = a.slots.as<int64_t>()[t];
  if (slot < 0) return;
  const int64_t W = a.ape.dim(1);
  const A* token = a.u_z.row<A>(t);
  const float* ape = a.ape.row<float>(a.positions.as<int32_t>()[t] % a.ape.dim(0));
  float* u = slot_data<float>(a.state_u, slot);
  float* z = slot_data<float>(a.state_z, slot);
  for (int64_t i = 0; i < W; ++i)
    u[i] = to_float(token[i]);
  for (int64_t i = 0; i < W; ++i)
    z[i] = to_float(token[W + i]) + ape[i];
}

Status compress_state_write_portable(Exec& ex, const CompressStateWrite::Args& a) {
  const int64_t bytes = a.u_z.dim(1) * (element_bytes(a.u_z.format) + 4);
  with_activation_type(a.u_z.format, [&]<class A>(A) {
    for_rows(ex, a.u_z.dim(0), bytes, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        write_state<A>(a, t);
    });
  });
  return {};
}

// ---- compress_pool ----

using Args = CompressPool::Args;

struct UZ {
  float u, z;
};

/// Element c of an entry.
template <class A>
UZ value_of(const PoolEntry& entry, int64_t c) {
  if (entry.ape == nullptr)
    return {static_cast<const float*>(entry.u)[c], static_cast<const float*>(entry.z)[c]};
  const float z = to_float(static_cast<const A*>(entry.z)[c]);
  return {to_float(static_cast<const A*>(entry.u)[c]), z + entry.ape[c]};
}

template <class A>
void pool_channels(const Args& a, int64_t i, int64_t begin, int64_t count, float* x) {
  const int64_t E = a.gather.dim(1);
  for (int64_t c = 0; c < count; ++c) {
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t e = 0; e < E; ++e) {
      const PoolEntry entry = pool_entry<A>(a, i, e, begin);
      if (entry.z != nullptr) largest = std::max(largest, value_of<A>(entry, c).z);
    }
    float sum = 0.0f;
    float weighted = 0.0f;
    for (int64_t e = 0; e < E; ++e) {
      const PoolEntry entry = pool_entry<A>(a, i, e, begin);
      if (entry.z == nullptr) continue;
      const UZ value = value_of<A>(entry, c);
      const float p = std::exp(value.z - largest);
      sum += p;
      weighted += p * value.u;
    }
    x[c] = weighted / sum;
  }
}

void round_to_bf16(float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    x[i] = to_float(bf16_from_float(x[i]));
}

/// Times the Walsh-Hadamard matrix and D^-0.5; D is a power of two. Strides 1, 2, 4, ...
void transform_row(float* x, int64_t D) {
  for (int64_t stride = 1; stride < D; stride *= 2) {
    for (int64_t i = 0; i < D; ++i) {
      if ((i & stride) != 0) continue;
      const float sum = x[i] + x[i + stride];
      x[i + stride] = x[i] - x[i + stride];
      x[i] = sum;
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  for (int64_t i = 0; i < D; ++i)
    x[i] *= scale;
}

void finish_row(const Args& a, const CodedRows& rows, int64_t i, float* x) {
  const int64_t D = a.norm.dim(0);
  const int64_t R = a.table.dim(1);
  const bool bf16 = a.activations == Format::kBf16;
  if (bf16) round_to_bf16(x, D);
  const float r = inverse_rms_of(D, a.eps, [&](int64_t d) { return x[d]; });
  with_activation_type(a.norm.format, [&]<class W>(W) {
    for (int64_t d = 0; d < D; ++d)
      x[d] = x[d] * r * to_float(a.norm.as<W>()[d]);
  });
  const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[i]);
  rotate_head(x + D - R, x + D - R, table_row, R, RopeStyle::kInterleaved);
  if (a.transform == CompressTransform::kHadamard) {
    if (bf16) round_to_bf16(x, D);
    transform_row(x, D);
  }
  store_cache_row(rows, a.slots.as<int64_t>()[i], x);
}

struct Portable {
  static void pool(const Args& a, int64_t i, int64_t c, int64_t count, float* x) {
    with_activation_type(a.u_z.format, [&]<class A>(A) { pool_channels<A>(a, i, c, count, x); });
  }

  static void finish(const Args& a, const CodedRows& rows, int64_t i, float* x) {
    finish_row(a, rows, i, x);
  }
};

struct Avx512 {
  static void pool(const Args& a, int64_t i, int64_t c, int64_t count, float* x) {
    avx512::pool_channels(a, i, c, count, x);
  }

  static void finish(const Args& a, const CodedRows& rows, int64_t i, float* x) {
    avx512::finish_row(a, rows, i, x);
  }
};

/// First all channels of all rows, which threads share however few rows there are; then the rows.
template <class Loops>
Status compress_pool(Exec& ex, const Args& a) {
  const int64_t D = a.norm.dim(0);
  const int64_t num_rows = a.gather.dim(0);
  const int64_t pieces = ceil_div(D, kPoolChannels);
  const auto* slots = a.slots.as<int64_t>();
  auto* pooled = static_cast<float*>(ex.workspace);
  const int64_t piece_bytes = a.gather.dim(1) * kPoolChannels * 8;
  for_rows(ex, num_rows * pieces, piece_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t i = item / pieces;
      const int64_t c = item % pieces * kPoolChannels;
      if (slots[i] < 0) continue;
      Loops::pool(a, i, c, std::min(kPoolChannels, D - c), pooled + i * pooled_stride(D) + c);
    }
  });
  const CodedRows rows = cache_rows(a.fields());
  for_rows(ex, num_rows, 8 * D, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (slots[i] >= 0) Loops::finish(a, rows, i, pooled + i * pooled_stride(D));
    }
  });
  return {};
}

Status check_gather(const Args& a) {
  if (!a.gather.readable() || !a.slots.readable()) return {};
  const int64_t num_entries = a.gather.dim(1);
  const int64_t last = a.u_z.dim(0) + a.state_u.dim(0) * a.state_u.dim(1) - 1;
  for (int64_t i = 0; i < a.gather.dim(0); ++i) {
    if (a.slots.as<int64_t>()[i] < 0) continue;
    for (int64_t e = 0; e < num_entries; ++e) {
      const int64_t index = a.gather.row<const int64_t>(i)[e];
      const int64_t least = e < num_entries - a.ape.dim(0) ? -1 : 0;
      if (index >= least && index <= last) continue;
      return invalid_argument(
          str_cat("gather[", i, ",", e, "] is ", index, ", expected ", least, " to ", last));
    }
  }
  return {};
}

/// As check_positions, of the rows that are stored.
Status check_row_positions(const Args& a) {
  if (!a.positions.readable() || !a.slots.readable()) return {};
  for (int64_t i = 0; i < a.positions.dim(0); ++i) {
    const int32_t position = a.positions.as<int32_t>()[i];
    if (a.slots.as<int64_t>()[i] < 0 || (position >= 0 && position < a.table.dim(0))) continue;
    return invalid_argument(str_cat("positions[", i, "] is ", position,
                                    " but the table has rows 0..", a.table.dim(0) - 1));
  }
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Cost CompressStateWrite::cost(const Args& a) {
  return {.flops = static_cast<double>(a.u_z.dim(0) * a.ape.dim(1))};
}

void CompressStateWrite::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.u_z.dim(0);
  const int64_t J = a.u_z.dim(1);
  const int64_t kept = std::min(T, a.state_u.dim(0) * a.state_u.dim(1));  // no slot has two tokens
  cost.bytes_read = kept * (J * element_bytes(a.u_z.format) + J / 2 * 4 + 4) + T * 8;
  cost.bytes_written = kept * J * 4;
}

Status CompressStateWrite::check(const Args& a) {
  for (int64_t t = 0; a.positions.readable() && t < a.positions.dim(0); ++t) {
    const int32_t position = a.positions.as<int32_t>()[t];
    if (position >= 0) continue;
    return invalid_argument(str_cat("positions[", t, "] is ", position, ", expected 0 or more"));
  }
  return check_row_slots("slots", a.slots, a.state_u);
}

Cost CompressPool::cost(const Args& a) {
  const int64_t channel = 6 * a.gather.dim(1) + 4;
  const int64_t row = a.norm.dim(0) * channel + 3 * a.table.dim(1);
  return {.flops = static_cast<double>(a.gather.dim(0) * row)};
}

void CompressPool::bytes(const Args& a, Cost& cost) {
  const int64_t rows = a.gather.dim(0);
  const int64_t D = a.norm.dim(0);
  const int64_t E = a.gather.dim(1);
  cost.bytes_read =
      rows * (E * (2 * D * 4 + 8) + a.table.dim(1) * 4 + 4 + 8) + D * element_bytes(a.norm.format);
  cost.bytes_written = rows * cache_row_bytes(a.fields());
}

Status CompressPool::check(const Args& a) {
  const int64_t D = a.norm.dim(0);
  if (a.ape.dim(1) != D && a.ape.dim(1) != 2 * D) {
    return invalid_argument(str_cat("ape has ", a.ape.dim(1), " channels but norm has ", D,
                                    ", expected as many or twice"));
  }
  if (a.transform == CompressTransform::kHadamard &&
      !std::has_single_bit(static_cast<uint64_t>(D))) {
    return invalid_argument(str_cat("a transform of ", D, " channels, expected a power of two"));
  }
  if (a.activations != Format::kBf16 && a.activations != Format::kF32) {
    return invalid_argument(
        str_cat("activations is ", format_name(a.activations), ", expected bf16 or f32"));
  }
  if (!(a.eps >= 0.0f)) return invalid_argument(str_cat("eps is ", a.eps, ", expected 0 or more"));
  FATHOM_TRY(check_cache_row(a.fields(), D, CacheScale::kPowerOfTwo));
  FATHOM_TRY(check_row_slots("slots", a.slots, a.values));
  FATHOM_TRY(check_row_positions(a));
  return check_gather(a);
}

int64_t CompressPool::workspace(const Args& a, int /*num_threads*/) {
  return a.gather.dim(0) * pooled_stride(a.norm.dim(0)) * static_cast<int64_t>(sizeof(float));
}

constinit const VariantTable<CompressStateWrite> compress_state_write_cpu{
    {"portable", Isa::kPortable, "", kTraits, compress_state_write_portable},
};

constinit const VariantTable<CompressPool> compress_pool_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, compress_pool<Avx512>},
    {"portable", Isa::kPortable, "", kTraits, compress_pool<Portable>},
};

}  // namespace fathom
