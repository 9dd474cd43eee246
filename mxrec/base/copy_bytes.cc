#include "mxrec/base/copy_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace mxrec {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kTooNear = 64;
// Below the sizes from which C libraries copy by `rep movsb`.
constexpr size_t kPiece = 2048;

}  // namespace

void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const size_t behind = (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPage;
  if (bytes <= kPiece || behind == 0 || behind >= kTooNear) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (size_t at = 0; at < bytes; at += kPiece) {
    std::memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, std::min(kPiece, bytes - at));
  }
}

}  // namespace mxrec
