// The plugin as TensorRT calls it: registered, created, asked what it takes and needs, then launched.
#include <NvInfer.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace {
PluginTensorDesc described(const int64_t* dims, int count, DataType type) {
  PluginTensorDesc desc{{count, {}}, type, TensorFormat::kLINEAR, 0.0f};
  std::memcpy(desc.dims.d, dims, count * sizeof(int64_t));
  return desc;
}
}  // namespace

// The plugin of a name. Shapes of its inputs, one after the other, and of how many dimensions each is; whether each holds
// int64; the inputs; the output, shaped as the first of them. 0 or what went wrong.
extern "C" int plugin_attend(const char* name, int count, const int64_t* dims, const int* ranks, const bool* whole, int type,
                             void const* const* inputs, void* out) {
  IPluginCreatorV3One* creator = nullptr;
  for (IPluginCreatorV3One* each : registered)
    if (name == std::string(each->getPluginName()) && std::string(each->getPluginNamespace()) == "") creator = each;
  if (!creator) return 1;
  IPluginV3* const made = creator->createPlugin("x", creator->getFieldNames(), TensorRTPhase::kRUNTIME);
  auto* const core = dynamic_cast<IPluginV3OneCore*>(made->getCapabilityInterface(PluginCapabilityType::kCORE));
  auto* const build = dynamic_cast<IPluginV3OneBuild*>(made->getCapabilityInterface(PluginCapabilityType::kBUILD));
  auto* const runtime = dynamic_cast<IPluginV3OneRuntime*>(made->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  if (!core || !build || !runtime || std::string(core->getPluginVersion()) != creator->getPluginVersion()) return 2;
  IPluginV3* const copy = made->clone();
  if (std::string(core->getPluginName()) != name || copy == made) return 2;
  delete copy;

  std::vector<PluginTensorDesc> tensors;
  for (int n = 0; n < count; dims += ranks[n++]) tensors.push_back(described(dims, ranks[n], whole[n] ? DataType::kINT64 : DataType(type)));
  tensors.push_back(tensors[0]);
  std::vector<DynamicPluginTensorDesc> offered;
  for (const PluginTensorDesc& each : tensors) offered.push_back({each, each.dims, each.dims, each.dims});
  for (int n = 0; n <= count; ++n) {
    if (!build->supportsFormatCombination(n, offered.data(), count, 1)) return 3;
    const DataType own = offered[n].desc.type;
    offered[n].desc.type = DataType::kINT32;
    if (n && build->supportsFormatCombination(n, offered.data(), count, 1)) return 4;
    offered[n].desc.type = own;
  }

  const size_t bytes = build->getWorkspaceSize(offered.data(), count, offered.data() + count, 1);
  void* const workspace = std::malloc(bytes + 1);
  std::memset(workspace, 0xff, bytes + 1);  // as another layer leaves it; the last byte is nobody's
  int status = runtime->enqueue(tensors.data(), tensors.data() + count, inputs, &out, workspace, nullptr);
  if (!status && static_cast<unsigned char*>(workspace)[bytes] != 0xff) status = 5;
  std::free(workspace);
  delete made;
  return status;
}
