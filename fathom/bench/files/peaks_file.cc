#include "fathom/bench/files/peaks_file.h"

#include "fathom/text/json.h"

namespace fathom {
namespace {

struct Rate {
  std::string_view key;
  double Peaks::*value;
};

constexpr Rate kRates[] = {{"read_gbps", &Peaks::read_gbps},   {"copy_gbps", &Peaks::copy_gbps},
                           {"f32_gflops", &Peaks::f32_gflops}, {"bf16_gflops", &Peaks::bf16_gflops},
                           {"fp8_gflops", &Peaks::fp8_gflops}, {"fp4_gflops", &Peaks::fp4_gflops},
                           {"int8_gops", &Peaks::int8_gops}};

struct Name {
  std::string_view key;
  std::string Peaks::*value;
};

constexpr Name kNames[] = {{"device", &Peaks::device},
                           {"source", &Peaks::source},
                           {"f32_unit", &Peaks::f32_unit},
                           {"bf16_unit", &Peaks::bf16_unit},
                           {"int8_unit", &Peaks::int8_unit}};

}  // namespace

void append_peaks(JsonWriter& json, const Peaks& peaks) {
  json.begin_object().key("schema").string(kPeaksSchema);
  for (const Name& name : kNames)
    json.key(name.key).string(peaks.*name.value);
  for (const Rate& rate : kRates)
    json.key(rate.key).number(peaks.*rate.value);
  json.end_object();
}

std::string write_peaks(const Peaks& peaks) {
  JsonWriter json(JsonStyle::kIndented);
  append_peaks(json, peaks);
  return json.take() + "\n";
}

Result<Peaks> read_peaks(std::string_view text, std::string_view path) {
  FATHOM_ASSIGN(const Json json, parse_json(text, {.max_bytes = 1 << 20}, std::string(path)));
  const Json* schema = json.is_object() ? json.find("schema") : nullptr;
  if (schema == nullptr || !schema->is_string() || schema->as_string() != kPeaksSchema) {
    return corrupt(str_cat(path, ": expected an object with \"schema\": \"", kPeaksSchema, "\""));
  }
  Peaks peaks;
  for (const Name& name : kNames) {
    const Json* value = json.find(name.key);
    if (value == nullptr) continue;
    if (!value->is_string()) return corrupt(str_cat(path, ": ", name.key, " is no text"));
    peaks.*name.value = value->as_string();
  }
  for (const Rate& rate : kRates) {
    const Json* value = json.find(rate.key);
    if (value == nullptr || !value->is_number()) {
      return corrupt(str_cat(path, ": ", rate.key, " is missing; expected a number, 0 for none"));
    }
    const double number = value->as_double();
    if (number != 0 && !(number >= kLeastRate && number <= kMostRate)) {
      return corrupt(str_cat(path, ": ", rate.key, " is ", number, ", expected 0 or ", kLeastRate,
                             " to ", kMostRate));
    }
    peaks.*rate.value = number;
  }
  if (peaks.read_gbps <= 0 || peaks.copy_gbps <= 0 || peaks.f32_gflops <= 0) {
    return corrupt(str_cat(path, ": read_gbps, copy_gbps and f32_gflops must be above 0"));
  }
  return peaks;
}

}  // namespace fathom
