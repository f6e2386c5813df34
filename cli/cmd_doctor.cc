// doctor: what this machine offers, measured, and the variants of each kernel.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/about/build_facts.h"
#include "cli/command.h"
#include "cli/io/progress.h"
#include "cli/io/terminal.h"
#include "fathom/api/open.h"
#include "fathom/base/hint.h"
#include "fathom/bench/machine/peaks.h"
#include "fathom/device/cuda_build.h"
#include "fathom/device/device.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/memory.h"
#include "fathom/os/nvidia_driver.h"
#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

struct Flags {
  bool json = false;
  bool no_measure = false;
};

std::string feature_list(const CpuFeatures& f) {
  const std::pair<const char*, bool> parts[] = {{"avx2", f.avx2},
                                                {"fma", f.fma},
                                                {"f16c", f.f16c},
                                                {"bmi2", f.bmi2},
                                                {"avx512f", f.avx512f},
                                                {"avx512bw", f.avx512bw},
                                                {"avx512vl", f.avx512vl},
                                                {"avx512dq", f.avx512dq},
                                                {"avx512vbmi", f.avx512vbmi},
                                                {"avx512vnni", f.avx512vnni},
                                                {"avx512bf16", f.avx512bf16},
                                                {"amx_tile", f.amx_tile},
                                                {"amx_bf16", f.amx_bf16},
                                                {"amx_int8", f.amx_int8}};
  std::string have;
  std::string lack;
  for (const auto& [name, present] : parts) {
    std::string& list = present ? have : lack;
    str_append(list, str_cat(list.empty() ? "" : " ", std::string_view(name)));
  }
  return lack.empty() ? have : have + " (without " + lack + ")";
}

// "avx512, then portable": what is tried on this machine, in order.
std::string variants_text(const KernelEntry& kernel, const KernelSet& here) {
  std::string out;
  for (const VariantEntry& v : kernel.variants(here)) {
    str_append(out, str_cat(out.empty() ? "" : ", then ", v.name, v.limits.empty() ? "" : " (",
                            v.limits, v.limits.empty() ? "" : ")"));
  }
  return out.empty() ? "none" : out;
}

std::string verdict(const KernelEntry& kernel, const KernelSet& here) {
  const auto variants = kernel.variants(here);
  if (variants.empty()) return "no";
  return variants.front().needs == Isa::kPortable ? "portable" : "yes";
}

std::string cuda_version(int version) {
  return str_cat(version / 1000, ".", version % 1000 / 10);
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names)
    str_append(out, str_cat(out.empty() ? "" : ", ", name));
  return out;
}

std::vector<std::string> built_sms() {
  std::vector<std::string> names;
  for (const int sm : cuda_build().sms)
    names.push_back(str_cat("sm_", sm));
  return names;
}

std::string cuda_of_build() {
  if (!cuda_is_built()) return "none: built without -DFATHOM_CUDA=ON";
  return str_cat("runtime ", cuda_version(cuda_build().runtime_version), ", code for ",
                 joined(built_sms()));
}

std::string cuda_of_machine() {
  const std::optional<NvidiaDriver> driver = nvidia_driver();
  const int newest = cuda_driver_version();
  if (!driver && newest == 0) return "no NVIDIA driver";
  std::string out = "NVIDIA driver";
  if (driver && !driver->version.empty()) str_append(out, str_cat(" ", driver->version));
  if (newest > 0) str_append(out, str_cat(", for CUDA up to ", cuda_version(newest)));
  if (driver)
    str_append(out, str_cat("; ", driver->gpus.empty() ? "no GPU" : joined(driver->gpus)));
  return out;
}

// The GPUs, or why there is none.
std::string gpu_text() {
  const auto devices = cuda_devices();
  if (!devices.ok()) return in_one_line(devices.status().message());
  std::string out;
  for (const DeviceInfo& gpu : devices.value()) {
    str_append(out, str_cat(out.empty() ? "" : "; ", gpu.name, ", ", format_memory(gpu.total_bytes),
                            ", ", gpu.num_sms, " multiprocessors of sm_", gpu.sm));
  }
  return out;
}

void print_text(const Peaks& peaks, int threads, Isa isa, const KernelSet& here, bool measured) {
  const CpuInfo& cpu = cpu_info();
  const HostMemory memory = host_memory();
  MarkdownTable machine({"machine", "value"});
  machine.add({"processor", cpu.model});
  machine.add(
      {"cores", str_cat(cpu.num_cores, " (", cpu.num_cpus(), " CPUs allowed), ", cpu.num_numa_nodes,
                        " NUMA node", cpu.num_numa_nodes == 1 ? "" : "s")});
  machine.add({"threads used", str_cat(threads)});
  machine.add(
      {"caches", str_cat("L1d ", format_memory(cpu.l1d_bytes), ", L2 ", format_memory(cpu.l2_bytes),
                         ", L3 ", format_memory(cpu.l3_bytes))});
  machine.add({"memory", str_cat(format_memory(memory.total_bytes), ", available ",
                                 format_memory(memory.available_bytes))});
  machine.add({"instruction sets", feature_list(cpu.features)});
  machine.add(
      {"kernels built for", str_cat(cpu_kernels_built(), "; used here: up to ", isa_name(isa))});
  machine.add({"CUDA of this build", cuda_of_build()});
  machine.add({"CUDA of this machine", cuda_of_machine()});
  machine.add({"GPU", gpu_text()});
  machine.add({"build", str_cat("fathom ", std::string_view(FATHOM_VERSION),
#ifdef FATHOM_TRACE
                                ", recording compiled in"
#else
                                ", recording left out"
#endif
                                )});
  std::printf("%s\n", machine.str().c_str());
  if (measured) {
    MarkdownTable rates({"measured now", "value"});
    rates.add({"read from memory", format_fixed(peaks.read_gbps, 1) + " GB/s"});
    rates.add({"copy in memory", format_fixed(peaks.copy_gbps, 1) + " GB/s"});
    rates.add({"float32 multiply-add", format_fixed(peaks.f32_gflops, 0) + " GFLOP/s"});
    rates.add({"bf16 products (" + peaks.bf16_unit + ")",
               format_fixed(peaks.bf16_gflops, 0) + " GFLOP/s"});
    std::printf("%s\n", rates.str().c_str());
  }
  MarkdownTable kernels({"kernel", "family", "cpu", "variants in order", "cuda"});
  for (const KernelEntry& k : all_kernels()) {
    kernels.add({std::string(k.info.name), std::string(k.family), verdict(k, here),
                 variants_text(k, here), k.cuda ? "yes" : "no"});
  }
  std::printf("%s", kernels.str().c_str());
}

Json strings(const std::vector<std::string>& texts) {
  std::vector<Json> out;
  for (const std::string& text : texts)
    out.push_back(Json::string(text));
  return Json::array(std::move(out));
}

Json cuda_json() {
  const auto version = [](int number) {
    return number == 0 ? Json{} : Json::string(cuda_version(number));
  };
  const std::optional<NvidiaDriver> driver = nvidia_driver();
  return Json::object({{"built", Json::boolean(cuda_is_built())},
                       {"runtime", version(cuda_build().runtime_version)},
                       {"architectures", strings(built_sms())},
                       {"driver", driver ? Json::string(driver->version) : Json{}},
                       {"driver_runs_up_to", version(cuda_driver_version())},
                       {"gpus", strings(driver ? driver->gpus : std::vector<std::string>{})}});
}

void print_json(const Peaks& peaks, int threads, Isa isa, const KernelSet& here, bool measured) {
  const CpuInfo& cpu = cpu_info();
  std::vector<Json> kernels;
  for (const KernelEntry& k : all_kernels()) {
    std::vector<Json> variants;
    for (const VariantEntry& v : k.variants(here)) {
      variants.push_back(Json::string(std::string(v.name)));
    }
    kernels.push_back(Json::object({{"kernel", Json::string(std::string(k.info.name))},
                                    {"cpu", Json::string(verdict(k, here))},
                                    {"variants", Json::array(std::move(variants))},
                                    {"cuda", Json::boolean(k.cuda)}}));
  }
  std::vector<JsonMember> root{{"schema", Json::string("fathom.doctor/1")},
                               {"version", Json::string(FATHOM_VERSION)},
                               {"cpu", Json::string(cpu.model)},
                               {"cores", Json::integer(cpu.num_cores)},
                               {"threads", Json::integer(threads)},
                               {"isa", Json::string(std::string(isa_name(isa)))},
                               {"features", Json::string(feature_list(cpu.features))},
                               {"cuda", cuda_json()}};
  if (measured) {
    root.push_back({"read_gb_per_s", Json::number(peaks.read_gbps)});
    root.push_back({"copy_gb_per_s", Json::number(peaks.copy_gbps)});
    root.push_back({"f32_gflops", Json::number(peaks.f32_gflops)});
    root.push_back({"bf16_gflops", Json::number(peaks.bf16_gflops)});
    root.push_back({"bf16_unit", Json::string(peaks.bf16_unit)});
  }
  root.push_back({"kernels", Json::array(std::move(kernels))});
  std::printf("%s\n", dump_json(Json::object(std::move(root)), JsonStyle::kIndented).c_str());
}

Result<int> doctor(const Flags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(const Isa isa, usable_isa(globals.engine));
  const int threads = thread_count(globals.engine);
  Peaks peaks;
  if (!flags.no_measure) {
    FATHOM_ASSIGN(const auto pool, ThreadPool::create(threads, PinThreads::kYes));
    Progress progress("measuring memory and arithmetic", "", globals.quiet);
    progress.update(0, 0, "a few seconds");
    FATHOM_ASSIGN(peaks, measure_peaks(*pool, isa, PeakOptions{}));
  }
  (flags.json ? print_json : print_text)(peaks, threads, isa, KernelSet::for_cpu(isa),
                                         !flags.no_measure);
  return kExitOk;
}

}  // namespace

Command add_doctor(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(
      "doctor", "What this machine offers, measured, and the variants of every kernel");
  sub->add_flag("--json", flags->json, "Print JSON (fathom.doctor/1)");
  sub->add_flag("--no-measure", flags->no_measure, "Skip the bandwidth and rate tests");
  return {sub, [flags](const GlobalFlags& globals) { return doctor(*flags, globals); }};
}

}  // namespace fathom::cli
