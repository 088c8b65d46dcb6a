// The attention kernel as TensorRT plugins: IPluginV3 (TensorRT 10.0 and later) over the C ABI of xattention.h.
//
// Triton loads the library (--backend-config=tensorrt,plugins=...); loading registers the creators "XAttention", of a
// decode's beams, and "CandidateAttention", of a ranking's discriminant tokens, both version "1", in namespace "": in any
// other, the parser takes the ONNX function's body instead of the plugin.
#include <NvInfer.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <new>

#include "xattention.h"

namespace genrec {
namespace {

using namespace nvinfer1;

// Discriminant tokens have the last two as well: their query turned to its place in an item, and which item is whose.
enum Input { Q, SHARED_K, SHARED_V, UNSHARED_K, UNSHARED_V, PROMPT_LENGTH, OWN_Q, ROWS };

constexpr int SPAN_STEP = 64;  // keys: no kernel splits more finely
constexpr AsciiChar const* MULTIPROCESSORS = "multiprocessors";

AsciiChar const* name_of(bool items) { return items ? "CandidateAttention" : "XAttention"; }

int multiprocessors() {
  int device = 0, count = 1;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 1;
  return count;
}

int type_of(DataType type) {
  return type == DataType::kFLOAT ? XATTENTION_F32 : type == DataType::kHALF ? XATTENTION_F16 : type == DataType::kBF16 ? XATTENTION_BF16 : -1;
}

// B W H D of q, G S of the shared KV, U of the unshared [B, W, U, G, D] or of items [M, U, G, D].
XAttentionShape shape_of(const Dims& q, const Dims& shared, const Dims& unshared, DataType type, int processors) {
  XAttentionShape shape{int(q.d[0]), int(q.d[1]), int(q.d[2]), int(shared.d[1]), int(q.d[3]), int(shared.d[2]), int(unshared.d[unshared.nbDims - 3]), 1, type_of(type)};
  shape.splits = xattention_splits(&shape, processors);
  return shape;
}

class Attention final : public IPluginV3, public IPluginV3OneCore, public IPluginV3OneBuild, public IPluginV3OneRuntime {
 public:
  // `processors`: of the device that the plan is built on. More of them mean more splits, and another workspace.
  Attention(bool items, int32_t processors) : items_(items), processors_(processors), field_{MULTIPROCESSORS, &processors_, PluginFieldType::kINT32, 1} {}

  IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
    switch (type) {
      case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
      case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
      case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
    }
    return nullptr;
  }
  IPluginV3* clone() noexcept override { return new (std::nothrow) Attention(items_, processors_); }

  AsciiChar const* getPluginName() const noexcept override { return name_of(items_); }
  AsciiChar const* getPluginVersion() const noexcept override { return "1"; }
  AsciiChar const* getPluginNamespace() const noexcept override { return ""; }

  int32_t getNbOutputs() const noexcept override { return 1; }
  int32_t getOutputDataTypes(DataType* out, int32_t, DataType const* in, int32_t) const noexcept override {
    out[0] = in[Q];
    return 0;
  }
  int32_t getOutputShapes(DimsExprs const* in, int32_t, DimsExprs const*, int32_t, DimsExprs* out, int32_t, IExprBuilder&) noexcept override {
    out[0] = in[Q];
    return 0;
  }
  bool supportsFormatCombination(int32_t place, DynamicPluginTensorDesc const* tensors, int32_t inputs, int32_t) noexcept override {
    const PluginTensorDesc& own = tensors[place].desc;
    if (own.format != TensorFormat::kLINEAR) return false;
    if (place == PROMPT_LENGTH || (place == ROWS && inputs > ROWS)) return own.type == DataType::kINT64;
    return type_of(own.type) >= 0 && own.type == tensors[Q].desc.type;
  }
  int32_t configurePlugin(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*, int32_t) noexcept override { return 0; }

  // Fewer requests, beams or keys may mean more splits and so more workspace: sized for the most that any shape takes.
  size_t getWorkspaceSize(DynamicPluginTensorDesc const* in, int32_t, DynamicPluginTensorDesc const*, int32_t) const noexcept override {
    XAttentionShape shape = shape_of(in[Q].max, in[SHARED_K].max, in[UNSHARED_K].max, in[Q].desc.type, processors_);
    size_t most = 0;
    const int requests = shape.requests, beams = shape.beams, span = shape.span;
    for (shape.span = span; shape.span > 0; shape.span -= SPAN_STEP < shape.span ? SPAN_STEP : shape.span) {
      for (shape.requests = 1; shape.requests <= requests; ++shape.requests) {
        for (shape.beams = 1; shape.beams <= beams; ++shape.beams) {
          shape.splits = xattention_splits(&shape, processors_);
          const size_t bytes = xattention_workspace(&shape);
          most = bytes > most ? bytes : most;
        }
      }
    }
    return most;
  }

  int32_t setTactic(int32_t) noexcept override { return 0; }
  int32_t onShapeChange(PluginTensorDesc const*, int32_t, PluginTensorDesc const*, int32_t) noexcept override { return 0; }
  IPluginV3* attachToContext(IPluginResourceContext*) noexcept override { return clone(); }
  PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &fields_; }

  int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const*, void const* const* inputs, void* const* outputs, void* workspace,
                  cudaStream_t stream) noexcept override {
    const XAttentionShape shape = shape_of(in[Q].dims, in[SHARED_K].dims, in[UNSHARED_K].dims, in[Q].type, processors_);
    const size_t counters = xattention_counters(&shape);  // TensorRT lends the same memory to other layers between launches
    if (counters && cudaMemsetAsync(workspace, 0, counters, stream) != cudaSuccess) return -1;
    return xattention(&shape, inputs[Q], inputs[SHARED_K], inputs[SHARED_V], inputs[UNSHARED_K], inputs[UNSHARED_V],
                      static_cast<int64_t const*>(inputs[PROMPT_LENGTH]), items_ ? inputs[OWN_Q] : nullptr,
                      items_ ? static_cast<int64_t const*>(inputs[ROWS]) : nullptr, outputs[0], workspace, stream);
  }

 private:
  bool items_;
  int32_t processors_;
  PluginField field_;
  PluginFieldCollection fields_{1, &field_};
};

template <bool ITEMS>
class Creator final : public IPluginCreatorV3One {
 public:
  // A plan that is loaded brings its field; a node of an ONNX file has none.
  IPluginV3* createPlugin(AsciiChar const*, PluginFieldCollection const* fields, TensorRTPhase) noexcept override {
    int32_t processors = multiprocessors();
    for (int32_t n = 0; fields && n < fields->nbFields; ++n) {
      const PluginField& field = fields->fields[n];
      if (!std::strcmp(field.name, MULTIPROCESSORS)) std::memcpy(&processors, field.data, sizeof(processors));
    }
    return new (std::nothrow) Attention(ITEMS, processors);
  }
  PluginFieldCollection const* getFieldNames() noexcept override { return &no_fields_; }
  AsciiChar const* getPluginName() const noexcept override { return name_of(ITEMS); }
  AsciiChar const* getPluginVersion() const noexcept override { return "1"; }
  AsciiChar const* getPluginNamespace() const noexcept override { return ""; }

 private:
  PluginFieldCollection no_fields_{0, nullptr};
};

using OfBeams = Creator<false>;
using OfCandidates = Creator<true>;
REGISTER_TENSORRT_PLUGIN(OfBeams);
REGISTER_TENSORRT_PLUGIN(OfCandidates);

}  // namespace
}  // namespace genrec
