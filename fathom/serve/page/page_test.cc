#include "fathom/serve/page/page.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <vector>

namespace fathom::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr size_t kMostBytes = 108 * 1024;

std::string between(std::string_view text, std::string_view open, std::string_view close) {
  const size_t from = text.find(open) + open.size();
  return std::string(text.substr(from, text.find(close, from) - from));
}

std::string header(const HttpReply& reply, std::string_view name) {
  for (const auto& [key, value] : reply.headers) {
    if (key == name) return value;
  }
  return {};
}

HttpRequest request_with_accept(std::string accept) {
  HttpRequest request;
  request.method = "GET";
  request.path = "/";
  if (!accept.empty()) request.headers.emplace_back("Accept", std::move(accept));
  return request;
}

TEST(Page, IsTheFileOfTheSourceTree) {
  std::ifstream file(FATHOM_SOURCE_DIR "/fathom/serve/page/page.html", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();

  ASSERT_FALSE(text.str().empty());
  EXPECT_TRUE(page_html() == text.str()) << "run cmake again: page.html changed";
}

TEST(Page, IsSmall) {
  EXPECT_LE(page_html().size(), kMostBytes);
}

// The digests of "alert(1)" and "p{}", taken with openssl dgst -sha256 -binary | base64.
TEST(Page, PolicyNamesTheHashesOfScriptAndStyle) {
  const std::string policy =
      security_policy_of("<style>p{}</style><p>x</p><script>alert(1)</script>");

  EXPECT_THAT(policy,
              HasSubstr("script-src 'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=';"));
  EXPECT_THAT(policy,
              HasSubstr("style-src 'sha256-gG2yISYereRMiG2lMXrbiUgi0Ubw9p7QCeWcroOvy9Y=';"));
}

TEST(Page, PolicyWithoutScriptAllowsNone) {
  const std::string policy = security_policy_of("<p>x</p><style>p{}");

  EXPECT_THAT(policy, HasSubstr("script-src 'none'; style-src 'none';"));
}

TEST(Page, PolicyAllowsNothingElse) {
  const std::string& policy = page_security_policy();

  EXPECT_THAT(policy, StartsWith("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(policy, HasSubstr("connect-src 'self'; img-src data:;"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(policy, Not(HasSubstr("*")));
}

// One script and one style, so that their hashes cover all that the page runs and applies.
TEST(Page, HasOneScriptAndOneStyle) {
  const std::string html(page_html());
  for (const std::string tag : {"<script", "<style"}) {
    const size_t first = html.find(tag);
    ASSERT_NE(first, std::string::npos) << tag;
    EXPECT_EQ(html.find(tag, first + 1), std::string::npos) << tag;
    EXPECT_EQ(html[first + tag.size()], '>') << tag << " with attributes";
  }
  EXPECT_THAT(html, Not(HasSubstr(" style=\"")));
  EXPECT_THAT(html, Not(HasSubstr(" onclick=")));
}

TEST(Page, LoadsNothingFromElsewhere) {
  const std::string html(page_html());
  const std::string markup = html.substr(0, html.find("<script>"));
  for (const char* word : {"src=", "@import", "url(", "//fonts", "srcset="}) {
    EXPECT_THAT(markup, Not(HasSubstr(word)));
  }
  for (const char* scheme : {"http://", "https://"}) {
    for (const char* before : {"src=\"", "href=\"", "url(", "fetch('", "import '"}) {
      EXPECT_THAT(html, Not(HasSubstr(before + std::string(scheme))));
    }
  }
}

// Requests are relative, so that the page works behind --root-path.
TEST(Page, AsksForRelativeAddresses) {
  const std::string html(page_html());
  for (const std::string route : {"v1/", "health", "metrics", "server_info"}) {
    EXPECT_THAT(html, HasSubstr("'" + route)) << route;
    EXPECT_THAT(html, Not(HasSubstr("'/" + route))) << route;
  }
}

TEST(Page, MakesNoHtmlFromStrings) {
  const std::string script = between(page_html(), "<script>", "</script>");
  for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                           "createContextualFragment", "DOMParser", "srcdoc", "eval(",
                           "new Function", "javascript:"}) {
    EXPECT_THAT(script, Not(HasSubstr(word)));
  }
}

TEST(Page, IsHtmlForBrowsers) {
  const HttpReply reply =
      page_reply(request_with_accept("text/html,application/xhtml+xml,*/*;q=0.8"));

  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(reply.body == page_html());
  EXPECT_EQ(header(reply, "Content-Security-Policy"), page_security_policy());
  EXPECT_EQ(header(reply, "Vary"), "Accept");
}

TEST(Page, IsPlainTextForOthers) {
  for (const char* accept : {"", "*/*", "application/json", "text/plain"}) {
    const HttpReply reply = page_reply(request_with_accept(accept));

    EXPECT_EQ(reply.content_type, "text/plain; charset=utf-8") << accept;
    EXPECT_THAT(reply.body, HasSubstr("v1/chat/completions")) << accept;
    EXPECT_THAT(reply.body, Not(HasSubstr("<"))) << accept;
  }
}

}  // namespace
}  // namespace fathom::serve
