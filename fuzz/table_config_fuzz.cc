// The JSON text of a table, as imported graphs bring it: refused, or written again with the same meaning.
#include "fuzz/fuzz.h"
#include "mxrec/base/check.h"
#include "mxrec/engine/table_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const mxrec::Result<mxrec::EmbeddingTableConfig> config = mxrec::EmbeddingTableConfig::FromJson(text);
  if (!config.ok()) {
    MXREC_CHECK(config.status().code() == mxrec::StatusCode::kInvalidArgument);
    return 0;
  }
  const std::string again = config->ToJson();
  const mxrec::Result<mxrec::EmbeddingTableConfig> second = mxrec::EmbeddingTableConfig::FromJson(again);
  MXREC_CHECK(second.ok()) << second.status();
  MXREC_CHECK(second->ToJson() == again);
  return 0;
}

std::vector<std::string> mxrec::FuzzSeeds() {
  return {R"({"name":"user","dim":8,"vocabulary":1000,"seed":{"initializer_seed":3,"graph_seed":null},)"
          R"("initializer":{"name":"variance_scaling","params":{"scale":2.0,"mode":"fan_avg"}},"min_used_times":2,)"
          R"("max_cold_secs":10,"capacity_policy":"error","max_bytes":4096,"non_finite":"skip","check_lookups":true})",
          R"({"name":"a","dim":1,"vocabulary":1,"seed":-5,"initializer":{"name":"zeros"}})"};
}
