#include "fathom/os/cpu_info.h"

#include <gtest/gtest.h>
#include <set>
#include <string>

#include "fathom/os/affinity.h"
#include "fathom/os/file.h"

namespace fathom {
namespace {

CpuFeatures all_features() {
  return {true, true, true, true, true, true, true, true, true, true, true, true, true, true};
}

TEST(Isa, NamesReadBack) {
  for (int i = 0; i < kNumIsas; ++i) {
    const auto isa = static_cast<Isa>(i);
    const auto parsed = parse_isa(isa_name(isa));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, isa);
  }
}

TEST(Isa, UnknownNameListsTheKnownOnes) {
  EXPECT_EQ(parse_isa("sse2").status().message(),
            "unknown instruction set 'sse2', expected one of portable, avx2, avx512, amx");
}

TEST(Isa, LimitOnlyLowers) {
  EXPECT_EQ(*limit_isa("avx2", Isa::kAvx512), Isa::kAvx2);
  EXPECT_EQ(*limit_isa("avx512", Isa::kAvx512), Isa::kAvx512);
  EXPECT_EQ(*limit_isa("auto", Isa::kAvx512), Isa::kAvx512);
  EXPECT_EQ(*limit_isa("", Isa::kPortable), Isa::kPortable);
  const auto raised = limit_isa("amx", Isa::kAvx2);
  EXPECT_EQ(raised.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(raised.status().message(),
            "instruction set amx is not usable on this machine, choose from portable, avx2\n"
            "hint: --isa auto takes the best of them");
}

TEST(Isa, LevelNeedsEveryOneOfItsParts) {
  using Part = bool CpuFeatures::*;
  const Part avx2_parts[] = {&CpuFeatures::avx2, &CpuFeatures::fma, &CpuFeatures::f16c,
                             &CpuFeatures::bmi2};
  const Part avx512_parts[] = {&CpuFeatures::avx512f,    &CpuFeatures::avx512bw,
                               &CpuFeatures::avx512vl,   &CpuFeatures::avx512dq,
                               &CpuFeatures::avx512vbmi, &CpuFeatures::avx512vnni,
                               &CpuFeatures::avx512bf16};
  const Part amx_parts[] = {&CpuFeatures::amx_tile, &CpuFeatures::amx_bf16, &CpuFeatures::amx_int8};
  const auto without = [](Part part) {
    CpuFeatures features = all_features();
    features.*part = false;
    return isa_of(features);
  };

  EXPECT_EQ(isa_of({}), Isa::kPortable);
  EXPECT_EQ(isa_of(all_features()), Isa::kAmx);
  for (const Part part : avx2_parts)
    EXPECT_EQ(without(part), Isa::kPortable);
  for (const Part part : avx512_parts)
    EXPECT_EQ(without(part), Isa::kAvx2);
  for (const Part part : amx_parts)
    EXPECT_EQ(without(part), Isa::kAvx512);
}

// The kernel lists a flag when the processor has it and the kernel saves its registers: the same
// two questions, asked by other code.
TEST(CpuInfo, FeaturesAgreeWithTheKernelsList) {
  const auto text = read_kernel_file("/proc/cpuinfo");
  if (!text.ok()) GTEST_SKIP() << text.status().message();
  const size_t at = text->find("\nflags");
  if (at == std::string::npos) GTEST_SKIP() << "no flags line on this architecture";
  const std::string flags = text->substr(at + 1, text->find('\n', at + 1) - at - 1) + " ";
  const auto has = [&](const char* name) {
    return flags.find(' ' + std::string(name) + ' ') != std::string::npos;
  };
  const CpuFeatures& f = cpu_info().features;

  EXPECT_EQ(f.avx2, has("avx2"));
  EXPECT_EQ(f.fma, has("fma"));
  EXPECT_EQ(f.f16c, has("f16c"));
  EXPECT_EQ(f.bmi2, has("bmi2") && has("bmi1"));
  EXPECT_EQ(f.avx512f, has("avx512f"));
  EXPECT_EQ(f.avx512bw, has("avx512bw"));
  EXPECT_EQ(f.avx512vl, has("avx512vl"));
  EXPECT_EQ(f.avx512dq, has("avx512dq"));
  EXPECT_EQ(f.avx512vbmi, has("avx512vbmi"));
  EXPECT_EQ(f.avx512vnni, has("avx512_vnni"));
  EXPECT_EQ(f.avx512bf16, has("avx512_bf16"));
  EXPECT_EQ(f.amx_tile, has("amx_tile"));
  EXPECT_EQ(f.amx_bf16, has("amx_bf16"));
  EXPECT_EQ(f.amx_int8, has("amx_int8"));
}

TEST(CpuInfo, ModelIsTheKernelsModelName) {
  const auto text = read_kernel_file("/proc/cpuinfo");
  if (!text.ok()) GTEST_SKIP() << text.status().message();
  if (text->find("model name") == std::string::npos)
    GTEST_SKIP() << "no model name on this architecture";

  EXPECT_TRUE(text->find(": " + cpu_info().model) != std::string::npos) << cpu_info().model;
}

TEST(CpuInfo, AllowedCpusAreThoseOfTheProcess) {
  const std::vector<int> affinity = thread_affinity();
  const std::set<int> expected(affinity.begin(), affinity.end());
  const std::set<int> found(cpu_info().allowed_cpus.begin(), cpu_info().allowed_cpus.end());

  EXPECT_EQ(found, expected);
  EXPECT_EQ(cpu_info().num_cpus(), static_cast<int>(expected.size()));
  EXPECT_GE(cpu_info().num_cores, 1);
  EXPECT_LE(cpu_info().num_cores, cpu_info().num_cpus());
  EXPECT_GE(cpu_info().num_numa_nodes, 1);
}

TEST(CpuInfo, BestIsaNeedsAmxPermission) {
  const Isa expected = isa_of(cpu_info().features);
  if (expected == Isa::kAmx) {
    EXPECT_EQ(best_isa(), enable_amx().ok() ? Isa::kAmx : Isa::kAvx512);
  } else {
    EXPECT_EQ(best_isa(), expected);
  }
}

TEST(CpuInfo, AmxIsRefusedWhereThereIsNone) {
  if (cpu_info().features.amx_tile) GTEST_SKIP() << "this processor has AMX";
  EXPECT_EQ(enable_amx().code(), StatusCode::kUnsupported);
}

TEST(ParseCpuList, ReadsNumbersAndRanges) {
  EXPECT_EQ(parse_cpu_list("0-2,5\n"), (std::vector<int>{0, 1, 2, 5}));
  EXPECT_EQ(parse_cpu_list("7"), std::vector<int>{7});
  EXPECT_EQ(parse_cpu_list("0\n"), std::vector<int>{0});
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>{});
}

TEST(ParseCpuList, MalformedTextGivesNothing) {
  for (const char* text : {"a", "-1", "3-1", "1,,2", "0-99999999999", "0-70000", "5-", "1,x"}) {
    EXPECT_EQ(parse_cpu_list(text), std::vector<int>{}) << text;
  }
}

TEST(ParseCacheSize, ReadsUnits) {
  EXPECT_EQ(parse_cache_size("32K\n"), 32 << 10);
  EXPECT_EQ(parse_cache_size("1M"), 1 << 20);
  EXPECT_EQ(parse_cache_size("512"), 512);
  EXPECT_EQ(parse_cache_size("x"), 0);
  EXPECT_EQ(parse_cache_size("-4K"), 0);
  EXPECT_EQ(parse_cache_size("9223372036854775807K"), 0);
}

}  // namespace
}  // namespace fathom
