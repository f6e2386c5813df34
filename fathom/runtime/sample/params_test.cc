#include "fathom/runtime/sample/params.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

namespace fathom {
namespace {

constexpr int64_t kVocabulary = 100;
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

template <class T>
bool valid(T SamplingParams::*field, T value) {
  SamplingParams p;
  p.*field = value;
  const Status status = validate(p, kVocabulary);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(str_cat(value)), std::string::npos) << status.message();
  }
  return status.ok();
}

struct FloatCase {
  const char* name;
  float SamplingParams::*field;
  std::vector<float> good;
  std::vector<float> bad;
};

TEST(SamplingParams, FloatsAreCheckedAtEveryBorder) {
  const float above2 = std::nextafter(2.0f, 3.0f);
  const float above1 = std::nextafter(1.0f, 2.0f);
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<FloatCase> cases = {
      {"temperature", &SamplingParams::temperature, {0, tiny, 1, 2}, {-tiny, -1, above2}},
      {"top_p", &SamplingParams::top_p, {tiny, 0.5f, 1}, {0, -tiny, above1, 2}},
      {"min_p", &SamplingParams::min_p, {0, 0.5f, 1}, {-tiny, above1}},
      {"presence", &SamplingParams::presence_penalty, {-2, 0, 2}, {-above2, above2}},
      {"frequency", &SamplingParams::frequency_penalty, {-2, 0, 2}, {-above2, above2}},
      {"repetition", &SamplingParams::repetition_penalty, {tiny, 1, 10}, {0, -1, 10.001f}},
  };
  for (const FloatCase& c : cases) {
    SCOPED_TRACE(c.name);
    for (float v : c.good)
      EXPECT_TRUE(valid(c.field, v)) << v;
    for (float v : c.bad)
      EXPECT_FALSE(valid(c.field, v)) << v;
    for (float v : {kNan, kInf, -kInf})
      EXPECT_FALSE(valid(c.field, v)) << v;
  }
}

TEST(SamplingParams, CountsAreCheckedAtEveryBorder) {
  for (int64_t k : {-1, 0, 1, 100})
    EXPECT_TRUE(valid(&SamplingParams::top_k, k));
  for (int64_t k : {-2, 101})
    EXPECT_FALSE(valid(&SamplingParams::top_k, k));
  for (int n : {-1, 0, 1, 20})
    EXPECT_TRUE(valid(&SamplingParams::top_logprobs, n));
  for (int n : {-2, 21})
    EXPECT_FALSE(valid(&SamplingParams::top_logprobs, n));
  EXPECT_FALSE(valid(&SamplingParams::min_tokens, int64_t{-1}));
  EXPECT_TRUE(valid(&SamplingParams::min_tokens, int64_t{0}));
  SamplingParams p;
  for (int64_t n : {int64_t{1}, INT64_MAX}) {
    p.max_tokens = n;
    EXPECT_TRUE(validate(p, kVocabulary).ok());
  }
  for (int64_t n : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    p.max_tokens = n;
    EXPECT_FALSE(validate(p, kVocabulary).ok());
  }
  p.max_tokens = 3;
  p.min_tokens = 3;
  EXPECT_TRUE(validate(p, kVocabulary).ok());
  p.min_tokens = 4;
  EXPECT_FALSE(validate(p, kVocabulary).ok());
}

TEST(SamplingParams, StopStringsAreCheckedAtEveryBorder) {
  SamplingParams p;
  p.stop.assign(16, std::string(1024, 'x'));
  EXPECT_TRUE(validate(p, kVocabulary).ok());
  p.stop.emplace_back("y");
  EXPECT_FALSE(validate(p, kVocabulary).ok());
  p.stop = {std::string(1025, 'x')};
  EXPECT_FALSE(validate(p, kVocabulary).ok());
  p.stop = {""};
  EXPECT_FALSE(validate(p, kVocabulary).ok());
  p.stop = {"\xff"};
  EXPECT_FALSE(validate(p, kVocabulary).ok());
}

TEST(SamplingParams, IdsMustBeInTheVocabulary) {
  for (int32_t id : {0, 99}) {
    SamplingParams p;
    p.stop_token_ids = {id};
    p.logit_bias = {{id, 1.0f}};
    EXPECT_TRUE(validate(p, kVocabulary).ok());
  }
  for (int32_t id : {-1, 100, INT32_MAX, INT32_MIN}) {
    SamplingParams stop;
    stop.stop_token_ids = {5, id};
    EXPECT_NE(validate(stop, kVocabulary).message().find("stop_token_ids[1]"), std::string::npos);
    SamplingParams bias;
    bias.logit_bias = {{id, 1.0f}};
    EXPECT_NE(validate(bias, kVocabulary).message().find("logit_bias[0]"), std::string::npos);
  }
  SamplingParams p;
  p.stop_token_ids.assign(64, 1);
  EXPECT_TRUE(validate(p, kVocabulary).ok());
  p.stop_token_ids.push_back(1);
  EXPECT_FALSE(validate(p, kVocabulary).ok());
}

TEST(SamplingParams, BiasIsCheckedAtEveryBorder) {
  for (float v : {-100.0f, 0.0f, 100.0f}) {
    SamplingParams p;
    p.logit_bias = {{3, v}};
    EXPECT_TRUE(validate(p, kVocabulary).ok());
  }
  for (float v : {-100.01f, 100.01f, kNan, kInf, -kInf}) {
    SamplingParams p;
    p.logit_bias = {{3, v}};
    EXPECT_FALSE(validate(p, kVocabulary).ok());
  }
  SamplingParams twice;
  twice.logit_bias = {{3, 1.0f}, {4, 1.0f}, {3, 2.0f}};
  EXPECT_FALSE(validate(twice, kVocabulary).ok());
  SamplingParams many;
  for (int32_t id = 0; id < 1025; ++id)
    many.logit_bias.emplace_back(id, 0.0f);
  EXPECT_FALSE(validate(many, 5000).ok());
  many.logit_bias.pop_back();
  EXPECT_TRUE(validate(many, 5000).ok());
}

}  // namespace
}  // namespace fathom
