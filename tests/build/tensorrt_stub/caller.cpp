// The plugin as TensorRT calls it: registered, created, asked what it takes and needs, then created anew from what a plan
// keeps of it, and launched, on another device of four times as many multiprocessors.
#include <NvInfer.h>

#include <cstring>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace {
constexpr size_t BEYOND = 1 << 22;  // bytes behind a workspace that are looked at

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
  stub_multiprocessors = 4;
  IPluginV3* const made = creator->createPlugin("x", creator->getFieldNames(), TensorRTPhase::kBUILD);
  auto* const core = dynamic_cast<IPluginV3OneCore*>(made->getCapabilityInterface(PluginCapabilityType::kCORE));
  auto* const build = dynamic_cast<IPluginV3OneBuild*>(made->getCapabilityInterface(PluginCapabilityType::kBUILD));
  auto* const kept = dynamic_cast<IPluginV3OneRuntime*>(made->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  if (!core || !build || !kept || std::string(core->getPluginVersion()) != creator->getPluginVersion()) return 2;
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
  stub_multiprocessors = 16;
  IPluginV3* const loaded = creator->createPlugin("x", kept->getFieldsToSerialize(), TensorRTPhase::kRUNTIME);
  auto* const runtime = dynamic_cast<IPluginV3OneRuntime*>(loaded->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  if (!runtime) return 2;
  // As another layer leaves it; what is behind it is nobody's.
  std::vector<unsigned char> workspace(bytes + BEYOND, 0xff);
  int status = runtime->enqueue(tensors.data(), tensors.data() + count, inputs, &out, workspace.data(), nullptr);
  for (size_t n = bytes; !status && n < workspace.size(); ++n) status = workspace[n] == 0xff ? 0 : 5;
  delete loaded;
  delete made;
  return status;
}
