// The kinds of values that options have: how a text becomes one, and back. For the table of
// options.cc alone.
//
// A kind has read(options, text), false for no such value; get(options), the text that read takes;
// holds(options) where a value has limits; and expected(), what messages say, or words(), where all
// values are words.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/api/options.h"

namespace fathom::option {

using O = EngineOptions;

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// "8k" is 8192, "2m" 2 Mi: counts of tokens are often written so. "010" is no way to write ten.
inline std::optional<int64_t> parse_count(std::string_view text) {
  int64_t scale = 1;
  if (!text.empty()) {
    const char last = text.back();
    if (last == 'k' || last == 'K') scale = 1024;
    if (last == 'm' || last == 'M') scale = 1024 * 1024;
    if (scale != 1) text.remove_suffix(1);
  }
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  const auto value = parse_number<int64_t>(text);
  int64_t product = 0;
  if (!value || __builtin_mul_overflow(*value, scale, &product)) return std::nullopt;
  return product;
}

inline std::optional<bool> parse_switch(std::string_view text) {
  if (text.empty() || text == "true" || text == "on" || text == "1") return true;
  if (text == "false" || text == "off" || text == "0") return false;
  return std::nullopt;
}

// ---- Words of the values that are not spelled as their types are

inline std::string_view word_of(std::optional<PresetFormatName> v) {
  return v ? preset_format_name(*v) : "";
}

inline std::string_view word_of(std::optional<Isa> v) {
  return v ? isa_name(*v) : "auto";
}

inline std::string_view word_of(std::optional<Format> v) {
  if (!v) return "auto";
  return *v == Format::kE4m3 ? "fp8_e4m3" : format_name(*v);
}

inline std::string_view word_of(std::optional<MoeStrategy> v) {
  return v ? moe_rows()[static_cast<size_t>(moe_row(*v).index)].name : "auto";
}

inline std::string_view word_of(Nvfp4Inputs v) {
  return v == Nvfp4Inputs::kExact ? "auto" : "nvfp4";
}

inline std::string_view word_of(MoeActivations v) {
  return v == MoeActivations::kAuto ? "auto" : "fp8";
}

inline std::string_view word_of(AttentionChoice v) {
  constexpr std::string_view kWords[] = {"auto", "absorbed", "fused_rope"};
  return kWords[static_cast<size_t>(v)];
}

inline std::string_view word_of(KvSizing v) {
  return v == KvSizing::kByRequest ? "request" : "remaining";
}

inline std::string_view word_of(Speculative v) {
  return speculative_name(v);
}

inline std::string_view word_of(bool v) {
  return v ? "on" : "off";
}

// ---- Kinds of values: how a text becomes one, and back

struct Text {
  std::string O::*member;

  bool read(O& o, std::string_view text) const {
    o.*member = text;
    return true;
  }

  std::string get(const O& o) const { return o.*member; }

  std::string expected() const { return "a text"; }
};

struct Switch {
  bool O::*member;

  bool read(O& o, std::string_view text) const {
    const auto value = parse_switch(text);
    if (value) o.*member = *value;
    return value.has_value();
  }

  std::string get(const O& o) const { return str_cat(o.*member); }

  std::string expected() const { return "true or false"; }
};

struct Count {
  int64_t O::*member;
  int64_t low;
  int64_t high = INT64_MAX;

  bool read(O& o, std::string_view text) const {
    const auto value = parse_count(text);
    if (value) o.*member = *value;
    return value.has_value();
  }

  std::string get(const O& o) const { return str_cat(o.*member); }

  bool holds(const O& o) const { return o.*member >= low && o.*member <= high; }

  std::string expected() const {
    return high == INT64_MAX ? str_cat("an integer of at least ", low)
                             : str_cat("an integer from ", low, " to ", high);
  }
};

// In [0, high], or in (0, high].
struct Real {
  double O::*member;
  int high;
  bool above_zero = false;

  bool read(O& o, std::string_view text) const {
    const auto value = parse_number<double>(text);
    if (value) o.*member = *value;
    return value.has_value();
  }

  std::string get(const O& o) const { return str_cat(o.*member); }

  bool holds(const O& o) const {  // written so that NaN fails
    return (above_zero ? o.*member > 0 : o.*member >= 0) && o.*member <= high;
  }

  std::string expected() const {
    return above_zero ? str_cat("above 0 and at most ", high) : str_cat("0 to ", high);
  }
};

template <auto Member, const auto& Values>
struct Choice {
  std::vector<std::string_view> words() const {
    std::vector<std::string_view> out;
    for (const auto& value : Values)
      out.push_back(word_of(value));
    return out;
  }

  bool read(O& o, std::string_view text) const {
    for (const auto& value : Values) {
      if (word_of(value) != text) continue;
      o.*Member = value;
      return true;
    }
    return false;
  }

  std::string get(const O& o) const { return std::string(word_of(o.*Member)); }

  bool holds(const O& o) const {
    return std::find(std::begin(Values), std::end(Values), o.*Member) != std::end(Values);
  }
};

// The name of a built-in description; whether there is one of that name is asked when it is opened.
struct PresetName : Text {
  std::vector<std::string_view> words() const { return preset_names(); }

  bool read(O& o, std::string_view text) const {
    const std::vector<std::string_view> names = preset_names();
    if (std::find(names.begin(), names.end(), text) == names.end() && !text.empty()) return false;
    return Text::read(o, text);
  }
};

// A number of 64 bits, or "random" where the option may be absent.
template <auto Member>
struct Seed {
  static constexpr bool kRandom = requires(O & o) { (o.*Member).reset(); };

  bool read(O& o, std::string_view text) const {
    const auto value = parse_number<uint64_t>(text);
    if (value) o.*Member = *value;
    if constexpr (kRandom) {
      if (text == "random") o.*Member = {};
      return value || text == "random";
    }
    return value.has_value();
  }

  std::string get(const O& o) const {
    if constexpr (kRandom) {
      return o.*Member ? str_cat(*(o.*Member)) : std::string("random");
    } else {
      return str_cat(o.*Member);
    }
  }

  std::string expected() const {
    return str_cat(kRandom ? "random, or " : "", "an integer from 0 to ", UINT64_MAX);
  }
};

struct Device {
  DeviceChoice O::*member;

  bool read(O& o, std::string_view text) const {
    constexpr std::string_view kCuda = "cuda";
    DeviceChoice& d = o.*member;
    std::optional<int> ordinal = 0;
    if (text.starts_with("cuda:")) {
      text.remove_prefix(kCuda.size() + 1);
      ordinal = parse_number<int>(text);
      text = kCuda;
    }
    if ((text != kCuda && text != "cpu") || !ordinal || *ordinal < 0) return false;
    d.kind = text == kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
    d.ordinal = *ordinal;
    return true;
  }

  std::string get(const O& o) const {
    const DeviceChoice& d = o.*member;
    if (d.kind == DeviceKind::kCpu) return "cpu";
    return d.ordinal == 0 ? std::string("cuda") : str_cat("cuda:", d.ordinal);
  }

  bool holds(const O& o) const { return (o.*member).ordinal >= 0; }

  std::string expected() const { return "cpu, cuda, or cuda:N for the GPU of that number"; }
};

struct PinList {
  Pins O::*member;

  bool read(O& o, std::string_view text) const {
    while (!text.empty()) {
      const std::string_view pin = text.substr(0, text.find(','));
      const size_t equals = pin.find('=');
      if (equals == std::string_view::npos || equals == 0 || equals + 1 == pin.size()) return false;
      (o.*member).emplace_back(pin.substr(0, equals), pin.substr(equals + 1));
      text.remove_prefix(std::min(text.size(), pin.size() + 1));
    }
    return true;
  }

  std::string get(const O& o) const {
    std::string out;
    for (const auto& [op, variant] : o.*member)
      str_append(out, str_cat(out.empty() ? "" : ",", op, "=", variant));
    return out;
  }

  std::string expected() const { return "OP=VARIANT, such as q_b_proj=portable"; }
};

}  // namespace fathom::option
