// SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104), for the hello of ranks: a few hundred bytes a connection, so the code is plain
// and brings no library along.
#ifndef MXREC_COMM_CONTROL_SHA256_H_
#define MXREC_COMM_CONTROL_SHA256_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace mxrec {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view bytes);
Sha256Digest HmacSha256(std::string_view key, std::string_view bytes);
// Takes equally long whatever differs.
bool SameDigest(const Sha256Digest& a, std::string_view b);

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_SHA256_H_
