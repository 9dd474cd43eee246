// Drives a fuzz target without a fuzzing engine, so that targets are part of every build.
//
//   x_fuzz [--seconds=2] [--runs=N] [--seed=1] [--max-bytes=65536]   random and mutated inputs, until either bound is reached
//   x_fuzz FILE|FOLDER...                                            replays inputs, one after the other
//
// Equal seeds give equal inputs. When the target stops the process or takes longer than 10 seconds, the input is written to
// ./<target>-crash-<seed>-<run>, and the line to replay it is printed.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"

extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());

namespace {

constexpr unsigned kSecondsAnInput = 10;

// What the signal handler needs: plain memory only.
const char* g_input = nullptr;
size_t g_input_size = 0;
char g_crash_file[512] = "";
const char* g_program = "";

void Say(const char* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

void WriteCrashFile() {
  if (g_input == nullptr || g_crash_file[0] == '\0') return;
  const int fd = ::open(g_crash_file, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (fd < 0) return;
  size_t done = 0;
  while (done < g_input_size) {
    const ssize_t written = ::write(fd, g_input + done, g_input_size - done);
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  ::close(fd);
  g_input = nullptr;  // once
  Say("replay with: ");
  Say(g_program);
  Say(" ");
  Say(g_crash_file);
  Say("\n");
}

void OnSignal(int number) {
  if (number == SIGALRM) Say("the input takes too long\n");
  WriteCrashFile();
  ::signal(number == SIGALRM ? SIGABRT : number, SIG_DFL);
  ::raise(number == SIGALRM ? SIGABRT : number);
}

void RunOne(std::string_view input) {
  g_input = input.data();
  g_input_size = input.size();
  ::alarm(kSecondsAnInput);
  // A copy of exactly this size on the heap, so that sanitizers see a read past its end.
  const auto copy = std::make_unique<uint8_t[]>(input.size());
  std::copy(input.begin(), input.end(), copy.get());
  LLVMFuzzerTestOneInput(copy.get(), input.size());
  ::alarm(0);
  g_input = nullptr;
}

class Mutator {
 public:
  Mutator(uint64_t seed, size_t max_bytes, const std::vector<std::string>& seeds)
      : random_(seed), max_bytes_(max_bytes), seeds_(seeds) {}

  std::string Next() {
    std::string input;
    if (seeds_.empty() || Below(16) == 0) {
      input.resize(Below(Below(4) == 0 ? 4096 : 64));
      for (char& c : input) c = static_cast<char>(random_());
    } else {
      input = Seed();
      // Mostly few changes: deep inside a decoder only nearly right inputs arrive.
      for (size_t changes = size_t{1} << Below(4); changes > 0; --changes) Change(&input);
    }
    if (input.size() > max_bytes_) input.resize(max_bytes_);
    return input;
  }

 private:
  size_t Below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  const std::string& Seed() { return seeds_[Below(seeds_.size())]; }

  uint64_t Interesting() {
    static constexpr uint64_t kValues[] = {0, 1, 2, 7, 8, 16, 63, 64, 127, 128, 255, 256, 4096, 65535, 65536};
    switch (Below(4)) {
      case 0:
        return (uint64_t{1} << Below(64)) - Below(2);
      case 1:
        return ~uint64_t{0} - Below(16);
      case 2:
        return random_();
      default:
        return kValues[Below(std::size(kValues))];
    }
  }

  void Change(std::string* input) {
    const size_t at = Below(input->size());
    const size_t length = std::min(input->size() - at, Below(Below(8) == 0 ? 256 : 8) + 1);
    switch (Below(9)) {
      case 0:
        if (!input->empty()) (*input)[at] ^= static_cast<char>(1 << Below(8));
        break;
      case 1:
        if (!input->empty()) (*input)[at] = static_cast<char>(Interesting());
        break;
      case 2: {  // a number of 2, 4 or 8 bytes
        const uint64_t value = Interesting();
        const size_t bytes = std::min<size_t>(size_t{2} << Below(3), input->size() - at);
        std::memcpy(input->data() + at, &value, bytes);
        break;
      }
      case 3:
        input->insert(at, std::string(Below(16) + 1, static_cast<char>(Interesting())));
        break;
      case 4:
        input->erase(at, length);
        break;
      case 5:
        input->resize(at);
        break;
      case 6:
        input->insert(at, input->substr(at, length));
        break;
      case 7: {  // a piece moved within the input
        const std::string piece = input->substr(at, length);
        const size_t to = Below(input->size());
        input->replace(to, std::min(piece.size(), input->size() - to), piece);
        break;
      }
      default: {  // the end of another seed
        const std::string& other = Seed();
        input->replace(at, std::string::npos, other, std::min(Below(other.size() + 1), other.size()));
        break;
      }
    }
  }

  std::mt19937_64 random_;
  const size_t max_bytes_;
  const std::vector<std::string>& seeds_;
};

bool ReadFile(const std::filesystem::path& path, std::string* data) {
  std::ifstream in(path, std::ios::binary);
  data->assign(std::istreambuf_iterator<char>(in), {});
  return in.good() || in.eof();
}

int Replay(const std::vector<std::string>& paths) {
  size_t inputs = 0;
  for (const std::string& path : paths) {
    std::vector<std::filesystem::path> files;
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
      std::sort(files.begin(), files.end());
    } else {
      files.emplace_back(path);
    }
    for (const auto& file : files) {
      std::string data;
      if (!std::filesystem::is_regular_file(file) || !ReadFile(file, &data)) {
        std::fprintf(stderr, "%s: cannot be read\n", file.c_str());
        return 2;
      }
      std::fprintf(stderr, "%s: %zu bytes\n", file.c_str(), data.size());
      RunOne(data);
      ++inputs;
    }
  }
  std::printf("%zu inputs replayed\n", inputs);
  return 0;
}

bool ParseFlag(std::string_view argument, std::string_view name, uint64_t* value) {
  if (!argument.starts_with(name) || argument.substr(name.size()).substr(0, 1) != "=") return false;
  const std::string_view text = argument.substr(name.size() + 1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seconds = 2, runs = UINT64_MAX, seed = 1, max_bytes = 65536;
  std::vector<std::string> paths;
  g_program = argv[0];
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (ParseFlag(argument, "--seconds", &seconds) || ParseFlag(argument, "--runs", &runs) ||
        ParseFlag(argument, "--seed", &seed) || ParseFlag(argument, "--max-bytes", &max_bytes)) {
      continue;
    }
    if (argument.starts_with("--")) {
      std::fprintf(stderr,
                   "unknown or wrong option %s\nusage: %s [--seconds=2] [--runs=N] [--seed=1] [--max-bytes=65536] | FILE...\n",
                   argv[i], argv[0]);
      return 2;
    }
    paths.emplace_back(argument);
  }
  if (&__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(&WriteCrashFile);
  for (const int number : {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(number, &OnSignal);
  if (!paths.empty()) return Replay(paths);

  std::vector<std::string> seeds;
  if (&mxrec::FuzzSeeds != nullptr) seeds = mxrec::FuzzSeeds();
  const std::string target = std::filesystem::path(argv[0]).filename().string();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  uint64_t run = 0;
  const auto start_run = [&] {
    ++run;
    std::snprintf(g_crash_file, sizeof(g_crash_file), "%.200s-crash-%llu-%llu", target.c_str(),
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(run));
  };
  for (const std::string& input : seeds) {
    start_run();
    RunOne(input);
  }
  start_run();
  RunOne("");
  Mutator mutator(seed, max_bytes, seeds);
  while (run < runs && std::chrono::steady_clock::now() < end) {
    const std::string input = mutator.Next();
    start_run();
    RunOne(input);
  }
  std::printf("%s: %llu inputs from %zu seeds, seed %llu\n", target.c_str(), static_cast<unsigned long long>(run), seeds.size(),
              static_cast<unsigned long long>(seed));
  return 0;
}
