#include "mxrec/comm/control/hello.h"

#include <algorithm>
#include <climits>

#include "mxrec/comm/control/sha256.h"
#include "mxrec/comm/control/status_wire.h"
#include "mxrec/comm/control/wire_bytes.h"

namespace mxrec {
namespace {

constexpr std::string_view kMagic = "mxrec-comm";
constexpr size_t kMaxText = 4096;
constexpr size_t kProofBytes = std::tuple_size_v<Sha256Digest>;

std::string Proof(std::string_view role, const Challenge& challenge, std::string_view hello_nonce, std::string_view fields,
                  std::string_view secret) {
  std::string text;
  WireWriter out(&text);
  out.Bytes(role);
  out.Bytes(challenge.nonce);
  out.Bytes(hello_nonce);
  out.Bytes(fields);
  const Sha256Digest digest = HmacSha256(secret, text);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

bool SameProof(std::string_view expected, std::string_view found) {
  Sha256Digest digest;
  std::copy(expected.begin(), expected.end(), digest.begin());
  return SameDigest(digest, found);
}

Status NoHello(std::string_view what) {
  return DataLossError("the peer does not speak the protocol of mxrec: its " + std::string(what));
}

// The front of challenge and hello.
bool ReadFront(WireReader& in, uint32_t* version) {
  if (in.Bytes(64) != kMagic) return false;
  *version = static_cast<uint32_t>(in.Unsigned(UINT32_MAX));
  return in.ok();
}

}  // namespace

std::string EncodeChallenge(const Challenge& challenge) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Bytes(kMagic);
  out.Unsigned(challenge.version);
  out.Bytes(challenge.nonce);
  return bytes;
}

Result<Challenge> DecodeChallenge(std::string_view bytes) {
  WireReader in(bytes);
  Challenge challenge;
  if (!ReadFront(in, &challenge.version)) return NoHello("challenge");
  if (challenge.version != kProtocolVersion) return challenge;
  challenge.nonce = in.Bytes(kNonceBytes);
  if (!in.done() || challenge.nonce.size() != kNonceBytes) return NoHello("challenge");
  return challenge;
}

std::string EncodeHello(const Hello& hello, const Challenge& challenge, std::string_view secret) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Bytes(kMagic);
  out.Unsigned(hello.version);
  out.Bytes(hello.nonce);
  out.Bytes(hello.job);
  out.Unsigned(static_cast<uint64_t>(hello.rank));
  out.Unsigned(static_cast<uint64_t>(hello.size));
  out.Bytes(hello.host);
  out.Signed(hello.pid);
  out.Bytes(hello.host_id);
  const std::string proof = Proof("rank", challenge, hello.nonce, bytes, secret);
  bytes += proof;
  return bytes;
}

Result<Hello> DecodeHello(std::string_view bytes, const Challenge& challenge, std::string_view secret) {
  WireReader in(bytes);
  Hello hello;
  if (!ReadFront(in, &hello.version)) return NoHello("hello");
  if (hello.version != kProtocolVersion) return hello;
  hello.nonce = in.Bytes(kNonceBytes);
  hello.job = in.Bytes(kMaxText);
  hello.rank = static_cast<int>(in.Unsigned(INT_MAX));
  hello.size = static_cast<int>(in.Unsigned(INT_MAX));
  hello.host = in.Bytes(kMaxText);
  hello.pid = in.Signed();
  hello.host_id = in.Bytes(kMaxText);
  const std::string_view proof = in.Rest();
  if (!in.ok() || hello.nonce.size() != kNonceBytes || proof.size() != kProofBytes) return NoHello("hello");
  if (!SameProof(Proof("rank", challenge, hello.nonce, bytes.substr(0, bytes.size() - kProofBytes), secret), proof)) {
    return PermissionDeniedError("the secret of rank " + std::to_string(hello.rank) + " (" + hello.host + ", process " +
                                 std::to_string(hello.pid) + ") is another than rank 0's");
  }
  return hello;
}

std::string EncodeVerdict(const Status& verdict, const Challenge& challenge, std::string_view hello_nonce,
                          std::string_view secret) {
  std::string bytes;
  WireWriter out(&bytes);
  WriteStatus(verdict, out);
  const std::string proof = Proof("chief", challenge, hello_nonce, bytes, secret);
  bytes += proof;
  return bytes;
}

Status DecodeVerdict(std::string_view bytes, const Challenge& challenge, std::string_view hello_nonce, std::string_view secret) {
  WireReader in(bytes);
  Status verdict = ReadStatus(in);
  const std::string_view proof = in.Rest();
  if (!in.ok() || proof.size() != kProofBytes) return NoHello("answer");
  if (verdict.ok() &&
      !SameProof(Proof("chief", challenge, hello_nonce, bytes.substr(0, bytes.size() - kProofBytes), secret), proof)) {
    return PermissionDeniedError("rank 0 could not prove that it knows the secret");
  }
  return verdict;
}

std::string EncodeWorld(const World& world) {
  std::string bytes;
  WireWriter out(&bytes);
  out.Unsigned(world.epoch);
  out.Signed(world.fusion_bytes);
  out.Byte(world.deterministic ? 1 : 0);
  out.Byte(world.algorithm);
  out.Unsigned(world.ranks.size());
  for (const RankInfo& rank : world.ranks) {
    out.Bytes(rank.host);
    out.Signed(rank.pid);
    out.Bytes(rank.host_id);
  }
  return bytes;
}

Result<World> DecodeWorld(std::string_view bytes) {
  WireReader in(bytes);
  World world;
  world.epoch = in.Unsigned();
  world.fusion_bytes = in.Signed();
  world.deterministic = in.Byte() != 0;
  world.algorithm = in.Byte();
  world.ranks.resize(in.Count(3));
  for (RankInfo& rank : world.ranks) {
    rank.host = in.Bytes(kMaxText);
    rank.pid = in.Signed();
    rank.host_id = in.Bytes(kMaxText);
  }
  if (!in.done()) return NoHello("list of ranks");
  return world;
}

}  // namespace mxrec
