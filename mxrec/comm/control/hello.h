// The hello of two ranks: each proves that it knows the secret without showing it, and both agree on version, job, rank and size.
//
//   rank 0 -> rank: Challenge  magic, version, 32 random bytes
//   rank -> rank 0: Hello      magic, version, 32 random bytes, what it is, proof over both randoms and all that
//   rank 0 -> rank: Verdict    code, text, proof over the same
//   rank 0 -> rank: World      who the others are, once all have come
// Pure encoding and decoding; rendezvous.h sends it.
#ifndef MXREC_COMM_CONTROL_HELLO_H_
#define MXREC_COMM_CONTROL_HELLO_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/status.h"

namespace mxrec {

inline constexpr uint32_t kProtocolVersion = 2;
inline constexpr size_t kNonceBytes = 32;

enum HelloFrame : uint8_t { kChallengeFrame = 1, kHelloFrame = 2, kVerdictFrame = 3, kWorldFrame = 4 };

struct Challenge {
  uint32_t version = kProtocolVersion;
  std::string nonce;
};

struct Hello {
  uint32_t version = kProtocolVersion;
  std::string nonce;
  std::string job;
  int rank = 0;
  int size = 0;
  std::string host;  // for messages
  int64_t pid = 0;
  // Two ranks with equal ids run on one machine (and one boot of it).
  std::string host_id;
};

struct RankInfo {
  std::string host;
  int64_t pid = 0;
  std::string host_id;
};

struct World {
  // New for every meeting: what two worlds at one place tell each other apart by.
  uint64_t epoch = 0;
  std::vector<RankInfo> ranks;
  // Rank 0's own: all ranks must use the same.
  int64_t fusion_bytes = 0;
  bool deterministic = false;
  uint8_t algorithm = 0;
};

std::string EncodeChallenge(const Challenge& challenge);
Result<Challenge> DecodeChallenge(std::string_view bytes);
// With the proof.
std::string EncodeHello(const Hello& hello, const Challenge& challenge, std::string_view secret);
// DataLoss: not a hello. PermissionDenied: made with another secret, or for another challenge. Does not judge the fields; with
// another `version` nothing but it is read.
Result<Hello> DecodeHello(std::string_view bytes, const Challenge& challenge, std::string_view secret);
// A verdict is OK (welcome) or the reason of a refusal.
std::string EncodeVerdict(const Status& verdict, const Challenge& challenge, std::string_view hello_nonce, std::string_view secret);
// OK: welcome, and rank 0 knows the secret. Else the refusal as rank 0 gave it (nobody needs the secret for that), PermissionDenied
// for a welcome without proof, DataLoss for bytes that are no verdict.
Status DecodeVerdict(std::string_view bytes, const Challenge& challenge, std::string_view hello_nonce, std::string_view secret);
std::string EncodeWorld(const World& world);
Result<World> DecodeWorld(std::string_view bytes);

}  // namespace mxrec

#endif  // MXREC_COMM_CONTROL_HELLO_H_
