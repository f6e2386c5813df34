// OpRecord: one kernel call, as the recorder keeps it. Plain data of fixed size.
#pragma once

#include <array>
#include <cstdint>

#include "fathom/formats/format.h"
#include "fathom/tensor/view.h"
#include "fathom/trace/cost.h"
#include "fathom/trace/op.h"

namespace fathom {

enum class Phase : uint8_t { kNone, kPrefill, kDecode, kDraft, kVerify };
enum class Backend : uint8_t { kDry, kCpu, kCuda };

inline constexpr int kMaxOperands = 16;
inline constexpr int kMaxScopeDepth = 6;

const char* phase_name(Phase phase);
const char* backend_name(Backend backend);

/// One step of the scope path, such as {"layer", 12}, with the place that opened it; index -1 when
/// there is none.
struct ScopeName {
  const char* name = nullptr;
  int index = -1;
  CallSite site;
};

struct OperandRecord {
  const char* name = nullptr;  ///< static text of the signature; not null-terminated, see length
  uint8_t name_length = 0;
  bool written = false;
  uint8_t rank = 0;
  Format format = Format::kNone;
  std::array<int64_t, kMaxRank> dims{};
  std::array<int64_t, kMaxRank> strides{};  ///< in elements
  const char* axes = nullptr;
};

struct OpRecord {
  Op op{"", "", "", 0};
  CallSite launch;  ///< the launch itself: what the op's call site led to
  const char* kernel = nullptr;
  const char* variant =
      nullptr;  ///< of a dry run: what the planned device takes; null without plan
  std::array<ScopeName, kMaxScopeDepth> scopes{};
  uint8_t scope_depth = 0;
  Phase phase = Phase::kNone;
  Backend backend = Backend::kDry;
  int16_t selection_row = -1;  ///< row of the layer's selection table, -1 if there was none
  uint8_t num_operands = 0;
  std::array<OperandRecord, kMaxOperands> operands{};
  Cost cost;
  int64_t start_ns = 0;
  int64_t end_ns = 0;       ///< equal to start_ns unless timed
  int32_t statistics = -1;  ///< of its first written operand, see Recorder::statistics(); -1: none
};

}  // namespace fathom
