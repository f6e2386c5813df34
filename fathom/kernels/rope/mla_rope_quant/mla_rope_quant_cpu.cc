#include "fathom/kernels/attn/kv_write/slots.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"
#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant_rows.h"
#include "fathom/kernels/rope/rope/positions.h"
#include "fathom/kernels/rope/rope/rope_loops.h"

namespace fathom {

Cost MlaRopeQuantFp8::cost(const Args& a) {
  const int64_t rows = a.q_pe.dim(0) * (a.q_pe.dim(1) + 1);
  return {.flops = static_cast<double>(rows * (4 * a.q_pe.dim(2) + a.q_lat.dim(2)))};
}

void MlaRopeQuantFp8::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.q_pe.dim(0);
  const int64_t R = a.q_pe.dim(2);
  const int64_t values = T * (a.q_pe.dim(1) + 1) * (a.q_lat.dim(2) + R);
  cost.bytes_read =
      values * element_bytes(a.q_pe.format) + T * (R * 4 + element_bytes(a.positions.format));
  cost.bytes_written = values;
}

Status MlaRopeQuantFp8::check(const Args& a) {
  FATHOM_TRY(check_same_format("q_pe", a.q_pe, "k_pe", a.k_pe));
  FATHOM_TRY(check_same_format("q_pe", a.q_pe, "q_lat", a.q_lat));
  FATHOM_TRY(check_same_format("q_pe", a.q_pe, "c", a.c));
  FATHOM_TRY(check_same_format("q_pe_out", a.q_pe_out, "k_pe_out", a.k_pe_out));
  FATHOM_TRY(check_same_format("q_pe_out", a.q_pe_out, "q_lat_out", a.q_lat_out));
  FATHOM_TRY(check_same_format("q_pe_out", a.q_pe_out, "c_out", a.c_out));
  FATHOM_TRY(check_scale("q_scale", a.q_scale, Format::kE4m3));
  FATHOM_TRY(check_scale("kv_scale", a.kv_scale, Format::kE4m3));
  return check_positions(a.positions, a.table.dim(0));
}

Cost MlaRopeWrite::cost(const Args& a) {
  const int64_t rows = a.q_lat.dim(0) * (a.q_lat.dim(1) + 1);
  return {.flops = static_cast<double>(rows * (3 * a.q_pe.dim(2) + a.q.dim(2)))};
}

void MlaRopeWrite::bytes(const Args& a, Cost& cost) {
  const int64_t T = a.q_lat.dim(0);
  const int64_t N = a.q_lat.dim(1);
  const int64_t D = a.q.dim(2);
  const int64_t R = a.q_pe.dim(2);
  cost.bytes_read = T * (N + 1) * D * element_bytes(a.q_lat.format) + T * (R * 4 + 4 + 8);
  cost.bytes_written =
      T * N * D * element_bytes(a.q.format) + T * D * element_bytes(a.cache.format);
}

Status MlaRopeWrite::check(const Args& a) {
  FATHOM_TRY(check_same_format("q_lat", a.q_lat, "q_pe", a.q_pe));
  FATHOM_TRY(check_same_format("q_lat", a.q_lat, "c", a.c));
  FATHOM_TRY(check_same_format("q_lat", a.q_lat, "k_pe", a.k_pe));
  FATHOM_TRY(check_scale("q_scale", a.q_scale, a.q.format));
  FATHOM_TRY(check_scale("kv_scale", a.kv_scale, a.cache.format));
  FATHOM_TRY(check_positions(a.positions, a.table.dim(0)));
  return check_slots(a.slots, a.cache);
}

namespace {

/// out = convert( [ lat | rope(pe) ] / scale ).
template <class In, class Out>
void prepare_row(const In* lat,
                 const In* pe,
                 Out* out,
                 const float* table_row,
                 int64_t L,
                 int64_t R,
                 RopeStyle style,
                 float scale) {
  for (int64_t i = 0; i < L; ++i)
    out[i] = from_float<Out>(to_float(lat[i]) / scale);
  rotate_head(pe, out + L, table_row, R, style, DividedBy{scale});
}

template <class In, class Q, class C>
void prepare_token(const MlaRopeWrite::Args& a, int64_t t) {
  const int64_t L = a.q_lat.dim(2);
  const int64_t R = a.q_pe.dim(2);
  const float* table_row = a.table.row<float>(a.positions.as<int32_t>()[t]);
  for (int64_t n = 0; n < a.q.dim(1); ++n) {
    prepare_row(a.q_lat.row<In>(t) + n * a.q_lat.stride(1),
                a.q_pe.row<In>(t) + n * a.q_pe.stride(1), a.q.row<Q>(t) + n * a.q.stride(1),
                table_row, L, R, a.style, a.q_scale);
  }
  const int64_t slot = a.slots.as<int64_t>()[t];
  if (slot < 0) return;
  prepare_row(a.c.row<In>(t), a.k_pe.row<In>(t), slot_data<C>(a.cache, slot), table_row, L, R,
              a.style, a.kv_scale);
}

int64_t bytes_per_token(const MlaRopeWrite::Args& a) {
  return 8 * (a.q.dim(1) + 1) * a.q.dim(2);
}

/// out = fp8(scale * x) and pe_out = fp8(scale * rope(pe)), of one head.
template <class In, class Out>
void quantise_head(const In* x,
                   const In* pe,
                   Out* out,
                   Out* pe_out,
                   const float* table_row,
                   const MlaRopeQuantFp8::Args& a,
                   float scale) {
  for (int64_t i = 0; i < a.c.dim(1); ++i)
    out[i] = from_float<Out>(to_float(x[i]) * scale);
  rotate_head(pe, pe_out, table_row, a.k_pe.dim(1), a.style, MultipliedBy{scale});
}

template <class In, class Out>
void quantise_token(const MlaRopeQuantFp8::Args& a, int64_t t) {
  const float* table_row = a.table.row<float>(position_of(a.positions, t));
  for (int64_t n = 0; n < a.q_pe.dim(1); ++n) {
    quantise_head(a.q_lat.row<In>(t) + n * a.q_lat.stride(1),
                  a.q_pe.row<In>(t) + n * a.q_pe.stride(1),
                  a.q_lat_out.row<Out>(t) + n * a.q_lat_out.stride(1),
                  a.q_pe_out.row<Out>(t) + n * a.q_pe_out.stride(1), table_row, a, a.q_scale);
  }
  quantise_head(a.c.row<In>(t), a.k_pe.row<In>(t), a.c_out.row<Out>(t), a.k_pe_out.row<Out>(t),
                table_row, a, a.kv_scale);
}

int64_t bytes_per_token(const MlaRopeQuantFp8::Args& a) {
  return 3 * (a.q_pe.dim(1) + 1) * (a.c.dim(1) + a.k_pe.dim(1));
}

Status mla_rope_quant_portable(Exec& ex, const MlaRopeQuantFp8::Args& a) {
  with_float_type(a.q_pe.format, [&]<class In>(In) {
    const auto run = [&]<class Out>(Out) {
      for_rows(ex, a.q_pe.dim(0), bytes_per_token(a), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          quantise_token<In, Out>(a, t);
      });
    };
    a.c_out.format == Format::kE4m3 ? run(E4m3{}) : run(E5m2{});
  });
  return {};
}

Status mla_rope_quant_avx512(Exec& ex, const MlaRopeQuantFp8::Args& a) {
  for_rows(ex, a.q_pe.dim(0), bytes_per_token(a),
           [&](int64_t begin, int64_t end) { avx512::mla_rope_quant_rows(a, begin, end); });
  return {};
}

Status mla_rope_write_portable(Exec& ex, const MlaRopeWrite::Args& a) {
  with_activation_type(a.q_lat.format, [&]<class In>(In) {
    with_cache_type(a.q.format, [&]<class Q>(Q) {
      with_cache_type(a.cache.format, [&]<class C>(C) {
        for_rows(ex, a.q.dim(0), bytes_per_token(a), [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t)
            prepare_token<In, Q, C>(a, t);
        });
      });
    });
  });
  return {};
}

Status mla_rope_write_avx512(Exec& ex, const MlaRopeWrite::Args& a) {
  for_rows(ex, a.q.dim(0), bytes_per_token(a),
           [&](int64_t begin, int64_t end) { avx512::mla_rope_write_rows(a, begin, end); });
  return {};
}

}  // namespace

constinit const VariantTable<MlaRopeQuantFp8> mla_rope_quant_fp8_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, mla_rope_quant_avx512},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, mla_rope_quant_portable},
};

constinit const VariantTable<MlaRopeWrite> mla_rope_write_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, mla_rope_write_avx512},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, mla_rope_write_portable},
};

}  // namespace fathom
