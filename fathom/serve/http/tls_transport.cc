#include <algorithm>
#include <cerrno>
#include <climits>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "fathom/base/str_cat.h"
#include "fathom/serve/http/transport.h"

namespace fathom::serve {
namespace {

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }

  void operator()(SSL* ssl) const { SSL_free(ssl); }

  void operator()(BIO_METHOD* method) const { BIO_meth_free(method); }
};

int fd_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

// OpenSSL's own socket BIO writes with write(), which raises SIGPIPE.
int bio_write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t put =
      send(fd_of(bio), bytes, static_cast<size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (put < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(put);
}

int bio_read(BIO* bio, char* into, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(fd_of(bio), into, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

// NOLINTNEXTLINE(google-runtime-int): the type of OpenSSL.
long bio_ctrl(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

class TlsTransport final : public Transport {
 public:
  explicit TlsTransport(SSL* ssl) : ssl_(ssl) {}

  bool needs_handshake() const override { return true; }

  IoResult handshake() override {
    ERR_clear_error();
    return result(SSL_accept(ssl_.get()));
  }

  IoResult read(std::span<char> into) override {
    ERR_clear_error();
    const int got =
        SSL_read(ssl_.get(), into.data(), static_cast<int>(std::min<size_t>(into.size(), INT_MAX)));
    return result(got);
  }

  IoResult write(std::string_view bytes) override {
    if (bytes.empty()) return {IoState::kDone, 0};
    ERR_clear_error();
    const int put = SSL_write(ssl_.get(), bytes.data(),
                              static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
    return result(put);
  }

  void end_output() override {
    ERR_clear_error();
    if (SSL_is_init_finished(ssl_.get()) == 1 && !failed_) SSL_shutdown(ssl_.get());
    shutdown(fd_of(SSL_get_wbio(ssl_.get())), SHUT_WR);
  }

 private:
  IoResult result(int value) {
    if (value > 0) return {IoState::kDone, static_cast<size_t>(value)};
    switch (SSL_get_error(ssl_.get(), value)) {
      case SSL_ERROR_WANT_READ:
        return {IoState::kWantRead, 0};
      case SSL_ERROR_WANT_WRITE:
        return {IoState::kWantWrite, 0};
      case SSL_ERROR_ZERO_RETURN:
        return {IoState::kEnd, 0};
      default:
        failed_ = true;
        ERR_clear_error();
        return {IoState::kFailed, 0};
    }
  }

  std::unique_ptr<SSL, Free> ssl_;
  bool failed_ = false;
};

class OpenSslContext final : public TlsContext {
 public:
  Status load(const std::string& cert_file, const std::string& key_file) {
    ERR_clear_error();
    method_.reset(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket"));
    context_.reset(SSL_CTX_new(TLS_server_method()));
    if (!method_ || !context_) return out_of_memory("OpenSSL cannot start");
    BIO_meth_set_write(method_.get(), bio_write);
    BIO_meth_set_read(method_.get(), bio_read);
    BIO_meth_set_ctrl(method_.get(), bio_ctrl);
    SSL_CTX* c = context_.get();
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    SSL_CTX_set_options(
        c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    if (SSL_CTX_use_certificate_chain_file(c, cert_file.c_str()) != 1)
      return bad_file("--ssl-certfile", cert_file, "no PEM certificate can be read from it");
    if (SSL_CTX_use_PrivateKey_file(c, key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
      return bad_file("--ssl-keyfile", key_file,
                      "no PEM key of that certificate can be read from it");
    }
    if (SSL_CTX_check_private_key(c) != 1)
      return bad_file("--ssl-keyfile", key_file, "the key is not that of the certificate");
    return {};
  }

  std::unique_ptr<Transport> transport(int fd) override {
    BIO* bio = BIO_new(method_.get());
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
    BIO_set_init(bio, 1);
    SSL* ssl = SSL_new(context_.get());
    if (ssl == nullptr) {
      BIO_free(bio);
      return nullptr;
    }
    SSL_set_bio(ssl, bio, bio);
    return std::make_unique<TlsTransport>(ssl);
  }

 private:
  static Status bad_file(std::string_view flag, const std::string& file, std::string_view found) {
    std::string reason;
    if (const char* text = ERR_reason_error_string(ERR_peek_last_error()))
      reason = str_cat(" (", text, ")");
    ERR_clear_error();
    return invalid_argument(str_cat(flag, " ", file, ": ", found, reason));
  }

  std::unique_ptr<BIO_METHOD, Free> method_;
  std::unique_ptr<SSL_CTX, Free> context_;
};

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::load(const std::string& cert_file,
                                                     const std::string& key_file) {
  auto context = std::make_unique<OpenSslContext>();
  FATHOM_TRY(context->load(cert_file, key_file));
  return std::unique_ptr<TlsContext>(std::move(context));
}

}  // namespace fathom::serve
