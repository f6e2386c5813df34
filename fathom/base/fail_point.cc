#include "fathom/base/fail_point.h"

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

constexpr size_t kNumFields = 4;  // point, action, probability, seed

template <class T>
bool parse_number(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc{} && parsed.ptr == end;
}

Status bad_entry(std::string_view entry, std::string_view expected) {
  return invalid_argument(str_cat("fail point \"", entry, "\": expected ", expected,
                                  "; the form is point:action:probability:seed"));
}

}  // namespace

Result<FailPlan::Entry> FailPlan::parse_entry(std::string_view text) {
  std::array<std::string_view, kNumFields> fields;
  std::string_view rest = text;
  for (size_t i = 0; i < kNumFields; ++i) {
    const size_t colon = rest.find(':');
    if ((colon == std::string_view::npos) != (i + 1 == kNumFields)) {
      return bad_entry(text, "four fields");
    }
    fields[i] = rest.substr(0, colon);
    rest = i + 1 == kNumFields ? std::string_view{} : rest.substr(colon + 1);
  }
  const auto [point, action, probability, seed] = fields;

  Entry entry;
  entry.visits = std::make_unique<std::atomic<uint64_t>>(0);
  entry.point = std::string(point);
  if (point.empty()) return bad_entry(text, "a name before the first colon");
  const bool kills = action == "kill" || action == "kill_nth";
  const bool counts = action == "fail_nth" || action == "kill_nth";
  if (!kills && !counts && action != "fail") {
    return bad_entry(text, "the action fail, kill, fail_nth or kill_nth");
  }
  entry.decision = kills ? Decision::kKill : Decision::kFail;
  if (counts) {
    if (!parse_number(probability, entry.nth) || entry.nth == 0) {
      return bad_entry(text, "a visit number of at least 1");
    }
  } else if (!parse_number(probability, entry.probability) ||
             !(entry.probability >= 0.0 && entry.probability <= 1.0)) {
    return bad_entry(text, "a probability from 0 to 1");
  }
  if (!parse_number(seed, entry.seed)) return bad_entry(text, "a seed from 0 to 2^64 - 1");
  return entry;
}

Result<FailPlan> FailPlan::parse(std::string_view text) {
  FailPlan plan;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    FATHOM_ASSIGN(Entry entry, parse_entry(text.substr(0, comma)));
    plan.entries_.push_back(std::move(entry));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return bad_entry(text, "an entry after the last comma");
  }
  return plan;
}

FailPlan::Decision FailPlan::visit(std::string_view point) {
  Decision decision = Decision::kPass;
  for (Entry& entry : entries_) {  // Every matching entry counts the visit, decided or not.
    if (entry.point != "*" && entry.point != point) continue;
    const uint64_t visit = entry.visits->fetch_add(1);
    bool hit = visit + 1 == entry.nth;
    if (entry.nth == 0) {
      const uint32_t word = philox_block(entry.seed, 0, visit).word[0];
      hit = static_cast<double>(word) * 0x1p-32 < entry.probability;
    }
    if (hit && decision == Decision::kPass) decision = entry.decision;
  }
  return decision;
}

#ifdef FATHOM_FAILPOINTS
namespace internal {

bool fail_point(std::string_view point) {
  static FailPlan plan = [] {
    const char* text = std::getenv("FATHOM_FAIL");
    Result<FailPlan> parsed = FailPlan::parse(text == nullptr ? "" : text);
    FATHOM_CHECK(parsed.ok(), parsed.status().message());
    return std::move(parsed).value();
  }();
  switch (plan.visit(point)) {
    case FailPlan::Decision::kPass:
      return false;
    case FailPlan::Decision::kFail:
      return true;
    case FailPlan::Decision::kKill:
      std::raise(SIGKILL);
  }
  return false;
}

}  // namespace internal
#endif

}  // namespace fathom
