#include "mxrec/engine/table_config.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mxrec/engine/embedding_table.h"

namespace mxrec {
namespace {

using ::testing::HasSubstr;

EmbeddingTableConfig Parsed(const std::string& json) {
  const auto config = EmbeddingTableConfig::FromJson(json);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : EmbeddingTableConfig();
}

TEST(TableConfigTest, NameDimAndVocabularyAreEnough) {
  const EmbeddingTableConfig config = Parsed(R"({"name": "user", "dim": 16, "vocabulary": 1000})");
  EXPECT_EQ(config.table.name, "user");
  EXPECT_EQ(config.table.dim, 16u);
  EXPECT_EQ(config.table.capacity_rows, 1000u);
  EXPECT_EQ(config.table.capacity_policy, CapacityPolicy::kGrow);
  EXPECT_EQ(config.table.initializer, InitializerSpec());
  EXPECT_EQ(config.table.seed, TableSeed("user", 0, 0));
  EXPECT_FALSE(config.table.keep_counts);
  EXPECT_EQ(config.table.max_cold_secs, 0u);
  EXPECT_EQ(config.table.max_bytes, 0u);
  EXPECT_EQ(config.non_finite, NonFinitePolicy::kApply);
  EXPECT_FALSE(config.check_lookups);
}

TEST(TableConfigTest, EveryFieldIsRead) {
  const EmbeddingTableConfig config = Parsed(
      R"({"name": "user", "dim": 2, "vocabulary": 7, "seed": -5, "initializer": {"name": "random_uniform", "params": {"minval": -1, "maxval": 2}},
          "min_used_times": 0, "max_cold_secs": 60, "capacity_policy": "error", "max_bytes": 123456, "non_finite": "skip", "check_lookups": true})");
  EXPECT_EQ(config.table.seed, static_cast<uint64_t>(-5));
  EXPECT_EQ(config.table.initializer, (InitializerSpec{InitializerSpec::Kind::kUniform, -1.0, 2.0}));
  EXPECT_TRUE(config.table.keep_counts);
  EXPECT_EQ(config.table.min_used_times, 0u);
  EXPECT_EQ(config.table.max_cold_secs, 60u);
  EXPECT_EQ(config.table.capacity_policy, CapacityPolicy::kError);
  EXPECT_EQ(config.table.max_bytes, 123456u);
  EXPECT_EQ(config.non_finite, NonFinitePolicy::kSkip);
  EXPECT_TRUE(config.check_lookups);
}

TEST(TableConfigTest, WhereRowsLiveIsPartOfTheConfig) {
  const EmbeddingTableConfig alone = Parsed(R"({"name": "u", "dim": 2, "vocabulary": 7})");
  EXPECT_EQ(alone.distribution, Distribution::kNone);
  const EmbeddingTableConfig sharded = Parsed(R"({"name": "u", "dim": 2, "vocabulary": 7, "distribution": "MP", "owner": "hash"})");
  EXPECT_EQ(sharded.distribution, Distribution::kSharded);
  EXPECT_EQ(sharded.owner, OwnerRule::kHash);
  EXPECT_EQ(Parsed(sharded.ToJson()).ToJson(), sharded.ToJson());
  EXPECT_EQ(alone.FirstDifference(sharded), "distribution: null against \"MP\"");
  EXPECT_EQ(sharded.FirstDifference(alone), "distribution: \"MP\" against null");
  // Hot keys are a matter of lookups: tables with and without them are the same.
  const char* const hot = R"({"name": "u", "dim": 2, "vocabulary": 7, "distribution": "MP", "owner": "hash", "hot_keys": [1, -5]})";
  EXPECT_EQ(Parsed(hot).ToJson(), sharded.ToJson());
  EXPECT_FALSE(EmbeddingTableConfig::FromJson(R"({"name": "u", "dim": 2, "vocabulary": 7, "hot_keys": 3})").ok());
}

TEST(TableConfigTest, TheSeedOfATableComesFromNameAndSeeds) {
  const auto seed = [](const std::string& text) {
    return Parsed(R"({"name": "user", "dim": 2, "vocabulary": 7, "seed": )" + text + "}").table.seed;
  };
  EXPECT_EQ(seed(R"({"initializer_seed": 3, "graph_seed": null})"), TableSeed("user", 3, 0));
  EXPECT_EQ(seed(R"({"graph_seed": -9})"), TableSeed("user", 0, -9));
  EXPECT_EQ(seed("null"), TableSeed("user", 0, 0));
  EXPECT_EQ(seed("9223372036854775807"), 0x7FFFFFFFFFFFFFFFu);
  EXPECT_EQ(seed("-9223372036854775808"), 0x8000000000000000u);
}

TEST(TableConfigTest, NullIsTheSameAsAbsent) {
  EXPECT_EQ(
      Parsed(R"({"name": "u", "dim": 2, "vocabulary": 7, "min_used_times": null, "max_cold_secs": null, "initializer": null})")
          .ToJson(),
      Parsed(R"({"name": "u", "dim": 2, "vocabulary": 7})").ToJson());
}

struct Wrong {
  const char* field;
  const char* value;
};

class WrongField : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongField, IsRefusedNamingTableFieldAndValue) {
  const auto [field, value] = GetParam();
  std::string json = R"({"name": "user")";
  for (const char* needed : {"dim", "vocabulary"}) {
    if (std::string(field) != needed) json += std::string(", \"") + needed + "\": 4";
  }
  json += std::string(", \"") + field + "\": " + value + "}";
  const auto config = EmbeddingTableConfig::FromJson(json);
  ASSERT_FALSE(config.ok()) << json;
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()), ::testing::AllOf(HasSubstr("table user"), HasSubstr(field))) << json;
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongField,
    ::testing::Values(Wrong{"dim", "0"}, Wrong{"dim", "-1"}, Wrong{"dim", "2.5"}, Wrong{"dim", "\"8\""}, Wrong{"dim", "null"},
                      Wrong{"dim", "true"}, Wrong{"dim", "1048577"}, Wrong{"dim", "1e300"}, Wrong{"vocabulary", "0"},
                      Wrong{"vocabulary", "18446744073709551615"}, Wrong{"vocabulary", "null"}, Wrong{"vocabulary", "[1]"},
                      Wrong{"seed", "1.5"}, Wrong{"seed", "\"x\""}, Wrong{"min_used_times", "-1"},
                      Wrong{"min_used_times", "2147483648"}, Wrong{"max_cold_secs", "-1"}, Wrong{"max_cold_secs", "0.5"},
                      Wrong{"max_bytes", "-8"}, Wrong{"capacity_policy", "\"lru\""}, Wrong{"evict_by", "\"lru\""},
                      Wrong{"evict_half_life", "5"}, Wrong{"capacity_policy", "1"}, Wrong{"non_finite", "\"ignore\""},
                      Wrong{"check_lookups", "1"}, Wrong{"distribution", "\"mp\""}, Wrong{"owner", "\"rank\""},
                      Wrong{"initializer", "\"zeros\""}, Wrong{"colour", "1"}));

TEST(TableConfigTest, TheRuleOfEvictionIsReadUnderEvictOnly) {
  const std::string start = R"({"name": "user", "dim": 2, "vocabulary": 7, "capacity_policy": "evict")";
  EmbeddingTableConfig config = Parsed(start + "}");
  EXPECT_EQ(config.table.capacity_policy, CapacityPolicy::kEvict);
  EXPECT_EQ(config.table.evict_by, EvictBy::kLru);
  config = Parsed(start + R"(, "evict_by": "lfu", "evict_half_life": 50})");
  EXPECT_EQ(config.table.evict_by, EvictBy::kLfu);
  EXPECT_EQ(config.table.evict_half_life, 50u);
  EXPECT_EQ(Parsed(config.ToJson()).FirstDifference(config), "");
  EXPECT_EQ(Parsed(start + "}").FirstDifference(config), R"(evict_by: "lru" against "lfu")");
  EXPECT_THAT(Parsed(R"({"name": "user", "dim": 2, "vocabulary": 7})").FirstDifference(config), HasSubstr("capacity_policy"));
  for (const char* wrong :
       {R"("evict_by": "fifo")", R"("evict_by": 1)", R"("evict_half_life": 0)", R"("evict_half_life": 4294967296)"}) {
    const auto refused = EmbeddingTableConfig::FromJson(start + ", " + wrong + "}");
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(refused.status().message()), ::testing::AllOf(HasSubstr("table user"), HasSubstr("evict_"))) << wrong;
  }
}

TEST(TableConfigTest, WhatIsNoObjectIsRefused) {
  for (const char* text : {"", "[]", "3", "{", "{\"name\": \"\xff\"}", "null"}) {
    EXPECT_EQ(EmbeddingTableConfig::FromJson(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  for (const char* text : {R"({"dim": 1, "vocabulary": 1})", R"({"name": "", "dim": 1, "vocabulary": 1})",
                           R"({"name": 3, "dim": 1, "vocabulary": 1})"}) {
    const auto config = EmbeddingTableConfig::FromJson(text);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("\"name\"")) << text;
  }
}

TEST(TableConfigTest, MistakesOfTheInitializerAreNamed) {
  const auto message = [](const std::string& initializer) {
    const auto config =
        EmbeddingTableConfig::FromJson(R"({"name": "user", "dim": 2, "vocabulary": 7, "initializer": )" + initializer + "}");
    EXPECT_FALSE(config.ok()) << initializer;
    return std::string(config.status().message());
  };
  EXPECT_THAT(message(R"({"name": "orthogonal"})"), ::testing::AllOf(HasSubstr("user"), HasSubstr("orthogonal")));
  EXPECT_THAT(message(R"({"name": "random_normal", "params": {"stddev": -1}})"), HasSubstr("stddev"));
  EXPECT_THAT(message(R"({"name": "random_normal", "params": {"stddev": [1]}})"), HasSubstr("stddev"));
  EXPECT_THAT(message(R"({"name": "random_normal", "params": 3})"), HasSubstr("params"));
  EXPECT_THAT(message(R"({"name": "random_normal", "params": [1, "a", null]})"), HasSubstr("params"));
  EXPECT_THAT(message(R"({"nome": "random_normal"})"), HasSubstr("nome"));
}

TEST(TableConfigTest, TheCanonicalTextReadsBackAsTheSameConfig) {
  for (
      const char* text :
      {R"({"name": "user", "dim": 16, "vocabulary": 1000})",
       R"({"name": "a b.c%/\u4e2d\"", "dim": 1, "vocabulary": 1, "seed": -1, "min_used_times": 3, "max_cold_secs": 18446744073709551615})",
       R"({"name": "u", "dim": 3, "vocabulary": 9, "initializer": {"name": "truncated_normal", "params": {"stddev": 0.1, "mean": 1e-30}}})",
       R"({"name": "u", "dim": 3, "vocabulary": 9, "initializer": {"name": "glorot_uniform"}, "non_finite": "error", "check_lookups": true})",
       R"({"name": "u", "dim": 3, "vocabulary": 9, "initializer": {"name": "zeros"}, "capacity_policy": "error", "max_bytes": 1})"}) {
    const EmbeddingTableConfig config = Parsed(text), again = Parsed(config.ToJson());
    EXPECT_EQ(again.ToJson(), config.ToJson());
    EXPECT_EQ(config.FirstDifference(again), "");
    EXPECT_EQ(again.table.initializer, config.table.initializer);
    EXPECT_EQ(again.table.seed, config.table.seed);
    EXPECT_EQ(again.table.keep_counts, config.table.keep_counts);
    EXPECT_EQ(again.table.max_cold_secs, config.table.max_cold_secs);
  }
}

TEST(TableConfigTest, TheFirstDifferenceNamesFieldAndBothValues) {
  const EmbeddingTableConfig config = Parsed(R"({"name": "user", "dim": 8, "vocabulary": 7})");
  EXPECT_EQ(config.FirstDifference(Parsed(R"({"name": "user", "dim": 16, "vocabulary": 8})")), "dim: 8 against 16");
  EXPECT_EQ(config.FirstDifference(Parsed(R"({"name": "user", "dim": 8, "vocabulary": 7, "min_used_times": 0})")),
            "min_used_times: null against 0");
  EXPECT_THAT(config.FirstDifference(Parsed(R"({"name": "user", "dim": 8, "vocabulary": 7, "initializer": {"name": "ones"}})")),
              HasSubstr("initializer"));
  EXPECT_EQ(
      config.FirstDifference(Parsed(R"({"name": "user", "dim": 8, "vocabulary": 7, "initializer": {"name": "random_normal"}})")),
      "");
}

TEST(TableConfigTest, AnAdmissionRuleIsNeverLostEvenWhenNobodyAskedForCounts) {
  EmbeddingTableConfig config = Parsed(R"({"name": "user", "dim": 8, "vocabulary": 7})");
  config.table.min_used_times = 3;
  ASSERT_FALSE(config.table.keep_counts);
  const EmbeddingTableConfig again = Parsed(config.ToJson());
  EXPECT_EQ(again.table.min_used_times, 3u);
  EXPECT_TRUE(again.table.keep_counts);
  EXPECT_EQ(again.ToJson(), config.ToJson());
  EXPECT_EQ(config.FirstDifference(Parsed(R"({"name": "user", "dim": 8, "vocabulary": 7})")), "min_used_times: 3 against null");
  const auto table = EmbeddingTable::Create(config).value();
  EXPECT_TRUE(table->table().options().keep_counts) << "the table is what its text says";
}

TEST(TableConfigTest, ANameThatIsNotUtf8IsNoReasonToStop) {
  EmbeddingTableConfig config;
  config.table.name = "user\xff";
  config.table.dim = 1;
  EXPECT_THAT(config.ToJson(), HasSubstr("\"name\""));
}

}  // namespace
}  // namespace mxrec
