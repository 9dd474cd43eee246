#include "mxrec/base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

namespace mxrec {
namespace {

TEST(StatusTest, DefaultIsOkAndOnePointerWide) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_NE(status.message().data(), nullptr);
  EXPECT_EQ(status.ToString(), "OK");
  EXPECT_EQ(sizeof(Status), sizeof(void*));
}

TEST(StatusTest, CarriesCodeAndMessage) {
  const Status status = DataLossError("file x: block 3");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "file x: block 3");
  std::ostringstream text;
  text << status;
  EXPECT_EQ(text.str(), "DATA_LOSS: file x: block 3");
}

TEST(StatusTest, EveryFactoryGivesItsCode) {
  const std::pair<Status, std::string> cases[] = {
      {CancelledError("m"), "CANCELLED: m"},
      {InvalidArgumentError("m"), "INVALID_ARGUMENT: m"},
      {NotFoundError("m"), "NOT_FOUND: m"},
      {AlreadyExistsError("m"), "ALREADY_EXISTS: m"},
      {PermissionDeniedError("m"), "PERMISSION_DENIED: m"},
      {ResourceExhaustedError("m"), "RESOURCE_EXHAUSTED: m"},
      {FailedPreconditionError("m"), "FAILED_PRECONDITION: m"},
      {AbortedError("m"), "ABORTED: m"},
      {UnimplementedError("m"), "UNIMPLEMENTED: m"},
      {InternalError("m"), "INTERNAL: m"},
      {UnavailableError("m"), "UNAVAILABLE: m"},
      {DataLossError("m"), "DATA_LOSS: m"},
  };
  for (const auto& [status, text] : cases) EXPECT_EQ(status.ToString(), text);
}

TEST(StatusTest, OkCodeDropsTheMessage) { EXPECT_EQ(Status(StatusCode::kOk, "ignored"), OkStatus()); }

TEST(StatusTest, CopiesAreEqualAndIndependent) {
  Status first = NotFoundError("a");
  Status second = first;
  EXPECT_EQ(first, second);
  second = InternalError("b");
  EXPECT_EQ(first.message(), "a");
  const Status& self = second;
  second = self;
  EXPECT_EQ(second.message(), "b");
  second = OkStatus();
  EXPECT_TRUE(second.ok());
  EXPECT_FALSE(first == NotFoundError("b"));
  EXPECT_FALSE(first == InternalError("a"));
}

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgumentError("odd: " + std::to_string(value));
  return value / 2;
}

Result<int> Quarter(int value) {
  MXREC_ASSIGN_OR_RETURN(const int half, Half(value));
  MXREC_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckEven(int value) {
  MXREC_RETURN_IF_ERROR(Half(value).status());
  return OkStatus();
}

TEST(ResultTest, HoldsAValueOrAFailure) {
  EXPECT_EQ(*Half(4), 2);
  EXPECT_TRUE(Half(4).status().ok());
  EXPECT_EQ(Half(3).status().message(), "odd: 3");
}

TEST(ResultTest, MacrosHandFailuresOn) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd: 3");
  EXPECT_TRUE(CheckEven(2).ok());
  EXPECT_FALSE(CheckEven(1).ok());
}

TEST(ResultTest, TakesMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

TEST(ResultDeathTest, ValueOfAFailureStopsTheProcess) {
  EXPECT_DEATH(static_cast<void>(Half(3).value()), "odd: 3");
  EXPECT_DEATH(static_cast<void>(Result<int>(OkStatus())), "needs a value or a failure");
}

}  // namespace
}  // namespace mxrec
