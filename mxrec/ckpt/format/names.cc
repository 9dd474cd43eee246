#include "mxrec/ckpt/format/names.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <random>

#include "mxrec/base/hash.h"
#include "mxrec/ckpt/format/table_file.h"

namespace mxrec::format {
namespace {

constexpr std::string_view kStepPrefix = "mxrec-";
constexpr std::string_view kTableSuffix = ".mxt";
constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr size_t kMaxEscaped = 100;

bool IsPlain(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '.'; }

bool AllOf(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

constexpr std::string_view kDecimal = "0123456789";
constexpr std::string_view kHex = "0123456789abcdef";

std::string FiveDigits(uint32_t value) {
  std::string text = std::to_string(value);
  if (text.size() < 5) text.insert(0, 5 - text.size(), '0');
  return text;
}

// Splits at the last '-': returns what follows it and shortens text by both.
std::string_view TakeLastPart(std::string_view* text) {
  const size_t dash = text->rfind('-');
  if (dash == std::string_view::npos) return {};
  const std::string_view part = text->substr(dash + 1);
  *text = text->substr(0, dash);
  return part;
}

// Process ids mean something only on one machine, since its last start, within one process namespace.
uint32_t MachineTag() {
  static const uint32_t tag = [] {
    std::string text(256, '\0');
    if (gethostname(text.data(), text.size() - 1) != 0) text.clear();
    std::string line;
    std::ifstream boot("/proc/sys/kernel/random/boot_id");
    std::getline(boot, line);
    text += line;
    char link[128];
    const ssize_t length = readlink("/proc/self/ns/pid", link, sizeof(link));
    if (length > 0) text.append(link, static_cast<size_t>(length));
    return static_cast<uint32_t>(Hash64(text) >> 32);
  }();
  return tag;
}

}  // namespace

std::string StepDirName(uint64_t step) { return std::string(kStepPrefix) + std::to_string(step); }

std::optional<uint64_t> ParseStepDirName(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  if (!AllOf(digits, kDecimal) || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return step;
}

std::optional<uint64_t> StepOfPath(std::string_view path) {
  const size_t slash = path.rfind('/');
  std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  if (slash != std::string_view::npos) {
    std::string_view folder = path.substr(0, slash);
    if (const size_t before = folder.rfind('/'); before != std::string_view::npos) folder = folder.substr(before + 1);
    if (const std::optional<uint64_t> step = ParseStepDirName(folder)) return step;
  }
  const size_t data = name.rfind(".data-");
  if (data == std::string_view::npos) return std::nullopt;
  name = name.substr(0, data);
  return ParseStepDirName(std::string(kStepPrefix).append(TakeLastPart(&name)));
}

std::string EscapeTableName(std::string_view table) {
  std::string text;
  for (const char c : table) {
    if (IsPlain(c) && !(c == '.' && text.empty())) {
      text.push_back(c);
    } else {
      const unsigned char byte = static_cast<unsigned char>(c);
      text.push_back('%');
      text.push_back(kHex[byte >> 4]);
      text.push_back(kHex[byte & 15]);
    }
  }
  if (text.size() <= kMaxEscaped) return text;
  text.resize(kMaxEscaped - 17);
  text.push_back('%');
  return text + Hex64(Hash64(table));
}

std::string TableFileName(std::string_view table, uint64_t content_tag, uint32_t shard, uint32_t shard_count) {
  return EscapeTableName(table) + "-" + Hex64(content_tag) + "-" + FiveDigits(shard) + "-of-" + FiveDigits(shard_count) +
         std::string(kTableSuffix);
}

bool IsTableFileName(std::string_view name) {
  if (!name.ends_with(kTableSuffix)) return false;
  name.remove_suffix(kTableSuffix.size());
  const std::string_view count = TakeLastPart(&name);
  const std::string_view of = TakeLastPart(&name);
  const std::string_view shard = TakeLastPart(&name);
  const std::string_view tag = TakeLastPart(&name);
  if (count.size() < 5 || !AllOf(count, kDecimal) || of != "of" || shard.size() < 5 || !AllOf(shard, kDecimal)) return false;
  if (tag.size() != 16 || !AllOf(tag, kHex)) return false;
  for (const char c : name) {
    if (!IsPlain(c) && c != '%') return false;
  }
  return name.empty() || name[0] != '.';
}

std::string TemporaryName(std::string_view name) {
  static const uint64_t start = (uint64_t{std::random_device()()} << 32) ^ std::random_device()();
  static std::atomic<uint64_t> calls{0};
  const uint64_t pid = static_cast<uint64_t>(getpid());
  // A forked child continues the parent's numbers; its pid sets it apart.
  const uint64_t unique = Mix64(start + (calls.fetch_add(1) << 1) + Mix64(pid));
  std::string result(name);
  result.append(kTemporaryMark).append(std::to_string(pid)).append("-");
  return result.append(Hex32(MachineTag())).append(Hex32(static_cast<uint32_t>(unique)));
}

bool IsDeadTemporary(std::string_view name) {
  const size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string_view::npos) return false;
  const std::string_view rest = name.substr(mark + kTemporaryMark.size());
  const size_t dash = rest.find('-');
  if (dash == std::string_view::npos || rest.size() - dash - 1 != 16 || !AllOf(rest.substr(dash + 1), kHex)) return false;
  if (rest.substr(dash + 1, 8) != Hex32(MachineTag())) return false;
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + dash, pid);
  if (error != std::errc() || end != rest.data() + dash || pid <= 0) return false;
  return kill(pid, 0) != 0 && errno == ESRCH;
}

bool IsTemporaryName(std::string_view name) {
  const size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string_view::npos) return false;
  std::string_view rest = name.substr(mark + kTemporaryMark.size());
  const std::string_view base = name.substr(0, mark);
  if (const size_t dash = rest.find('-'); dash != std::string_view::npos) {
    const std::string_view unique = rest.substr(dash + 1);
    if (unique.size() != 16 || !AllOf(unique, kHex)) return false;
    rest = rest.substr(0, dash);
  }
  if (!AllOf(rest, kDecimal)) return false;
  return base == kManifestName || base == kLatestName || IsTableFileName(base);
}

}  // namespace mxrec::format
