// TLS 1.3 over a socket that does not block, by the OpenSSL 3 of the interpreter (`import ssl`): nothing of it is compiled in or bundled.
//
// A worker makes a key and a certificate as it starts, and keeps them in memory. Who reaches it knows it by the SHA-256 of that
// certificate, in DER, which the pool told it, as 64 hex digits: no authority is asked, and no name or date is looked at (RFC 8446, section
// 4.4.3: the handshake proves that the other side has the certificate's key).
#pragma once

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace forebay {

struct TlsError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The functions of OpenSSL that are used. Whatever calls the first of a group throws TlsError where no OpenSSL 3 is found.
namespace openssl {

// A function of libssl or libcrypto, as OpenSSL 3.0's manual declares it (https://docs.openssl.org/3.0/man3/).
template <typename Signature>
class Function {
 public:
  explicit Function(const char* name) : function_(reinterpret_cast<Signature*>(::dlsym(library(), name))) {
    if (function_ == nullptr) throw TlsError("TLS needs OpenSSL 3 (libssl.so.3), which this interpreter and this host do not have");
  }
  template <typename... Arguments>
  auto operator()(Arguments... arguments) const {
    return function_(arguments...);
  }
  operator Signature*() const { return function_; }

 private:
  // The one that the interpreter has loaded, or else the system's. It has libcrypto with it.
  static void* library() {
    static void* const found = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    return found;
  }

  Signature* function_;
};

struct Errors {
  const Function<unsigned long()> last_error{"ERR_peek_last_error"};
  const Function<void()> clear_errors{"ERR_clear_error"};
  const Function<void(unsigned long, char*, size_t)> error_text{"ERR_error_string_n"};

  // What went wrong last, in OpenSSL's words.
  std::string reason() const {
    std::array<char, 256> text{};
    error_text(last_error(), text.data(), text.size());
    return text.data();
  }
};

struct Certificates {
  const Function<void*(void*, const char*, const char*, ...)> make_key{"EVP_PKEY_Q_keygen"};
  const Function<void(void*)> free_key{"EVP_PKEY_free"};
  const Function<const void*()> sha256{"EVP_sha256"};
  const Function<void*()> new_certificate{"X509_new"};
  const Function<void(void*)> free_certificate{"X509_free"};
  const Function<void*(const void*)> not_before{"X509_getm_notBefore"};
  const Function<void*(const void*)> not_after{"X509_getm_notAfter"};
  const Function<void*(void*, long)> set_time{"X509_gmtime_adj"};
  const Function<int(void*, void*)> set_public_key{"X509_set_pubkey"};
  const Function<int(void*, void*, const void*)> sign{"X509_sign"};
  const Function<int(const void*, const void*, unsigned char*, unsigned int*)> digest{"X509_digest"};

  // The SHA-256 of a certificate, in hex.
  std::string hash_of(const void* certificate) const {
    constexpr char kDigits[] = "0123456789abcdef";
    std::array<uint8_t, 32> hash{};
    if (certificate == nullptr || digest(certificate, sha256(), hash.data(), nullptr) != 1) throw TlsError("the other side shows no certificate");
    std::string text;
    for (const uint8_t byte : hash) {
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
    return text;
  }
};

struct Streams {
  const Function<void*()> client_method{"TLS_client_method"};
  const Function<void*()> server_method{"TLS_server_method"};
  const Function<void*(void*)> new_context{"SSL_CTX_new"};
  const Function<void(void*)> free_context{"SSL_CTX_free"};
  const Function<long(void*, int, long, void*)> control_context{"SSL_CTX_ctrl"};
  const Function<int(void*, size_t)> set_tickets{"SSL_CTX_set_num_tickets"};
  const Function<int(void*, void*)> use_certificate{"SSL_CTX_use_certificate"};
  const Function<int(void*, void*)> use_key{"SSL_CTX_use_PrivateKey"};
  const Function<void*(void*)> new_stream{"SSL_new"};
  const Function<void(void*)> free_stream{"SSL_free"};
  const Function<void(void*, void*, void*)> set_bytes{"SSL_set_bio"};
  const Function<void(void*)> set_connect_state{"SSL_set_connect_state"};
  const Function<void(void*)> set_accept_state{"SSL_set_accept_state"};
  const Function<int(void*)> handshake{"SSL_do_handshake"};
  const Function<int(void*, void*, int)> read{"SSL_read"};
  const Function<int(void*, const void*, int)> write{"SSL_write"};
  const Function<int(const void*, int)> error_of{"SSL_get_error"};
  const Function<void*(const void*)> peer_certificate{"SSL_get1_peer_certificate"};
};

// By which a host is known that shows a certificate of an authority.
struct Authorities {
  const Function<int(void*)> trust_those_of_system{"SSL_CTX_set_default_verify_paths"};
  const Function<void(void*, int, void*)> set_verify{"SSL_set_verify"};
  const Function<int(void*, const char*)> expect_host{"SSL_set1_host"};
  const Function<void*(void*)> parameters{"SSL_get0_param"};
  const Function<int(void*, const char*)> expect_address{"X509_VERIFY_PARAM_set1_ip_asc"};
  const Function<long(void*, int, long, void*)> control_stream{"SSL_ctrl"};
  const Function<long(const void*)> verdict{"SSL_get_verify_result"};
  const Function<const char*(long)> verdict_text{"X509_verify_cert_error_string"};
};

struct Digests {
  const Function<unsigned char*(const unsigned char*, size_t, unsigned char*)> sha1{"SHA1"};
  const Function<int(unsigned char*, const unsigned char*, int)> encode{"EVP_EncodeBlock"};  // in base64
};

struct Bytes {
  const Function<void*(int, const char*)> new_method{"BIO_meth_new"};
  const Function<int(void*, int (*)(void*, const char*, int))> set_write{"BIO_meth_set_write"};
  const Function<int(void*, int (*)(void*, char*, int))> set_read{"BIO_meth_set_read"};
  const Function<int(void*, long (*)(void*, int, long, void*))> set_control{"BIO_meth_set_ctrl"};
  const Function<void*(const void*)> new_bytes{"BIO_new"};
  const Function<void(void*, void*)> set_owner{"BIO_set_data"};
  const Function<void*(void*)> owner{"BIO_get_data"};
  const Function<void(void*, int)> set_begun{"BIO_set_init"};
  const Function<void(void*, int)> set_flags{"BIO_set_flags"};
  const Function<void(void*, int)> clear_flags{"BIO_clear_flags"};
};

template <typename Functions>
const Functions& found() {
  static const Functions functions;
  return functions;
}

inline const Errors& errors() { return found<Errors>(); }
inline const Certificates& certificates() { return found<Certificates>(); }
inline const Streams& streams() { return found<Streams>(); }
inline const Bytes& bytes() { return found<Bytes>(); }
inline const Authorities& authorities() { return found<Authorities>(); }
inline const Digests& digests() { return found<Digests>(); }

}  // namespace openssl

// What all connections of one side have in common.
class TlsContext {
 public:
  static const TlsContext& of_client() {
    static const TlsContext context(openssl::streams().client_method());
    return context;
  }
  // Of who reaches hosts that the system's authorities, or those of SSL_CERT_FILE, know; proxies may speak TLS 1.2 yet.
  static const TlsContext& of_authorities() {
    static const TlsContext context = [] {
      TlsContext made(openssl::streams().client_method(), kTls12);
      openssl::authorities().trust_those_of_system(made.get());
      return made;
    }();
    return context;
  }
  // With a key and a certificate that are made for it. Throws TlsError.
  static TlsContext of_worker() {
    const auto& made = openssl::certificates();
    const auto& streams = openssl::streams();
    TlsContext context(streams.server_method());
    const std::unique_ptr<void, void (*)(void*)> key(made.make_key(nullptr, nullptr, "EC", "P-256"), made.free_key);
    const std::unique_ptr<void, void (*)(void*)> certificate(made.new_certificate(), made.free_certificate);
    bool good = key && certificate && made.set_time(made.not_before(certificate.get()), 0) != nullptr;
    good = good && made.set_time(made.not_after(certificate.get()), kSeconds) != nullptr && made.set_public_key(certificate.get(), key.get()) == 1;
    good = good && made.sign(certificate.get(), key.get(), made.sha256()) > 0;
    good = good && streams.use_certificate(context.get(), certificate.get()) == 1 && streams.use_key(context.get(), key.get()) == 1;
    if (!good) throw TlsError("a key and a certificate cannot be made: " + openssl::errors().reason());
    context.certificate_ = openssl::certificates().hash_of(certificate.get());
    return context;
  }

  void* get() const { return context_.get(); }
  // The hash of this side's certificate.
  const std::string& certificate() const { return certificate_; }

 private:
  static constexpr int kSetMinVersion = 123;  // SSL_CTRL_SET_MIN_PROTO_VERSION, of openssl/ssl.h
  static constexpr long kTls12 = 0x0303, kTls13 = 0x0304;
  static constexpr long kSeconds = 10L * 365 * 24 * 3600;  // nobody looks at it

  explicit TlsContext(void* method, long version_min = kTls13) : context_(openssl::streams().new_context(method), openssl::streams().free_context) {
    if (!context_ || openssl::streams().control_context(get(), kSetMinVersion, version_min, nullptr) != 1) {
      throw TlsError("TLS 1.3 cannot be used: " + openssl::errors().reason());
    }
    openssl::streams().set_tickets(get(), 0);  // a connection that is made again is greeted in full
  }

  std::shared_ptr<void> context_;
  std::string certificate_;
};

// Encrypted bytes between OpenSSL and a socket: many records pass by one call of the system, and none raises SIGPIPE.
class TlsBytes {
 public:
  explicit TlsBytes(int socket) : socket_(socket) {}
  TlsBytes(const TlsBytes&) = delete;
  TlsBytes& operator=(const TlsBytes&) = delete;

  // What OpenSSL reads from and writes to; it owns that, not this.
  void* made_for_openssl() {
    void* const bytes = openssl::bytes().new_bytes(method());
    if (bytes == nullptr) throw TlsError("a TLS connection cannot begin: " + openssl::errors().reason());
    openssl::bytes().set_owner(bytes, this);
    openssl::bytes().set_begun(bytes, 1);
    return bytes;
  }

  bool has_left() const { return gone_ < out_.size(); }
  // Sends what is to go. 0 once all went; else -1, with errno as of send(2) with MSG_DONTWAIT.
  ssize_t flush() {
    while (has_left()) {
      const ssize_t count = ::send(socket_, out_.data() + gone_, out_.size() - gone_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return count;
      gone_ += static_cast<size_t>(count);
    }
    out_.clear();
    gone_ = 0;
    return 0;
  }
  // Receives more, so that there are about so many bytes that OpenSSL has not read. As recv(2), with MSG_DONTWAIT.
  ssize_t fill(size_t bytes) {
    std::memmove(in_.data(), in_.data() + read_, end_ - read_);
    end_ -= std::exchange(read_, 0);
    const size_t most = std::max(bytes, end_ + kFillBytesMin);
    if (in_.size() < most) in_.resize(most);
    const ssize_t count = ::recv(socket_, in_.data() + end_, most - end_, MSG_DONTWAIT);
    if (count > 0) end_ += static_cast<size_t>(count);
    if (count < 0 && errno == EINTR) errno = EAGAIN;
    return count;
  }

 private:
  static constexpr size_t kFillBytesMin = size_t{4} << 10;
  static constexpr int kShouldRetry = 0x08, kRead = 0x01, kFlush = 11;  // BIO_FLAGS_…, BIO_CTRL_FLUSH, of openssl/bio.h

  static TlsBytes& of(void* bytes) { return *static_cast<TlsBytes*>(openssl::bytes().owner(bytes)); }
  static const void* method() {
    static void* const made = [] {
        void* const method = openssl::bytes().new_method(0, "forebay");
      openssl::bytes().set_write(method, [](void* bytes, const char* data, int count) { return of(bytes).take(data, count); });
      openssl::bytes().set_read(method, [](void* bytes, char* target, int count) {
        openssl::bytes().clear_flags(bytes, kShouldRetry | kRead);
        const int got = of(bytes).give(target, count);
        if (got < 0) openssl::bytes().set_flags(bytes, kShouldRetry | kRead);
        return got;
      });
      openssl::bytes().set_control(method, [](void*, int command, long, void*) { return command == kFlush ? 1L : 0L; });
      return method;
    }();
    return made;
  }

  int take(const char* data, int count) {
    out_.insert(out_.end(), data, data + count);
    return count;
  }
  int give(char* target, int count) {
    if (read_ == end_) return -1;
    const size_t bytes = std::min(static_cast<size_t>(count), end_ - read_);
    std::memcpy(target, in_.data() + read_, bytes);
    read_ += bytes;
    return static_cast<int>(bytes);
  }

  const int socket_;
  std::vector<char> out_;  // written by OpenSSL, of which the first `gone_` went
  size_t gone_ = 0;
  std::vector<char> in_;  // received up to `end_`, and read by OpenSSL up to `read_`
  size_t read_ = 0;
  size_t end_ = 0;
};

// A host that is to show a certificate of its name, by an authority.
struct HostName {
  std::string text;  // or an address
};

// One side of a TLS connection over a socket, which it does not own. For one thread at a time.
class TlsStream {
 public:
  enum class Greeting { kGoesOn, kDone, kBroken };
  // With room for so many bytes, `receive` leaves nothing behind that poll(2) does not tell of.
  static constexpr size_t kRoomBytes = size_t{64} << 10;

  // The worker's side.
  TlsStream(const TlsContext& context, int socket) : TlsStream(context, socket, {}) { openssl::streams().set_accept_state(stream_.get()); }
  // The side of who reaches a worker, which must show the certificate with this hash.
  TlsStream(int socket, std::string certificate) : TlsStream(TlsContext::of_client(), socket, std::move(certificate)) {
    openssl::streams().set_connect_state(stream_.get());
  }

  // The side of who reaches a host by its name.
  TlsStream(int socket, const HostName& host) : TlsStream(TlsContext::of_authorities(), socket, {}) {
    const auto& authorities = openssl::authorities();
    const bool is_address = authorities.expect_address(authorities.parameters(stream_.get()), host.text.c_str()) == 1;
    bool good = is_address || authorities.expect_host(stream_.get(), host.text.c_str()) == 1;
    if (!is_address) good = good && authorities.control_stream(stream_.get(), kSetServerName, 0, const_cast<char*>(host.text.c_str())) == 1;
    if (!good) throw TlsError("no certificate can be of the host " + host.text);
    authorities.set_verify(stream_.get(), kVerifyPeer, nullptr);
    openssl::streams().set_connect_state(stream_.get());
  }

  // Called again when the socket is readable, until it is done. Throws TlsError where the other side speaks no TLS or is another one.
  Greeting greet() {
    for (;;) {
      openssl::errors().clear_errors();
      const int result = openssl::streams().handshake(stream_.get());
      const int error = openssl::streams().error_of(stream_.get(), result);
      if (result == 1) check_peer();
      if (error == kProtocolError) throw TlsError(failure());
      if (bytes_.flush() < 0 && errno != EAGAIN) return Greeting::kBroken;
      if (result == 1) return Greeting::kDone;
      const ssize_t count = bytes_.fill(kRecordBytes);
      if (count < 0 && errno == EAGAIN) return Greeting::kGoesOn;
      if (count <= 0) return Greeting::kBroken;
    }
  }

  // As send(2) with MSG_DONTWAIT. Some of what it took may have to wait for the socket: `flush`.
  ssize_t send(const void* data, size_t bytes) {
    if (has_left() && flush() < 0) return -1;
    openssl::errors().clear_errors();
    const int taken = openssl::streams().write(stream_.get(), data, static_cast<int>(std::min(bytes, kTogetherBytes)));
    if (taken <= 0) {
      errno = ECONNRESET;
      return -1;
    }
    return flush() < 0 && errno != EAGAIN ? -1 : taken;
  }
  // Whether something is to go.
  bool has_left() const { return bytes_.has_left(); }
  // Sends it. 0 once all went; else -1, with errno as of send(2).
  ssize_t flush() { return bytes_.flush(); }

  // As recv(2) with MSG_DONTWAIT. EAGAIN: all that came was received.
  ssize_t receive(void* target, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
      openssl::errors().clear_errors();
      const size_t room = std::min(bytes - done, kTogetherBytes);
      const int result = openssl::streams().read(stream_.get(), static_cast<uint8_t*>(target) + done, static_cast<int>(room));
      if (result > 0) {
        done += static_cast<size_t>(result);
        continue;
      }
      if (done > 0) break;
      const int error = openssl::streams().error_of(stream_.get(), result);
      if (error == kZeroReturn) return 0;
      errno = ECONNRESET;
      if (error != kWantRead) return -1;
      const ssize_t count = bytes_.fill(room);
      if (count <= 0) return count;
    }
    return static_cast<ssize_t>(done);
  }

 private:
  static constexpr int kSetServerName = 55, kVerifyPeer = 1;  // SSL_CTRL_SET_TLSEXT_HOSTNAME, SSL_VERIFY_PEER, of openssl/tls1.h and ssl.h
  static constexpr int kProtocolError = 1, kWantRead = 2, kZeroReturn = 6;  // SSL_ERROR_…, of openssl/ssl.h
  static constexpr size_t kRecordBytes = size_t{16} << 10;
  static constexpr size_t kTogetherBytes = size_t{256} << 10;  // encrypted, and received, at once

  TlsStream(const TlsContext& context, int socket, std::string certificate)
      : bytes_(socket), stream_(openssl::streams().new_stream(context.get()), openssl::streams().free_stream), expected_(std::move(certificate)) {
    if (!stream_) throw TlsError("a TLS connection cannot begin: " + openssl::errors().reason());
    void* const bytes = bytes_.made_for_openssl();
    openssl::streams().set_bytes(stream_.get(), bytes, bytes);
  }

  std::string failure() const {
    const long verdict = openssl::authorities().verdict(stream_.get());
    if (verdict != 0) return std::string("its certificate is not to be trusted: ") + openssl::authorities().verdict_text(verdict);
    return "the other side speaks no TLS 1.3: " + openssl::errors().reason();
  }

  void check_peer() const {
    if (expected_.empty()) return;
    const std::unique_ptr<void, void (*)(void*)> shown(openssl::streams().peer_certificate(stream_.get()), openssl::certificates().free_certificate);
    if (openssl::certificates().hash_of(shown.get()) != expected_) {
      throw TlsError("it shows another certificate than the pool told of: another program answers in its place");
    }
  }

  TlsBytes bytes_;
  std::unique_ptr<void, void (*)(void*)> stream_;
  const std::string expected_;  // the hash of the other side's certificate; empty: anybody's
};

}  // namespace forebay
