// The shapes of the published benchmark of 23 kernels, and how a kernel author gives a case to each
// of them:
//
//   for (const ReferencePoint& p : reference_points()) {
//     add_reference_case(list, p, {.op = "input_layernorm"}, [&](CaseList& one) {
//       add_rmsnorm_case(one, {.name = "x", .t = p.tokens(), .d = 7168, .bench = true});
//     });
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class CaseList;

inline constexpr std::string_view kReferenceSuite = "reference23";

/// Keys that each sequence of a decode step has in the cache, in rows of whole layers.
inline constexpr int64_t kReferenceContext = 1024;

/// A batch of `batch` sequences with `seq` new tokens each.
struct ReferencePoint {
  std::string_view phase;  ///< "decode" or "prefill"
  int64_t batch = 0;
  int64_t seq = 0;

  int64_t tokens() const { return batch * seq; }

  /// "decode_b8", "prefill_b1_s1024".
  std::string name() const;

  bool operator==(const ReferencePoint&) const = default;
};

/// All of them: decode of 1 to 128 sequences, prefill from 1 x 128 to 8 x 2048.
std::span<const ReferencePoint> reference_points();

/// Which points a kernel is for, where it is not all of them; said beside its cases.
struct ReferenceLimit {
  int64_t least_tokens = 1;
  int64_t most_tokens = 0;      ///< 0: any number
  std::string_view phase = {};  ///< the only one; empty: both
  std::string_view why;

  bool leaves_out(const ReferencePoint& point) const;
};

/// The points that a kernel has rows at. The list keeps the limit, for those who ask why it has
/// none at the others.
std::vector<ReferencePoint> reference_points(CaseList& list,
                                             std::string_view kernel,
                                             const ReferenceLimit& limit);

struct ReferenceCase {
  std::string op{};      ///< the model's name of the step
  std::string suffix{};  ///< tells apart cases of one op at one point, "kv4096"
  double flops = 0;      ///< where a call may be too long for a machine
};

/// What the case of an op is called: "reference_q_b_proj_decode_b8".
std::string reference_case_name(std::string_view op, const ReferencePoint& point);

/// Adds the one case a kernel that `add` gives, renamed after the op and the point, to the suite.
void add_reference_case(CaseList& list,
                        const ReferencePoint& point,
                        const ReferenceCase& names,
                        const std::function<void(CaseList&)>& add);

}  // namespace fathom
