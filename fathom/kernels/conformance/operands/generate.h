// Test data: seeded values of the kinds that find mistakes (normal, heavy-tailed, rows of zeros,
// one huge value, denormals, one sign), and weights in every format and layout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/format.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// What a row of values looks like.
enum class Dist {
  kNormal,
  kHeavyTail,  ///< Student t with 4 degrees of freedom, cut at 30 (bf16 and FP8 keep finite)
  kUniform,    ///< [0, 1)
  kZeros,
  kOneHuge,    ///< normal but for one value 1000 times as large
  kDenormal,   ///< multiples of the smallest float32 denormals, not scaled
  kOneSign,    ///< |normal| + 0.5: sums grow, which shows lost precision
  kMixedRows,  ///< row i is of kind i modulo the kinds above: normal, heavy, zeros, huge, ...
  kBytes,      ///< 0 .. 255, not scaled: codes in a format of bytes
};

/// value = scale * draw + offset.
struct Fill {
  Dist dist = Dist::kNormal;
  double scale = 1.0;
  double offset = 0.0;
};

/// Fills `row` (row number `index` of its tensor) with values of that kind.
void generate_row(const Fill& fill, int64_t index, Rng& rng, std::span<float> row);

/// One element of a dense format as a number. Integers and bool are exact.
double load_element(Format format, const void* data, int64_t index);

/// Rounds to nearest even, saturates FP8 to its largest value.
void store_element(Format format, void* data, int64_t index, double value);

/// Place of the first of `count` elements of a floating-point format that is NaN or infinite, or
/// `count`.
int64_t first_not_finite(Format format, const void* data, int64_t count);

/// Sets `count` elements to what no kernel may read or leave: NaN, or for integers a number out of
/// every range of ids and slots.
void poison_elements(Format format, void* data, int64_t count);

/// True if the element is bit for bit what poison_elements wrote.
bool is_poison(Format format, const void* data, int64_t index);

/// The weight of a case: a matrix [rows, cols] of random values or a stack of them, as it is asked
/// for.
struct CaseWeightSpec {
  int64_t num_experts = 0;  ///< 0: one matrix [rows, cols]; else a stack [E, rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
  Format format = Format::kBf16;
  WeightLayout layout = WeightLayout::kRows16;
  /// Normal values of this size are quantised; 0 stands for 1/sqrt(cols), so that outputs are of
  /// the size of the inputs. Every seventh row is heavy-tailed.
  double scale = 0;

  int64_t matrices() const { return num_experts == 0 ? 1 : num_experts; }
};

/// Byte counts of the three parts of a stored weight (QuantView).
struct WeightBytes {
  int64_t values = 0;
  int64_t scales = 0;
  int64_t global = 0;
};

WeightBytes weight_bytes(const CaseWeightSpec& spec);

/// The parts of a stored weight, as memory to fill or to read.
struct WeightParts {
  std::byte* values = nullptr;
  std::byte* scales = nullptr;
  float* global = nullptr;
};

/// Quantises random float weights into `out`, and keeps them in `exact` ([matrices*rows*cols]) if
/// it is not null. Recipes of the formats folder; kRows16 goes through the row-major form.
void generate_weight(const CaseWeightSpec& spec,
                     Rng& rng,
                     WeightParts out,
                     std::vector<float>* exact);

/// Fills `out` with random codes and scales of sensible size, as fast as memory allows: for shapes
/// whose quantisation would take longer than the measurement. Full tiles only (rows % 16 == 0,
/// cols % 128 == 0). `ring_bytes` > 0: the values lie on a ring of so many bytes, of whole tiles,
/// and are written once.
void generate_weight_codes(const CaseWeightSpec& spec,
                           Rng& rng,
                           WeightParts out,
                           int64_t ring_bytes = 0);

/// Row `row` (counted through all matrices of the stack) as the stored codes say.
void decode_weight_row(const CaseWeightSpec& spec,
                       const WeightParts& parts,
                       int64_t row,
                       std::span<float> out);

}  // namespace fathom
