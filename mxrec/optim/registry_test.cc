#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "mxrec/optim/optimizer.h"

namespace mxrec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RegistryTest, KindsAreSortedAndComplete) {
  EXPECT_THAT(OptimizerKinds(), ElementsAre("adadelta", "adagrad", "adam", "adamw", "amsgrad", "ftrl", "group_ftrl", "lamb",
                                            "momentum", "rmsprop", "rmsprop_centered", "rowwise_adagrad", "sgd"));
}

TEST(RegistryTest, AnUnknownKindIsNamedWithTheKnownOnes) {
  const auto made = MakeOptimizer("adamm");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("\"adamm\""));
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("adadelta, adagrad, adam, adamw, "));
}

TEST(RegistryTest, AnUnknownOptionIsNamedWithTheKnownOnes) {
  const OptimizerOption options[] = {{"initial_accumulator", 0.1}};
  for (const std::string& kind : OptimizerKinds()) {
    const auto made = MakeOptimizer(kind, options);
    ASSERT_FALSE(made.ok()) << kind;
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(made.status().message()), HasSubstr("\"initial_accumulator\""));
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(kind));
  }
}

TEST(RegistryTest, AnOptionGivenTwiceIsRefused) {
  const OptimizerOption options[] = {{"initial_accumulator_value", 0.1}, {"initial_accumulator_value", 0.2}};
  EXPECT_EQ(MakeOptimizer("adagrad", options).status().code(), StatusCode::kInvalidArgument);
}

TEST(RegistryTest, AdagradTakesItsStartValueAndRefusesOneThatIsNotPositive) {
  EXPECT_THAT(MakeOptimizer("adagrad").value()->slot_initial_values(), ElementsAre(0.1f));
  const OptimizerOption half[] = {{"initial_accumulator_value", 0.5}};
  EXPECT_THAT(MakeOptimizer("adagrad", half).value()->slot_initial_values(), ElementsAre(0.5f));
  for (const double bad : {0.0, -1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    const OptimizerOption option[] = {{"initial_accumulator_value", bad}};
    EXPECT_EQ(MakeOptimizer("adagrad", option).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(RegistryTest, AdamWTakesBothStartStates) {
  EXPECT_THAT(MakeOptimizer("adamw").value()->slot_initial_values(), ElementsAre(0.0f, 0.0f));
  EXPECT_THAT(MakeOptimizer("adamw").value()->scalar_initial_values(), ElementsAre(1.0f, 1.0f));
  const OptimizerOption original[] = {{"initial_state", 1}};
  EXPECT_THAT(MakeOptimizer("adamw", original).value()->slot_initial_values(), ElementsAre(1.0f, 1.0f));
  EXPECT_THAT(MakeOptimizer("adamw", original).value()->scalar_initial_values(), ElementsAre(0.9f, 0.9f));
  const OptimizerOption bad[] = {{"initial_state", 2}};
  EXPECT_EQ(MakeOptimizer("adamw", bad).status().code(), StatusCode::kInvalidArgument);
}

TEST(RegistryTest, CommonOptionsAreCheckedAndRefusedWhereAKindHasItsOwn) {
  for (const std::string& kind : OptimizerKinds()) {
    for (const char* name : {"row_clip_norm", "l2_regularization", "weight_decay"}) {
      for (const double bad : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
        const OptimizerOption option[] = {{name, bad}};
        const Status status = MakeOptimizer(kind, option).status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << kind << " " << name << " " << bad;
        EXPECT_THAT(std::string(status.message()), HasSubstr(name));
      }
      const OptimizerOption off[] = {{name, 0.0}};
      EXPECT_TRUE(MakeOptimizer(kind, off).ok()) << kind << " " << name;
    }
  }
  const OptimizerOption decay[] = {{"weight_decay", 0.1}}, l2[] = {{"l2_regularization", 0.1}};
  for (const char* kind : {"adamw", "lamb", "ftrl", "group_ftrl"}) {
    EXPECT_THAT(std::string(MakeOptimizer(kind, decay).status().message()), HasSubstr("of its own")) << kind;
  }
  for (const char* kind : {"ftrl", "group_ftrl"}) {
    EXPECT_THAT(std::string(MakeOptimizer(kind, l2).status().message()), HasSubstr("of its own")) << kind;
  }
  for (const char* kind : {"sgd", "adam", "rowwise_adagrad"}) {
    EXPECT_TRUE(MakeOptimizer(kind, decay).ok()) << kind;
    EXPECT_TRUE(MakeOptimizer(kind, l2).ok()) << kind;
  }
}

}  // namespace
}  // namespace mxrec
