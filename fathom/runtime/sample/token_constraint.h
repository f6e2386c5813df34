// What an answer may hold, token by token: a grammar, a schema, the frame of tool calls. The engine
// asks before it draws; a grammar library answers (fathom/grammar).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace fathom {

/// How the tokens that are allowed are drawn.
enum class ConstraintPlace : uint8_t {
  kFree,       ///< anything may come: there is no mask
  kPayload,    ///< allowed tokens are drawn as the request says
  kStructure,  ///< the most probable of the allowed tokens is taken
};

/// The state of one answer in its grammar. Used by the engine thread alone; takes no memory after
/// it was made, or little.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Which tokens may come next: bit i % 32 of mask[i / 32] is 1 for id i. The mask has (vocabulary
  /// + 31) / 32 words, and is written whole unless kFree is returned. End tokens are allowed
  /// exactly where the answer may end.
  virtual ConstraintPlace next(std::span<uint32_t> mask) = 0;

  /// This token was chosen, or is followed as a draft. False: it was not allowed, and the state is
  /// as it was before.
  virtual bool accept(int32_t token) = 0;

  /// Takes the last `count` accepted tokens back: drafts, and one more, at most 17.
  virtual void rollback(int64_t count) = 0;
};

}  // namespace fathom
