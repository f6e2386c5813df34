#include "fathom/runtime/held_events.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

struct Heard {
  std::vector<std::string> texts;
  std::vector<int32_t> best;  // of the top log-probabilities
};

std::shared_ptr<EventListener> listener_of(Heard& heard) {
  auto listener = std::make_shared<EventListener>();
  listener->on_token = [&heard](const TokenEvent& e) {
    heard.texts.push_back(str_cat(e.token, ":", e.text, e.stop_text));
    if (!e.top_logprobs.empty()) heard.best.push_back(e.top_logprobs.front().token);
  };
  return listener;
}

TEST(HeldEvents, AreToldInOrderFromCopies) {
  Heard heard;
  const auto listener = listener_of(heard);
  HeldEvents held;
  for (int32_t i = 0; i < 40; ++i) {
    std::string text = str_cat("text ", i);
    std::vector<TokenLogprob> top = {{.token = 100 + i}};
    held.add(listener, {.token = i, .text = text, .top_logprobs = top, .stop_text = text});
    text.assign(text.size(), 'x');
    top.front().token = -1;
  }
  EXPECT_TRUE(heard.texts.empty());

  held.tell_all();
  held.tell_all();

  ASSERT_EQ(heard.texts.size(), 40u);
  for (int32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(heard.texts[static_cast<size_t>(i)], str_cat(i, ":text ", i, "text ", i));
    EXPECT_EQ(heard.best[static_cast<size_t>(i)], 100 + i);
  }
}

TEST(HeldEvents, NothingIsToldBehindAnEndThatCameFirst) {
  Heard heard;
  const auto listener = listener_of(heard);
  HeldEvents held;
  held.add(listener, {.token = 1, .text = "a"});
  held.add(listener, {.token = 2, .text = "b"});
  listener->tell({.text = "cancelled", .finish = FinishReason::kAborted});

  held.tell_all();

  EXPECT_EQ(heard.texts, std::vector<std::string>{"-1:cancelled"});
}

TEST(HeldEvents, ACallbackMayAskForTheRest) {
  HeldEvents held;
  std::vector<int32_t> tokens;
  auto listener = std::make_shared<EventListener>();
  listener->on_token = [&](const TokenEvent& e) {
    held.tell_all();
    tokens.push_back(e.token);
  };
  held.add(listener, {.token = 1, .text = {}});
  held.add(listener, {.token = 2, .text = {}});

  held.tell_all();

  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(listener.use_count(), 1);
}

}  // namespace
}  // namespace fathom
