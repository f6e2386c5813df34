// Changes a JSON document as a document: values, members and keys rather than bytes, so that most
// mutants get past the reader and reach the checks behind it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/text/json.h"

namespace fathom {

/// Members of the document and of the objects in it, arrays included, in document order.
inline void collect_members(Json& json, std::vector<JsonMember*>& out) {
  if (json.is_array()) {
    for (Json& item : json.items())
      collect_members(item, out);
  }
  if (!json.is_object()) return;
  for (JsonMember& member : json.members()) {
    out.push_back(&member);
    collect_members(member.second, out);
  }
}

inline void collect_objects(Json& json, std::vector<Json*>& out) {
  if (!json.is_object()) return;
  out.push_back(&json);
  for (JsonMember& member : json.members())
    collect_objects(member.second, out);
}

inline size_t pick(Rng& rng, size_t count) {
  return rng.next_below(static_cast<uint32_t>(count));
}

/// A value at a border of some limit, or of another kind than a reader expects.
inline Json odd_value(Rng& rng) {
  constexpr std::array<int64_t, 33> kIntegers{
      -1,   0,    1,    2,     3,     4,         7,       8,         15,      16,        32,
      63,   64,   65,   127,   128,   160,       255,     256,       1024,    1025,      2048,
      2049, 4096, 4097, 65536, 65537, 1'048'576, 1 << 24, 1ll << 31, 1 << 28, INT64_MAX, INT64_MIN};
  constexpr std::array<double, 13> kNumbers{0.0,   -0.0,  1.0,    1.0000001, 0.5,  -1.0,    1e-6,
                                            1e-12, 1e300, 1e-300, 2.5,       1e12, 4.9e-324};
  switch (rng.next_below(8)) {
    case 0:
      return Json{};
    case 1:
      return Json::boolean(rng.next_below(2) == 1);
    case 2:
      return Json::number(kNumbers[pick(rng, kNumbers.size())]);
    case 3:
      return Json::string(std::string(pick(rng, 80), 'x'));
    case 4:
      return rng.next_below(2) == 0 ? Json::array({Json::integer(1)}) : Json::object();
    default:
      return Json::integer(kIntegers[pick(rng, kIntegers.size())]);
  }
}

/// A neighbour: plus or minus one, double, half.
inline Json near_value(const Json& json, Rng& rng) {
  if (!json.is_int()) return odd_value(rng);
  const int64_t value = json.as_int();
  if (value < -(1ll << 60) || value > 1ll << 60) return Json::integer(0);
  const std::array<int64_t, 4> near{value - 1, value + 1, value * 2, value / 2};
  return Json::integer(near[pick(rng, near.size())]);
}

/// One change; `keys` are names that readers know.
inline void mutate_json(Json& json, std::span<const std::string_view> keys, Rng& rng) {
  std::vector<Json*> objects;
  std::vector<JsonMember*> members;
  collect_objects(json, objects);
  collect_members(json, members);
  if (objects.empty()) {
    json = odd_value(rng);
    return;
  }
  Json& object = *objects[pick(rng, objects.size())];
  const std::string key(keys[pick(rng, keys.size())]);
  if (members.empty()) {
    object.members().emplace_back(key, odd_value(rng));
    return;
  }
  JsonMember& member = *members[pick(rng, members.size())];
  JsonMember& other = *members[pick(rng, members.size())];
  switch (rng.next_below(8)) {
    case 0:
      object.members().emplace_back(key, odd_value(rng));
      return;
    case 1:
      if (!object.members().empty()) {
        object.members().erase(object.members().begin() +
                               static_cast<int64_t>(pick(rng, object.members().size())));
      }
      return;
    case 2:
      member.first = key;
      return;
    case 3: {
      const Json copy = other.second;
      member.second = copy;
      return;
    }
    case 4:
    case 5:
      member.second = near_value(member.second, rng);
      return;
    default:
      member.second = odd_value(rng);
  }
}

}  // namespace fathom
