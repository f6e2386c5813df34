// A socket, with or without TLS on it.
#pragma once

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <string>

namespace fathom::serve {

/// Operations take Asio's completion handlers. Move-free; shared by the operations in flight.
class OutboundConnection {
 public:
  using Tcp = boost::asio::ip::tcp;
  using Error = boost::system::error_code;
  using Secure = boost::asio::ssl::stream<Tcp::socket&>;

  explicit OutboundConnection(boost::asio::io_context& io) : socket_(io) {}

  Tcp::socket& socket() { return socket_; }

  /// Puts TLS on the connected socket. Names of hosts are told to the server; `verify` holds its
  /// certificate against `host`.
  template <class Handler>
  void handshake(boost::asio::ssl::context& context,
                 const std::string& host,
                 bool verify,
                 Handler handler) {
    secure_.emplace(socket_, context);
    Error ignored;
    boost::asio::ip::make_address(host, ignored);
    if (ignored) SSL_set_tlsext_host_name(secure_->native_handle(), host.c_str());
    secure_->set_verify_mode(verify ? boost::asio::ssl::verify_peer : boost::asio::ssl::verify_none,
                             ignored);
    if (verify)
      secure_->set_verify_callback(boost::asio::ssl::host_name_verification(host), ignored);
    secure_->async_handshake(boost::asio::ssl::stream_base::client, std::move(handler));
  }

  /// Why the certificate was not accepted; empty if that was not the reason.
  std::string certificate_error() {
    if (!secure_) return {};
    const long result = SSL_get_verify_result(secure_->native_handle());
    return result == X509_V_OK ? std::string{} : X509_verify_cert_error_string(result);
  }

  template <class Handler>
  void write(const std::string& bytes, Handler handler) {
    if (secure_) {
      boost::asio::async_write(*secure_, boost::asio::buffer(bytes), std::move(handler));
    } else {
      boost::asio::async_write(socket_, boost::asio::buffer(bytes), std::move(handler));
    }
  }

  template <class Handler>
  void read_some(boost::asio::mutable_buffer into, Handler handler) {
    if (secure_) {
      secure_->async_read_some(into, std::move(handler));
    } else {
      socket_.async_read_some(into, std::move(handler));
    }
  }

  /// Operations in flight end with an error.
  void close() {
    Error ignored;
    socket_.close(ignored);
  }

 private:
  Tcp::socket socket_;
  std::optional<Secure> secure_;
};

}  // namespace fathom::serve
