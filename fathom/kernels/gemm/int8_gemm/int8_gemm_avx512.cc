#include "fathom/kernels/gemm/int8_gemm/int_tiles_avx512.h"

namespace fathom {
namespace {

struct Int8Tiles : IntProduct {
  static void load(const Products& p,
                   int64_t,
                   int64_t group,
                   int64_t k0,
                   int64_t columns,
                   uint8_t* tiles,
                   float*) {
    const int64_t n0 = group * 16;
    const int64_t left = p.row_bytes - k0;
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    load_rows(p.codes + n0 * p.row_bytes, p.row_bytes, p.n - n0, k0,
              left < columns ? left : columns, [&](int64_t q, __m512i quad) {
                _mm512_store_si512(tiles + q * kQuadBytes,
                                   _mm512_xor_si512(quad, sign));  // w + 128
              });
  }
};

}  // namespace

void int8_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<Int8Tiles>::run(p, item, scratch);
}

}  // namespace fathom
