// The declarations of TensorRT's plugin interface that build/plugin/plugin.cpp uses, as TensorRT 10.0 and later have them:
// what is pure virtual there is pure virtual here, so that a method that is missing or misspelt does not compile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nvinfer1 {

using AsciiChar = char;

enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBOOL = 4, kUINT8 = 5, kFP8 = 6, kBF16 = 7, kINT64 = 8 };
enum class TensorFormat : int32_t { kLINEAR = 0, kCHW2 = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };

class Dims64 {
 public:
  static constexpr int32_t MAX_DIMS{8};
  int32_t nbDims;
  int64_t d[MAX_DIMS];
};
using Dims = Dims64;

class IDimensionExpr;
class DimsExprs {
 public:
  int32_t nbDims;
  IDimensionExpr const* d[Dims::MAX_DIMS];
};
class IExprBuilder {};
class IPluginResourceContext;

struct PluginTensorDesc {
  Dims dims;
  DataType type;
  TensorFormat format;
  float scale;
};
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims min, max, opt;
};

enum class PluginFieldType : int32_t { kFLOAT16 = 0, kFLOAT32 = 1, kFLOAT64 = 2, kINT8 = 3, kINT16 = 4, kINT32 = 5 };
class PluginField {
 public:
  AsciiChar const* name;
  void const* data;
  PluginFieldType type;
  int32_t length;
  PluginField(AsciiChar const* const name_ = nullptr, void const* const data_ = nullptr, PluginFieldType const type_ = PluginFieldType::kINT32, int32_t const length_ = 0) noexcept
      : name{name_}, data{data_}, type{type_}, length{length_} {}
};
struct PluginFieldCollection {
  int32_t nbFields{};
  PluginField const* fields{};
};

class IPluginCapability {
 public:
  virtual ~IPluginCapability() noexcept = default;
};

class IPluginV3 {
 public:
  virtual ~IPluginV3() noexcept = default;
  virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
  virtual IPluginV3* clone() noexcept = 0;
};

class IPluginV3OneCore : public IPluginCapability {
 public:
  virtual AsciiChar const* getPluginName() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};

class IPluginV3OneBuild : public IPluginCapability {
 public:
  virtual int32_t configurePlugin(DynamicPluginTensorDesc const* in, int32_t, DynamicPluginTensorDesc const* out, int32_t) noexcept = 0;
  virtual int32_t getOutputDataTypes(DataType* out, int32_t, DataType const* in, int32_t) const noexcept = 0;
  virtual int32_t getOutputShapes(DimsExprs const* in, int32_t, DimsExprs const*, int32_t, DimsExprs* out, int32_t, IExprBuilder&) noexcept = 0;
  virtual bool supportsFormatCombination(int32_t, DynamicPluginTensorDesc const* tensors, int32_t, int32_t) noexcept = 0;
  virtual int32_t getNbOutputs() const noexcept = 0;
  virtual size_t getWorkspaceSize(DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*, int32_t) const noexcept { return 0; }
};

class IPluginV3OneRuntime : public IPluginCapability {
 public:
  virtual int32_t setTactic(int32_t) noexcept { return 0; }
  virtual int32_t onShapeChange(PluginTensorDesc const* in, int32_t, PluginTensorDesc const* out, int32_t) noexcept = 0;
  virtual int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const* out, void const* const* inputs, void* const* outputs, void* workspace,
                          cudaStream_t stream) noexcept = 0;
  virtual IPluginV3* attachToContext(IPluginResourceContext*) noexcept = 0;
  virtual PluginFieldCollection const* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorV3One {
 public:
  virtual ~IPluginCreatorV3One() = default;
  virtual IPluginV3* createPlugin(AsciiChar const* name, PluginFieldCollection const* fields, TensorRTPhase phase) noexcept = 0;
  virtual PluginFieldCollection const* getFieldNames() noexcept = 0;
  virtual AsciiChar const* getPluginName() const noexcept = 0;
  virtual AsciiChar const* getPluginVersion() const noexcept = 0;
  virtual AsciiChar const* getPluginNamespace() const noexcept = 0;
};

inline std::vector<IPluginCreatorV3One*> registered;  // in the place of TensorRT's registry

template <typename T> class PluginRegistrar {
 public:
  PluginRegistrar() { registered.push_back(&instance_); }

 private:
  T instance_{};
};

}  // namespace nvinfer1

#define REGISTER_TENSORRT_PLUGIN(name) static nvinfer1::PluginRegistrar<name> pluginRegistrar##name {}
