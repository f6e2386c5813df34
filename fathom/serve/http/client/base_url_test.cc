#include "fathom/serve/http/client/base_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

TEST(BaseUrl, ReadsSchemeHostPortAndPrefix) {
  const auto url = parse_base_url("https://api.example.com:8443/llm/v1/");

  ASSERT_TRUE(url.ok()) << url.status().message();
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "api.example.com");
  EXPECT_EQ(url->port, 8443);
  EXPECT_EQ(url->prefix, "/llm");
  EXPECT_EQ(url->str(), "https://api.example.com:8443/llm");
}

TEST(BaseUrl, PortsOfTheSchemesStayOutOfTheHostHeader) {
  EXPECT_EQ(parse_base_url("http://h")->host_header(), "h");
  EXPECT_EQ(parse_base_url("http://h")->address(), "h:80");
  EXPECT_EQ(parse_base_url("https://h:443/v1")->str(), "https://h");
  EXPECT_EQ(parse_base_url("https://h:80")->host_header(), "h:80");
}

TEST(BaseUrl, AddressesOfVersion6StandInBrackets) {
  const auto url = parse_base_url("http://[::1]:8000");

  ASSERT_TRUE(url.ok()) << url.status().message();
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->address(), "[::1]:8000");
}

TEST(BaseUrl, RefusesWhatIsNoAddress) {
  for (const char* text :
       {"", "localhost:8000", "ftp://h", "http://", "http://:8000", "http://h:0", "http://h:65536",
        "http://h:8000x", "http://h:", "http://user@h", "http://h/?q=1", "http://h/#a",
        "http://[::1", "http://[::1]8000", "http://h ost", "http://h\r\nX: y"}) {
    const auto url = parse_base_url(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_EQ(url.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(url.status().message(), testing::HasSubstr(text));
  }
}

}  // namespace
}  // namespace fathom::serve
