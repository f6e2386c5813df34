#include "fathom/serve/load/server_counters.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace fathom::serve {
namespace {

constexpr size_t kMostPlaces = 64;

struct Sample {
  std::string_view name;    // behind the prefix
  std::string_view labels;  // within the braces
  double value = 0;
};

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || at == text.data()) return std::nullopt;
  return value;
}

std::optional<Sample> read_sample(std::string_view line) {
  if (line.empty() || line.front() == '#') return std::nullopt;
  const size_t name_end = std::min(line.find_first_of("{ "), line.size());
  Sample s{.name = line.substr(0, name_end), .labels = {}};
  if (const size_t colon = s.name.find(':'); colon != std::string_view::npos) {
    s.name.remove_prefix(colon + 1);
  }
  line.remove_prefix(name_end);
  if (line.starts_with('{')) {
    const size_t end = line.rfind('}');
    if (end == std::string_view::npos) return std::nullopt;
    s.labels = line.substr(1, end - 1);
    line.remove_prefix(end + 1);
  }
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const auto value = number_of<double>(line);
  if (!value) return std::nullopt;
  s.value = *value;
  return s;
}

size_t place_of(std::string_view labels) {
  constexpr std::string_view kPosition = "position=\"";
  const size_t at = labels.find(kPosition);
  if (at == std::string_view::npos) return kMostPlaces;
  return number_of<size_t>(labels.substr(at + kPosition.size())).value_or(kMostPlaces);
}

}  // namespace

std::optional<DraftCounters> read_draft_counters(std::string_view metrics) {
  DraftCounters out;
  bool found = false;
  while (!metrics.empty()) {
    const size_t end = std::min(metrics.find('\n'), metrics.size());
    const std::optional<Sample> sample = read_sample(metrics.substr(0, end));
    metrics.remove_prefix(std::min(end + 1, metrics.size()));
    if (!sample) continue;
    if (sample->name == "spec_decode_num_drafts_total") {
      out.drafts += sample->value;
      found = true;
    } else if (sample->name == "spec_decode_num_draft_tokens_total") {
      out.draft_tokens += sample->value;
      found = true;
    } else if (sample->name == "spec_decode_num_accepted_tokens_total") {
      out.accepted_tokens += sample->value;
      found = true;
    } else if (sample->name == "spec_decode_num_accepted_tokens_per_pos_total") {
      const size_t place = place_of(sample->labels);
      if (place >= kMostPlaces) continue;
      if (place >= out.accepted_at.size()) out.accepted_at.resize(place + 1);
      out.accepted_at[place] += sample->value;
    }
  }
  if (!found) return std::nullopt;
  return out;
}

DraftCounters operator-(const DraftCounters& after, const DraftCounters& before) {
  DraftCounters out = after;
  out.drafts -= before.drafts;
  out.draft_tokens -= before.draft_tokens;
  out.accepted_tokens -= before.accepted_tokens;
  for (size_t i = 0; i < std::min(out.accepted_at.size(), before.accepted_at.size()); ++i)
    out.accepted_at[i] -= before.accepted_at[i];
  return out;
}

}  // namespace fathom::serve
