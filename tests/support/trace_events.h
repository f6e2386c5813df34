// A validator of the trace-event format (the JSON that chrome://tracing and Perfetto read), for the
// two kinds of events that a recording has: complete slices "X" and metadata "M". Written from the
// public description of the format, not from our writer.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/text/json.h"

namespace fathom::test {

struct TraceSlice {
  std::string category;
  std::string name;
  double start = 0;  ///< microseconds
  double end = 0;
  std::vector<std::string> around;  ///< categories from the outermost slice to this one
};

struct TraceEvents {
  std::vector<std::string> errors;  ///< with the index of the event
  std::vector<TraceSlice> slices;   ///< in the order of the file
};

namespace trace_events_internal {

inline bool is_text(const Json* value) {
  return value != nullptr && value->is_string() && !value->as_string().empty();
}

inline bool is_time(const Json* value) {
  return value != nullptr && value->is_number() && std::isfinite(value->as_double()) &&
         value->as_double() >= 0;
}

inline std::string error_of_metadata(const Json& event) {
  const Json* args = event.find("args");
  const std::string& name = event.find("name")->as_string();
  const Json* value = args == nullptr ? nullptr : args->find("name");
  if (name != "process_name" && name != "thread_name") return str_cat("metadata '", name, "'");
  return is_text(value) ? "" : "args.name is no text";
}

/// What is wrong with an event by itself; empty: nothing.
inline std::string error_of(const Json& event) {
  if (!event.is_object()) return "is no object";
  if (!is_text(event.find("ph"))) return "ph is no text";
  if (!is_text(event.find("name"))) return "name is no text";
  for (const char* key : {"pid", "tid"}) {
    const Json* id = event.find(key);
    if (id == nullptr || !id->is_int()) return str_cat(key, " is no integer");
  }
  const Json* args = event.find("args");
  if (args != nullptr && !args->is_object()) return "args is no object";
  const std::string& kind = event.find("ph")->as_string();
  if (kind == "M") return error_of_metadata(event);
  if (kind != "X") return str_cat("ph is '", kind, "', expected X or M");
  for (const char* key : {"ts", "dur"})
    if (!is_time(event.find(key))) return str_cat(key, " is no time");
  return is_text(event.find("cat")) ? "" : "cat is no text";
}

/// Slices of a thread lie within each other or apart; fills in what is around each.
inline void nest(std::vector<std::pair<size_t, TraceSlice*>> thread, TraceEvents& out) {
  constexpr double kSlack = 5e-4;  // half a nanosecond: what decimals lose
  std::stable_sort(thread.begin(), thread.end(), [](const auto& a, const auto& b) {
    if (a.second->start != b.second->start) return a.second->start < b.second->start;
    return a.second->end > b.second->end;
  });
  std::vector<const TraceSlice*> open;
  for (auto& [index, slice] : thread) {
    const auto is_over = [&](const TraceSlice& s) {
      const bool same_begin = std::fabs(s.start - slice->start) < kSlack;
      return s.end <= slice->start + kSlack && !(same_begin && s.end + kSlack >= slice->end);
    };
    while (!open.empty() && is_over(*open.back()))
      open.pop_back();
    if (!open.empty() && slice->end > open.back()->end + kSlack) {
      out.errors.push_back(str_cat("event ", index, ": '", slice->name, "' ends after '",
                                   open.back()->name, "', in which it begins"));
    }
    open.push_back(slice);
    for (const TraceSlice* s : open)
      slice->around.push_back(s->category);
  }
}

}  // namespace trace_events_internal

inline TraceEvents check_trace_events(const Json& document) {
  using namespace trace_events_internal;  // NOLINT
  TraceEvents out;
  const Json* events = document.find("traceEvents");
  if (events == nullptr || !events->is_array()) {
    out.errors.push_back("traceEvents is no array");
    return out;
  }
  const Json* unit = document.find("displayTimeUnit");
  const bool known = unit == nullptr || (unit->is_string() &&
                                         (unit->as_string() == "ms" || unit->as_string() == "ns"));
  if (!known) out.errors.push_back("displayTimeUnit is neither ms nor ns");
  out.slices.reserve(events->items().size());
  std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<size_t, TraceSlice*>>> threads;
  size_t index = 0;
  for (const Json& event : events->items()) {
    const size_t at = index++;
    if (const std::string error = error_of(event); !error.empty()) {
      out.errors.push_back(str_cat("event ", at, ": ", error));
      continue;
    }
    if (event.find("ph")->as_string() == "M") continue;
    const double start = event.find("ts")->as_double();
    out.slices.push_back({.category = event.find("cat")->as_string(),
                          .name = event.find("name")->as_string(),
                          .start = start,
                          .end = start + event.find("dur")->as_double(),
                          .around = {}});
    threads[{event.find("pid")->as_int(), event.find("tid")->as_int()}].push_back(
        {at, &out.slices.back()});
  }
  for (auto& entry : threads)
    nest(std::move(entry.second), out);
  return out;
}

}  // namespace fathom::test
