#include "cli/trace/planned_device.h"

#include <utility>
#include <vector>

#include "fathom/base/near_names.h"
#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

// What kernels ask of a GPU when they choose a variant and size its workspace.
struct Profile {
  std::string_view name;
  int sm;  // compute capability times ten; 0: the CPU
  int num_sms;
  int64_t l2_bytes;
};

constexpr Profile kProfiles[] = {{"cpu", 0, 0, 0},
                                 {"h100", 90, 132, int64_t{50} << 20},
                                 {"h200", 90, 132, int64_t{50} << 20},
                                 {"b200", 100, 148, int64_t{126} << 20},
                                 {"gb200", 100, 148, int64_t{126} << 20}};

DeviceInfo device_of(const Profile& profile) {
  DeviceInfo info;
  info.name = profile.name;
  info.sm = profile.sm;
  info.num_sms = profile.num_sms;
  info.l2_bytes = profile.l2_bytes;
  info.shared_bytes = 227 << 10;
  info.shared_sm_bytes = 228 << 10;
  return info;
}

}  // namespace

Result<PlannedDevice> planned_device(const std::string& name) {
  std::vector<std::string> known;
  std::string list;
  for (const Profile& profile : kProfiles) {
    known.emplace_back(profile.name);
    str_append(list, str_cat(list.empty() ? "" : ", ", profile.name));
    if (name != profile.name) continue;
    if (profile.sm == 0) return PlannedDevice{.name = profile.name};
    if (!cuda_is_built()) {
      return unavailable(str_cat("--device ", name,
                                 ": this program is built without CUDA, so it has no variants for "
                                 "it; --device cpu shows those of a processor"));
    }
    return PlannedDevice{.name = profile.name, .gpu = device_of(profile)};
  }
  if (name.starts_with("cuda")) {
    return invalid_argument(
        "--device cuda is the GPU of a real run; a dry run shows the plan for a GPU by name: h100, "
        "h200, b200 or gb200");
  }
  return invalid_argument(str_cat("--device is '", name, "'; known are ", list,
                                  did_you_mean(near_names(name, std::move(known)))));
}

}  // namespace fathom::cli
