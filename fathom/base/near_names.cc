#include "fathom/base/near_names.h"

#include <algorithm>
#include <utility>

#include "fathom/base/str_cat.h"

namespace fathom {

size_t edit_distance(std::string_view a, std::string_view b) {
  // One row of the table at a time: row[j] is the distance of a[0..i) and b[0..j).
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

std::vector<std::string> near_names(std::string_view typed,
                                    std::vector<std::string> names,
                                    size_t limit) {
  std::vector<std::pair<size_t, std::string>> scored;
  for (std::string& name : names) {
    const size_t distance = edit_distance(typed, name);
    if (distance < typed.size() / 2 + 2) scored.emplace_back(distance, std::move(name));
  }
  std::sort(scored.begin(), scored.end());
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(limit, scored.size()); ++i)
    out.push_back(std::move(scored[i].second));
  return out;
}

std::string did_you_mean(const std::vector<std::string>& near, std::string_view end) {
  std::string out;
  for (const std::string& name : near)
    str_append(out, str_cat(out.empty() ? "\nhint: did you mean " : " or ", name));
  if (!out.empty()) out += end;
  return out;
}

}  // namespace fathom
