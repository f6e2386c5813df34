// Scans of a row of probabilities: its mass, and its thresholds, which are the k-th largest value
// and the value at which the largest ones reach a mass. Shared by sample/renorm, sample/draw and
// spec/verify_tree, for each instruction set.
//
// All sums are in float64 and in an order that depends on the row alone.
#pragma once

#include <cstdint>

namespace fathom {

/// A probability as all samplers read it: NaN and negative values count as 0.
inline float usable_probability(float p) {
  return p > 0.0f ? p : 0.0f;
}

/// What lies at or above a threshold.
struct Kept {
  float threshold = 0.0f;
  double mass = 0.0;
};

/// Floats that a scan with `room` needs for a row; the room is 64-byte aligned.
constexpr int64_t threshold_room(int64_t count) {
  return (count + 15) / 16 * 16 + 16;
}

/// Mass of the values that are not below the threshold.
double mass_from(const float* p, int64_t count, float threshold);

/// Copies the positive values that are not below the threshold, in order; returns their number.
/// out: threshold_room(count) floats.
int64_t gather_from(const float* p, int64_t count, float threshold, float* out);

/// The k-th largest value, k >= 1; threshold 0 and all of the mass for k >= count.
Kept top_k_threshold(const float* p, int64_t count, int64_t k, float* room);

/// The largest threshold at which the values that are not below it have at least `target` mass;
/// threshold 0 and all of the mass if the row has less. p may be the room.
Kept top_p_threshold(const float* p, int64_t count, double target, float* room);

/// The largest value, 0 if none is positive.
float largest_probability(const float* p, int64_t count);

bool has_nan(const float* p, int64_t count);

namespace avx512 {
double mass_from(const float* p, int64_t count, float threshold);
int64_t gather_from(const float* p, int64_t count, float threshold, float* out);
Kept top_k_threshold(const float* p, int64_t count, int64_t k, float* room);
Kept top_p_threshold(const float* p, int64_t count, double target, float* room);
float largest_probability(const float* p, int64_t count);
bool has_nan(const float* p, int64_t count);
}  // namespace avx512

/// The portable scans pass over a row four times and once to write, all from the caches: a row
/// takes about as long as reading this many bytes a token from memory.
inline constexpr int64_t kScanWorkPerToken = 64;

/// The scans of one instruction set.
struct ProbabilityScans {
  double (*mass_from)(const float* p, int64_t count, float threshold);
  int64_t (*gather_from)(const float* p, int64_t count, float threshold, float* out);
  Kept (*top_k)(const float* p, int64_t count, int64_t k, float* room);
  Kept (*top_p)(const float* p, int64_t count, double target, float* room);
  float (*largest)(const float* p, int64_t count);
  bool (*has_nan)(const float* p, int64_t count);
};

inline constexpr ProbabilityScans kPortableScans{
    mass_from, gather_from, top_k_threshold, top_p_threshold, largest_probability, has_nan};
inline constexpr ProbabilityScans kAvx512Scans{avx512::mass_from,           avx512::gather_from,
                                               avx512::top_k_threshold,     avx512::top_p_threshold,
                                               avx512::largest_probability, avx512::has_nan};

/// The first token, ascending, among those that are not below the threshold, whose running mass
/// exceeds uniform * (their mass); the last of them where rounding lets none exceed it; -1 if they
/// have no mass.
int32_t draw_token(
    const ProbabilityScans& scans, const float* p, int64_t count, float threshold, double uniform);

}  // namespace fathom
