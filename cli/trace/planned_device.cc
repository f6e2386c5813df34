#include "cli/trace/planned_device.h"

#include <utility>
#include <vector>

#include "fathom/base/near_names.h"
#include "fathom/base/str_cat.h"
#include "fathom/device/described_gpu.h"

namespace fathom::cli {

Result<PlannedDevice> planned_device(const std::string& name) {
  if (name == "cpu") return PlannedDevice{.name = name};
  if (std::optional<DeviceInfo> gpu = described_gpu(name)) {
    if (!cuda_is_built()) {
      return unavailable(str_cat("--device ", name,
                                 ": this program is built without CUDA, so it has no variants for "
                                 "it; --device cpu shows those of a processor"));
    }
    return PlannedDevice{.name = name, .gpu = *std::move(gpu)};
  }
  if (name.starts_with("cuda")) {
    return invalid_argument(
        "--device cuda is the GPU of a real run; a dry run shows the plan for a GPU by name: h100, "
        "h200, b200 or gb200");
  }
  std::vector<std::string> known = {"cpu"};
  std::string list = "cpu";
  for (const std::string_view gpu : described_gpu_names()) {
    known.emplace_back(gpu);
    str_append(list, str_cat(", ", gpu));
  }
  return invalid_argument(str_cat("--device is '", name, "'; known are ", list,
                                  did_you_mean(near_names(name, std::move(known)))));
}

}  // namespace fathom::cli
