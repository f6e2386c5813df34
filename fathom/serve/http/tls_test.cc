#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "tests/support/http_server_fixture.h"
#include "tests/support/raw_http_client.h"

namespace fathom::serve {
namespace {

using testing::HasSubstr;

// A key and a certificate that it signed itself, as files.
void write_certificate(const std::string& cert_file, const std::string& key_file) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -60);
  X509_gmtime_adj(X509_getm_notAfter(cert), 3'600);
  X509_set_pubkey(cert, key);
  X509_NAME* name = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(cert, name);
  ASSERT_GT(X509_sign(cert, key, EVP_sha256()), 0);
  FILE* out = fopen(cert_file.c_str(), "w");
  PEM_write_X509(out, cert);
  fclose(out);
  out = fopen(key_file.c_str(), "w");
  PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
  fclose(out);
  X509_free(cert);
  EVP_PKEY_free(key);
}

class Tls : public testing::Test {
 protected:
  void SetUp() override {
    settings_.tls_cert_file = dir_.file("cert.pem");
    settings_.tls_key_file = dir_.file("key.pem");
    write_certificate(settings_.tls_cert_file, settings_.tls_key_file);
  }

  TempDir dir_;
  HttpSettings settings_;
};

class TlsClient {
 public:
  TlsClient(const std::string& address, int max_version = 0) : socket_(address) {
    context_ = SSL_CTX_new(TLS_client_method());
    if (max_version > 0) {
      SSL_CTX_set_min_proto_version(context_, TLS1_VERSION);
      SSL_CTX_set_max_proto_version(context_, max_version);
      SSL_CTX_set_cipher_list(context_, "DEFAULT:@SECLEVEL=0");
    }
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, socket_.descriptor());
    connected = SSL_connect(ssl_) == 1;
  }

  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  void send(const std::string& bytes) {
    ASSERT_EQ(SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())),
              static_cast<int>(bytes.size()));
  }

  std::string until(const std::string& end) {
    std::string all;
    char bytes[16 << 10];
    while (all.find(end) == std::string::npos) {
      const int got = SSL_read(ssl_, bytes, sizeof bytes);
      if (got <= 0) break;
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  }

  /// Bytes until the server ends the connection.
  size_t count_all() {
    size_t count = 0;
    char bytes[16 << 10];
    for (int got = 1; got > 0; count += static_cast<size_t>(got))
      got = std::max(0, SSL_read(ssl_, bytes, sizeof bytes));
    return count;
  }

  RawHttpClient& socket() { return socket_; }

  bool connected = false;

 private:
  RawHttpClient socket_;
  SSL_CTX* context_;
  SSL* ssl_;
};

TEST_F(Tls, ServesRequestsOfAnySize) {
  TestServer server(settings_);
  EXPECT_TRUE(server.address().starts_with("https://127.0.0.1:"));
  TlsClient client(server.address());
  ASSERT_TRUE(client.connected);

  client.send(get("/echo?1"));
  EXPECT_THAT(client.until("GET /echo 1 "), HasSubstr("GET /echo 1 "));
  const std::string body = std::string(300'000, 'x') + "END";
  client.send(post("/echo", body));
  EXPECT_GT(client.until("END").size(), body.size());
}

TEST_F(Tls, WritesMoreThanTheSocketTakes) {
  TestServer server(settings_);
  TlsClient client(server.address());

  client.send(get("/large", "Connection: close\r\n"));

  EXPECT_GT(client.count_all(), 64u << 20);
}

TEST_F(Tls, Takes12And13AndNothingOlder) {
  TestServer server(settings_);
  EXPECT_TRUE(TlsClient(server.address(), TLS1_3_VERSION).connected);
  EXPECT_TRUE(TlsClient(server.address(), TLS1_2_VERSION).connected);
  EXPECT_FALSE(TlsClient(server.address(), TLS1_1_VERSION).connected);
}

TEST_F(Tls, EndsHandshakesThatTakeLong) {
  settings_.header_timeout_ms = 100;
  TestServer server(settings_);
  RawHttpClient silent(server.address());

  EXPECT_TRUE(silent.ended());
}

TEST_F(Tls, EndsAConnectionInTheClear) {
  TestServer server(settings_);
  RawHttpClient clear(server.address());

  clear.send(get("/echo"));
  clear.all();

  EXPECT_EQ(server->counts().requests_total, 0);
}

TEST_F(Tls, HearsOfAClientThatLeaves) {
  TestServer server(settings_);
  TlsClient client(server.address());
  client.send(get("/hold"));
  const ExchangePtr x = server.wait_for_held(1);
  std::promise<void> gone;
  x->on_gone([&] { gone.set_value(); });

  client.socket().leave();

  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST_F(Tls, NamesFilesThatAreNone) {
  const auto message = [&] {
    const auto started = HttpServer::start(settings_, [](const ExchangePtr&) {});
    return started.ok() ? std::string() : started.status().message();
  };
  const HttpSettings good = settings_;
  settings_.tls_cert_file = dir_.file("missing.pem");
  EXPECT_THAT(message(), HasSubstr("--ssl-certfile " + settings_.tls_cert_file));
  settings_ = good;
  settings_.tls_key_file = dir_.file("missing.pem");
  EXPECT_THAT(message(), HasSubstr("--ssl-keyfile " + settings_.tls_key_file));
  settings_ = good;
  write_certificate(dir_.file("cert2.pem"), dir_.file("key2.pem"));
  settings_.tls_key_file = dir_.file("key2.pem");
  EXPECT_THAT(message(), HasSubstr("--ssl-keyfile " + settings_.tls_key_file));
}

}  // namespace
}  // namespace fathom::serve
