#include "tf/graph/npu_optimizer_pass.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "mxrec/base/log.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/grappler/clusters/cluster.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"
#include "tf/graph/mixed_precision.h"
#include "tf/graph/npu_options_proto.h"
#include "tf/session_settings.h"
#include "tf/status_adapter.h"

namespace mxrec {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::grappler::Cluster;
using tensorflow::grappler::GrapplerItem;

constexpr char kFailName[] = "mxrec/npu_optimizer_options";
constexpr std::string_view kMainGraph = "tf_graph";  // the item's id; bodies of functions come under their own names

std::string NodeName(std::string_view tensor) {
  if (tensor.starts_with("^")) tensor.remove_prefix(1);
  return std::string(tensor.substr(0, tensor.find(':')));
}

// The CPU beside a device: the graph has been placed by now, and every node needs its place.
std::string CpuBeside(std::string_view device) {
  const size_t end = device.find("/device:");
  return end == std::string_view::npos ? std::string() : std::string(device.substr(0, end)) + "/device:CPU:0";
}

void SetFailure(const Status& error, NodeDef* node) {
  node->set_op("MxrecFail");
  (*node->mutable_attr())["code"].set_i(static_cast<int>(error.code()));
  (*node->mutable_attr())["message"].set_s(std::string(error.message()));
}

void ForbidFusion(GraphDef* graph) {
  for (NodeDef& node : *graph->mutable_node()) {
    static constexpr std::string_view kFusible[] = {"MxrecLookup", "MxrecApply", "MxrecAllReduce", "HcomAllReduce"};
    if (std::ranges::find(kFusible, node.op()) != std::end(kFusible)) (*node.mutable_attr())[kNoFusionAttr].set_b(true);
  }
}

class NpuOptimizer : public tensorflow::grappler::CustomGraphOptimizer {
 public:
  TfStatus Init(const tensorflow::RewriterConfig_CustomGraphOptimizer* config) override {
    Result<std::shared_ptr<const NpuOptions>> checked =
        CheckedNpuOptions(config != nullptr ? *config : tensorflow::RewriterConfig_CustomGraphOptimizer());
    if (checked.ok()) {
      options_ = *checked;
    } else {
      error_ = checked.status();
    }
    return TfStatus();
  }

  std::string name() const override { return kNpuOptimizer; }

  // TensorFlow then keeps the functions away from the pass and puts them back afterwards.
  bool UsesFunctionLibrary() const override { return false; }

  TfStatus Optimize(Cluster* cluster, const GrapplerItem& item, GraphDef* graph) override {
    CountOptimizerRun();
    *graph = item.graph;
    if (item.id != kMainGraph) return TfStatus();
    if (!error_.ok()) {
      MakeGraphFail(error_, item, graph);
    } else if (options_ != nullptr) {
      ApplyMixedPrecision(*options_, cluster, item, graph);
      if (options_->fusions_off) ForbidFusion(graph);
    }
    return TfStatus();
  }

 private:
  std::shared_ptr<const NpuOptions> options_;
  Status error_;
};

// As REGISTER_GRAPH_OPTIMIZER_AS does, but a second library that brings an optimizer of this name does not end the process.
const bool registered = [] {
  using Registry = tensorflow::grappler::CustomGraphOptimizerRegistry;
  const std::vector<std::string> names = Registry::GetRegisteredOptimizers();
  if (std::ranges::find(names, kNpuOptimizer) != names.end()) {
    MXREC_LOG(WARNING)
        << "another library has registered the graph optimizer NpuOptimizer before; options of sessions have no effect";
    return false;
  }
  Registry::RegisterOptimizerOrDie([] { return new NpuOptimizer; }, kNpuOptimizer);
  return true;
}();

}  // namespace

void MakeGraphFail(const Status& error, const GrapplerItem& item, GraphDef* graph) {
  std::set<std::string> wanted;
  for (const std::string& tensor : item.fetch) wanted.insert(NodeName(tensor));
  for (const auto& [tensor, value] : item.feed) wanted.erase(NodeName(tensor));
  for (const NodeDef& node : graph->node()) {
    if (node.name() == kFailName) return;
  }
  std::string device;
  for (NodeDef& node : *graph->mutable_node()) {
    if (!wanted.contains(node.name())) continue;
    if (device.empty()) device = CpuBeside(node.device());
    if (node.op() == "Exit") {
      // The end of a loop takes no control edge from outside the loop.
      const tensorflow::DataType type = node.attr().at("T").type();
      node.clear_input();
      node.clear_attr();
      SetFailure(error, &node);
      (*node.mutable_attr())["T"].mutable_list()->add_type(type);
    } else {
      node.add_input("^" + std::string(kFailName));
    }
  }
  NodeDef* fail = graph->add_node();
  fail->set_name(kFailName);
  fail->set_device(device);
  SetFailure(error, fail);
}

}  // namespace mxrec
