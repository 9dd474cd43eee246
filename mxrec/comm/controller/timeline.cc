#include "mxrec/comm/controller/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mxrec/base/json_text.h"

namespace mxrec::internal {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;

constexpr std::chrono::milliseconds kFlush{500};

double Microseconds(Timeline::Time::duration time) { return duration<double, std::micro>(time).count(); }

}  // namespace

Result<std::unique_ptr<Timeline>> Timeline::Create(const std::string& path, int rank) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return InvalidArgumentError("timeline " + path + " cannot be written: " + std::strerror(errno));
  return std::unique_ptr<Timeline>(new Timeline(file, rank));
}

Timeline::Timeline(std::FILE* file, int rank)
    : file_(file), rank_(rank), start_(std::chrono::steady_clock::now()), next_flush_(start_ + kFlush) {
  std::fputs("[\n", file_);
}

Timeline::~Timeline() {
  std::fputs("\n]\n", file_);
  std::fclose(file_);
}

int Timeline::LaneOf(std::string_view name) {
  const auto [lane, is_new] = lanes_.try_emplace(std::string(name), static_cast<int>(lanes_.size()));
  if (is_new) {
    std::fprintf(file_, "%s{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": %s}}",
                 first_ ? "" : ",\n", rank_, lane->second, JsonText(name).c_str());
    first_ = false;
  }
  return lane->second;
}

void Timeline::Span(std::string_view what, int lane, Time begin, Time end, const std::string& arguments) {
  std::fprintf(file_, "%s{\"name\": %s, \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.1f, \"dur\": %.1f, \"args\": {%s}}",
               first_ ? "" : ",\n", JsonText(what).c_str(), rank_, lane, Microseconds(begin - start_), Microseconds(end - begin),
               arguments.c_str());
  first_ = false;
}

void Timeline::Add(std::string_view name, std::string_view kind, uint64_t bytes, size_t tensors, std::string_view failure,
                   Time asked, Time begin, Time end) {
  const int lane = LaneOf(name);
  asked = std::clamp(asked, start_, begin);
  Span("NEGOTIATE", lane, asked, begin, "");
  std::string arguments = "\"bytes\": " + std::to_string(bytes) + ", \"tensors\": " + std::to_string(tensors);
  if (!failure.empty()) arguments += ", \"failure\": " + JsonText(failure);
  Span(kind, lane, begin, end, arguments);
  if (end < next_flush_) return;
  std::fflush(file_);
  next_flush_ = end + kFlush;
}

}  // namespace mxrec::internal
