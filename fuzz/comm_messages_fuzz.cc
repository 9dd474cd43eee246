// What ranks send each other: frames, hellos, requests, agreements. Anything is refused or means what is written again; whatever
// one rank asks for, the coordinator goes on for the others.
#include <vector>

#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/comm/control/frame.h"
#include "mxrec/comm/control/hello.h"
#include "mxrec/comm/controller/coordinator.h"
#include "mxrec/comm/controller/wire.h"

namespace {

const mxrec::Challenge kChallenge{.nonce = std::string(mxrec::kNonceBytes, 'c')};

void Frames(std::string_view input) {
  mxrec::FrameReader whole(1 << 12), bytewise(1 << 12);
  const auto drain = [](mxrec::FrameReader& reader, std::string* out) {
    for (;;) {
      const auto frame = reader.Next();
      if (!frame.ok()) return false;
      if (!frame->has_value()) return true;
      mxrec::AppendFrame((*frame)->type, (*frame)->payload, out);
    }
  };
  std::string once, piecewise;
  whole.Append(input);
  const bool ok = drain(whole, &once);
  bool still = true;
  for (const char c : input) {
    bytewise.Append({&c, 1});
    still = still && drain(bytewise, &piecewise);
  }
  MXREC_CHECK(ok == still && once == piecewise);
  MXREC_CHECK(input.starts_with(once));
}

void Messages(std::string_view input) {
  if (const auto requests = mxrec::DecodeRequests(input); requests.ok()) {
    const std::string again = mxrec::EncodeRequests(*requests);
    MXREC_CHECK(mxrec::EncodeRequests(mxrec::DecodeRequests(again).value()) == again);
    mxrec::CoordinatorOptions options;
    options.size = 2;
    mxrec::Coordinator coordinator(options);
    const mxrec::Coordinator::Time now{};
    static_cast<void>(coordinator.Take(1, *requests, now));
    static_cast<void>(coordinator.Take(0, *requests, now));
    for (const auto& [rank, agreement] : coordinator.Flush()) {
      MXREC_CHECK(mxrec::DecodeAgreement(mxrec::EncodeAgreement(agreement)).ok());
    }
    static_cast<void>(coordinator.Take(1, *requests, now));
    std::vector<std::string> warnings;
    static_cast<void>(coordinator.CheckStalls(now + std::chrono::seconds(100), &warnings));
  }
  if (const auto agreement = mxrec::DecodeAgreement(input); agreement.ok()) {
    const std::string again = mxrec::EncodeAgreement(*agreement);
    MXREC_CHECK(mxrec::EncodeAgreement(mxrec::DecodeAgreement(again).value()) == again);
  }
  static_cast<void>(mxrec::DecodeChallenge(input));
  if (const auto world = mxrec::DecodeWorld(input); world.ok()) static_cast<void>(mxrec::EncodeWorld(*world));
  // Nobody gets in by chance.
  const auto hello = mxrec::DecodeHello(input, kChallenge, "secret of the fuzz target, not of its seeds");
  MXREC_CHECK(!hello.ok() || hello->version != mxrec::kProtocolVersion);
  MXREC_CHECK(!mxrec::DecodeVerdict(input, kChallenge, "n", "secret of the fuzz target, not of its seeds").ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Frames(input);
  Messages(input);
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  RequestFields fields;
  fields.name = "a";
  fields.shape = {3, 4};
  RequestFields exchange = fields;
  exchange.kind = Collective::kAllToAll;
  exchange.name = std::string("x");
  exchange.splits = {1, 2};
  RequestFields join;
  join.kind = Collective::kJoin;
  RequestFields send = fields;
  send.kind = Collective::kSend;
  send.peer = 1;
  send.name = PointToPointName(0, 1, 0);
  Requests requests;
  requests.ids = {1, 2, 3, 9};
  requests.full = {fields, exchange, send, join};
  requests.rows = {{.id = 2, .rows = 3, .splits = {1, 2}}};
  requests.refusals = {{.group = 0, .name = "r", .parts = 2, .why = "no"}};
  requests.cancels = {{.group = 0, .name = "a", .why = "no"}};
  requests.groups = {{.remove = false, .name = "g", .ranks = {1, 0}}};
  Requests simple;
  simple.full = {fields, exchange};
  Requests leaves = simple;
  leaves.leaves = true;
  Agreement agreement;
  auto execution = std::make_shared<Execution>();
  execution->tensors = {{.id = 1, .name = "a", .joined = {}},
                        {.id = 2, .name = {}, .joined = std::make_shared<const RequestFields>(exchange)}};
  execution->received = {1, 2};
  agreement.executions = {execution};
  agreement.errors = {{.group = 0, .name = "b", .status = InvalidArgumentError("no")}};
  agreement.groups = {{.remove = false, .name = "g", .id = 1, .ranks = {0}, .status = {}}};
  agreement.forget = {4};
  std::string frames;
  AppendFrame(3, "payload", &frames);
  AppendFrame(4, EncodeRequests(requests), &frames);
  Hello hello;
  hello.nonce = std::string(kNonceBytes, 'h');
  hello.size = 2;
  hello.rank = 1;
  World world;
  world.ranks.resize(2);
  return {EncodeRequests(requests),
          EncodeRequests(simple),
          EncodeRequests(leaves),
          EncodeAgreement(agreement),
          frames,
          EncodeChallenge(kChallenge),
          EncodeHello(hello, kChallenge, "s"),
          EncodeVerdict(OkStatus(), kChallenge, "n", "s"),
          EncodeWorld(world)};
}
