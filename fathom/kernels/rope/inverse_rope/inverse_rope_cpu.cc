#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/quant_input.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/rope/inverse_rope/inverse_rope.h"
#include "fathom/kernels/rope/inverse_rope/inverse_rope_rows.h"
#include "fathom/kernels/rope/inverse_rope/turn_back.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rope_loops.h"

namespace fathom {
namespace {

template <class A>
void rotate_token(const InverseRope::Args& a, int64_t t, float* back) {
  const int64_t R = a.table.dim(1);
  turn_back(a.table.row<float>(a.positions.as<int32_t>()[t]), R, back);
  for (int64_t h = 0; h < a.o.dim(1); ++h) {
    A* pe = a.o.row<A>(t) + h * a.o.stride(1) + a.o.dim(2) - R;
    rotate_head(pe, pe, back, R, RopeStyle::kInterleaved);
  }
}

/// Codes and scales of a head of D values.
template <class S>
void quantise_head(const float* x, int64_t D, E4m3* codes, S* scales) {
  for (int64_t i = 0; i < D; i += kRopeQuantGroup) {
    const float amax = amax_of(x + i, kRopeQuantGroup);
    const float scale = fp8_scale(amax, kFp8V32DemoUe8m0);
    for (int64_t j = i; j < i + kRopeQuantGroup; ++j)
      codes[j] = e4m3_from_float(x[j] / scale);
    if constexpr (sizeof(S) == 1) {
      scales[i / kRopeQuantGroup] = ue8m0_round_up(scale);
    } else {
      scales[i / kRopeQuantGroup] = scale;
    }
  }
}

template <class A, class S>
void quantise_token(const InverseRopeQuant::Args& a, int64_t t, float* room) {
  const int64_t R = a.table.dim(1);
  const int64_t D = a.o.dim(2);
  float* row = room + whole_lines(R);
  turn_back(a.table.row<float>(a.positions.as<int32_t>()[t]), R, room);
  for (int64_t h = 0; h < a.o.dim(1); ++h) {
    const A* o = a.o.row<A>(t) + h * a.o.stride(1);
    for (int64_t i = 0; i < D - R; ++i)
      row[i] = to_float(o[i]);
    rotate_head(o + D - R, row + D - R, room, R, RopeStyle::kInterleaved);
    const HeadPlace place = place_of_head(a, t, h);
    quantise_head(row, D, a.y.as<E4m3>() + place.code, a.s.as<S>() + place.scale);
  }
}

struct Portable {
  static void run(const InverseRope::Args& a, float* room, int64_t begin, int64_t end) {
    with_activation_type(a.o.format, [&]<class A>(A) {
      for (int64_t t = begin; t < end; ++t)
        rotate_token<A>(a, t, room);
    });
  }

  static void run(const InverseRopeQuant::Args& a, float* room, int64_t begin, int64_t end) {
    with_activation_type(a.o.format, [&]<class A>(A) {
      for (int64_t t = begin; t < end; ++t) {
        if (a.s.format == Format::kF32) {
          quantise_token<A, float>(a, t, room);
        } else {
          quantise_token<A, Ue8m0>(a, t, room);
        }
      }
    });
  }
};

struct Avx512 {
  static void run(const InverseRope::Args& a, float* room, int64_t begin, int64_t end) {
    avx512::inverse_rope_rows(a, room, begin, end);
  }

  static void run(const InverseRopeQuant::Args& a, float* room, int64_t begin, int64_t end) {
    avx512::inverse_rope_quant_rows(a, room, begin, end);
  }
};

int64_t room_of(const InverseRope::Args& a) {
  return whole_lines(a.table.dim(1));
}

int64_t room_of(const InverseRopeQuant::Args& a) {
  return whole_lines(a.table.dim(1)) + a.o.dim(2);
}

int64_t bytes_per_token(const InverseRope::Args& a) {
  return 2 * a.o.dim(1) * a.table.dim(1) * element_bytes(a.o.format);
}

int64_t bytes_per_token(const InverseRopeQuant::Args& a) {
  return a.o.dim(1) * a.o.dim(2) * (element_bytes(a.o.format) + 1);
}

template <class Loops, class Args>
Status for_tokens(Exec& ex, const Args& a) {
  auto* workspace = static_cast<float*>(ex.workspace);
  for_rows_by_thread(ex, a.o.dim(0), bytes_per_token(a),
                     [&](int thread, int64_t begin, int64_t end) {
                       Loops::run(a, workspace + thread * room_of(a), begin, end);
                     });
  return {};
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

Cost InverseRope::cost(const Args& a) {
  return {.flops = static_cast<double>(3 * a.o.dim(0) * a.o.dim(1) * a.table.dim(1))};
}

void InverseRope::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.o.dim(0);
  const int64_t R = a.table.dim(1);
  cost.bytes_written = T * a.o.dim(1) * R * element_bytes(a.o.format);
  cost.bytes_read = cost.bytes_written + T * (R * 4 + 4);
}

Status InverseRope::check(const Args& a) {
  return check_positions(a.positions, a.table.dim(0));
}

int64_t InverseRope::workspace(const Args& a, int num_threads) {
  return num_threads * room_of(a) * static_cast<int64_t>(sizeof(float));
}

Cost InverseRopeQuant::cost(const Args& a) {
  const int64_t heads = a.o.dim(0) * a.o.dim(1);
  return {.flops = static_cast<double>(heads * 3 * (a.table.dim(1) + a.o.dim(2)))};
}

void InverseRopeQuant::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.o.dim(0);
  const int64_t values = T * a.o.dim(1) * a.o.dim(2);
  cost.bytes_read = values * element_bytes(a.o.format) + T * (a.table.dim(1) * 4 + 4);
  cost.bytes_written = values + values / kRopeQuantGroup * element_bytes(a.s.format);
}

Status InverseRopeQuant::check(const Args& a) {
  return check_positions(a.positions, a.table.dim(0));
}

int64_t InverseRopeQuant::workspace(const Args& a, int num_threads) {
  return num_threads * room_of(a) * static_cast<int64_t>(sizeof(float));
}

constinit const VariantTable<InverseRope> inverse_rope_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, for_tokens<Avx512, InverseRope::Args>},
    {"portable", Isa::kPortable, "", kTraits, for_tokens<Portable, InverseRope::Args>},
};

constinit const VariantTable<InverseRopeQuant> inverse_rope_quant_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, for_tokens<Avx512, InverseRopeQuant::Args>},
    {"portable", Isa::kPortable, "", kTraits, for_tokens<Portable, InverseRopeQuant::Args>},
};

}  // namespace fathom
