#include "mxrec/comm/control/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace mxrec {
namespace {

std::string Hex(const Sha256Digest& digest) {
  std::string hex;
  for (const uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

TEST(Sha256Test, MatchesTheExamplesOfTheStandard) {
  EXPECT_EQ(Hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Sha256(std::string(1'000'000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, EveryLengthAroundTheBlockBordersDiffers) {
  for (size_t n = 0; n < 200; ++n) EXPECT_NE(Hex(Sha256(std::string(n, 'x'))), Hex(Sha256(std::string(n + 1, 'x')))) << n;
}

TEST(Sha256Test, HmacMatchesTheExamplesOfRfc4231) {
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256Test, SameDigestSeesEveryByteAndTheLength) {
  const Sha256Digest digest = Sha256("abc");
  std::string bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
  EXPECT_TRUE(SameDigest(digest, bytes));
  EXPECT_FALSE(SameDigest(digest, bytes.substr(0, 31)));
  for (char& c : bytes) {
    c ^= 1;
    EXPECT_FALSE(SameDigest(digest, bytes));
    c ^= 1;
  }
}

}  // namespace
}  // namespace mxrec
