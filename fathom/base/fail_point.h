// Named fault injection for tests of recovery. A place that can fail in the field asks
// FATHOM_FAIL_POINT("quantize.fsync") and behaves as if the failure had happened when the answer is
// true. Builds without FATHOM_FAILPOINTS answer with the constant false, so the branch vanishes.
//
// A build with FATHOM_FAILPOINTS reads its plan once from the environment:
//
//   FATHOM_FAIL=point:action:probability:seed[,point:action:probability:seed...]
//
//   point        the name in the source, or * for every point
//   action       fail      the point fails with the given probability at each visit
//                kill      the process kills itself (SIGKILL) with that probability
//                fail_nth  the point fails at its Nth visit only; N stands in place of probability
//                kill_nth  the process kills itself at the Nth visit
//   probability  0 to 1, or N >= 1 for the actions in _nth
//   seed         of the random decisions; the same seed decides the same for the same visit
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

/// A parsed FATHOM_FAIL. Thread-safe after parsing.
class FailPlan {
 public:
  enum class Decision { kPass, kFail, kKill };

  /// Reads the text described above; an empty text is a plan in which nothing fails.
  /// InvalidArgument quotes the entry and says what was expected.
  static Result<FailPlan> parse(std::string_view text);

  /// Counts a visit of `point` and decides. The first matching entry that does not pass decides.
  /// An entry for * counts the visits of all points together.
  Decision visit(std::string_view point);

 private:
  struct Entry {
    std::string point;
    Decision decision = Decision::kFail;
    double probability = 0.0;
    uint64_t nth = 0;  // 0: decide by probability
    uint64_t seed = 0;
    std::unique_ptr<std::atomic<uint64_t>> visits;
  };

  static Result<Entry> parse_entry(std::string_view text);

  std::vector<Entry> entries_;
};

#ifdef FATHOM_FAILPOINTS
namespace internal {
/// Visits `point` in the plan of FATHOM_FAIL; true if it shall fail. A malformed plan aborts the
/// process: a test that injects nothing must not pass.
bool fail_point(std::string_view point);
}  // namespace internal

#define FATHOM_FAIL_POINT(name) (::fathom::internal::fail_point(name))
#else
#define FATHOM_FAIL_POINT(name) (false)
#endif

}  // namespace fathom
