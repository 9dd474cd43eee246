#include "mxrec/comm/controller/wire.h"

#include <numeric>

#include "gtest/gtest.h"

namespace mxrec {
namespace {

RequestFields Fields(std::string name) {
  RequestFields fields;
  fields.kind = Collective::kAllToAll;
  fields.group = 3;
  fields.name = std::move(name);
  fields.origin = "model/dense, train.py:12";
  fields.dtype = DType::kBFloat16;
  fields.shape = {7, 0, 1'000'000};
  fields.op = ReduceOp::kMax;
  fields.prescale = 0.1;
  fields.postscale = -3;
  fields.divide_by_size = true;
  fields.root = 2;
  fields.peer = 1;
  fields.tag = -9;
  fields.splits = {3, 4};
  fields.wire = DType::kFloat16;
  fields.parts = 3;
  fields.part = 2;
  return fields;
}

TEST(WireTest, RequestsSurviveTheWay) {
  Requests requests;
  requests.finished = 12;
  requests.ids = {5, 6, 7, 1'000'000};
  requests.rows = {{.id = 8, .rows = 3, .splits = {1, 2}}};
  requests.full = {Fields("a"), Fields(std::string(kMaxNameBytes, 'x'))};
  requests.refusals = {{.group = 1, .name = "r", .parts = 2, .why = "no"}};
  requests.cancels = {{.group = 1, .name = "b", .why = "no"}};
  requests.groups = {{.remove = true, .name = "g", .ranks = {}}, {.remove = false, .name = "h", .ranks = {2, 0}}};
  requests.leaves = true;
  const Requests found = DecodeRequests(EncodeRequests(requests)).value();
  EXPECT_EQ(found.finished, 12);
  EXPECT_EQ(found.ids, requests.ids);
  EXPECT_EQ(found.rows[0].splits, requests.rows[0].splits);
  ASSERT_EQ(found.full.size(), 2);
  EXPECT_EQ(Compare(found.full[0], requests.full[0]), Difference::kNone);
  EXPECT_EQ(found.full[0].origin, requests.full[0].origin);
  EXPECT_EQ(found.full[1].name, requests.full[1].name);
  ASSERT_EQ(found.refusals.size(), 1);
  EXPECT_EQ(found.refusals[0].group, 1);
  EXPECT_EQ(found.refusals[0].name, "r");
  EXPECT_EQ(found.refusals[0].parts, 2);
  EXPECT_EQ(found.refusals[0].why, "no");
  EXPECT_EQ(found.cancels[0].name, "b");
  EXPECT_EQ(found.cancels[0].why, "no");
  EXPECT_TRUE(found.groups[0].remove);
  EXPECT_EQ(found.groups[1].ranks, requests.groups[1].ranks);
  EXPECT_TRUE(found.leaves);
  EXPECT_EQ(EncodeRequests(found), EncodeRequests(requests));
}

TEST(WireTest, AgreementsSurviveTheWay) {
  Agreement agreement;
  agreement.groups = {{.remove = false, .name = "g", .id = 4, .ranks = {1, 0}, .status = {}},
                      {.remove = true, .name = "h", .id = 5, .ranks = {}, .status = NotFoundError("no h")}};
  agreement.forget = {9, 2};
  auto known = std::make_shared<Execution>();
  for (uint64_t id = 1; id <= 200; ++id) known->tensors.push_back({.id = id, .name = {}, .joined = {}});
  auto described = std::make_shared<Execution>();
  described->kind = Collective::kAllGather;
  described->group = 4;
  described->received = {3, 0};
  described->tensors = {{.id = 7, .name = "new", .joined = {}},
                        {.id = 3, .name = {}, .joined = std::make_shared<const RequestFields>(Fields("joined"))},
                        {.id = 5, .name = {}, .joined = {}}};
  agreement.executions = {known, described};
  agreement.errors = {{.group = 1, .name = "bad", .status = InvalidArgumentError("why")}};
  agreement.goodbye = true;
  const std::string bytes = EncodeAgreement(agreement);
  const Agreement found = DecodeAgreement(bytes).value();
  EXPECT_EQ(EncodeAgreement(found), bytes);
  EXPECT_EQ(found.groups[1].status, NotFoundError("no h"));
  EXPECT_EQ(found.forget, agreement.forget);
  EXPECT_EQ(found.executions[0]->tensors[199].id, 200);
  EXPECT_EQ(found.executions[1]->tensors[0].name, "new");
  EXPECT_EQ(found.executions[1]->tensors[1].joined->name, "joined");
  EXPECT_EQ(found.executions[1]->received, described->received);
  EXPECT_EQ(found.errors[0].status, InvalidArgumentError("why"));
}

TEST(WireTest, AStepOfTwoHundredKnownNamesTakesFewBytes) {
  Requests requests;
  requests.ids.resize(200);
  std::iota(requests.ids.begin(), requests.ids.end(), 1);
  EXPECT_LE(EncodeRequests(requests).size(), 16);
  // Every other one: a bit each.
  for (size_t i = 0; i < 200; ++i) requests.ids[i] = 2 * i;
  EXPECT_LE(EncodeRequests(requests).size(), 70);
  EXPECT_EQ(DecodeRequests(EncodeRequests(requests))->ids, requests.ids);
}

TEST(WireTest, NumbersKeepTheirOrder) {
  Requests requests;
  requests.ids = {5, 3, 4, 9, 1ull << 40, 0};
  EXPECT_EQ(DecodeRequests(EncodeRequests(requests))->ids, requests.ids);
}

TEST(WireTest, EveryShorteningAndALongerMessageAreRefused) {
  Requests requests;
  requests.ids = {1, 3, 9};
  requests.full = {Fields("a")};
  requests.groups = {{.remove = false, .name = "h", .ranks = {2, 0}}};
  const std::string bytes = EncodeRequests(requests);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeRequests(std::string_view(bytes).substr(0, n)).ok()) << n;
  EXPECT_FALSE(DecodeRequests(bytes + '\0').ok());
}

TEST(WireTest, AMessageCannotUnfoldToMoreNumbersThanAllowed) {
  Requests requests;
  requests.ids.resize(kMaxIdsInMessage + 1);
  std::iota(requests.ids.begin(), requests.ids.end(), 1);
  EXPECT_FALSE(DecodeRequests(EncodeRequests(requests)).ok());
  requests.ids.pop_back();
  EXPECT_TRUE(DecodeRequests(EncodeRequests(requests)).ok());
}

TEST(WireTest, CompareTellsRowsFromTheRest) {
  const RequestFields fields = Fields("a");
  RequestFields other = fields;
  other.origin = "elsewhere";
  EXPECT_EQ(Compare(fields, other), Difference::kNone);
  other.shape[0] = 8;
  other.splits = {4, 4};
  EXPECT_EQ(Compare(fields, other), Difference::kRows);
  other.shape[1] = 1;
  EXPECT_EQ(Compare(fields, other), Difference::kMore);
  other = fields;
  other.parts = 4;
  EXPECT_EQ(Compare(fields, other), Difference::kMore);
  other = fields;
  other.op = ReduceOp::kMin;
  EXPECT_EQ(Compare(fields, other), Difference::kMore);
}

}  // namespace
}  // namespace mxrec
