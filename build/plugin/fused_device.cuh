// What the fused kernels ask of the machine beside the list of `device.cuh`: on a GPU, and for the emulation.
#pragma once

#ifdef __CUDACC__
#include "device.cuh"
#else
#include "emulate.hpp"
#endif

namespace genrec::fused {

#ifdef __CUDACC__
XATT_FN double shuffle_xor(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
XATT_FN uint32_t ballot(bool x) { return __ballot_sync(0xffffffffu, x); }  // bit l: what lane l says
XATT_FN int bits_set(uint32_t x) { return __popc(x); }
XATT_FN void add_shared(int* sum, int n) { atomicAdd(sum, n); }
XATT_FN int32_t bits_of(float x) { return __float_as_int(x); }
XATT_FN float float_of(int32_t bits) { return __int_as_float(bits); }
#else
XATT_FN double shuffle_xor(double x, int mask) {
  uint32_t words[2];
  std::memcpy(words, &x, 8);
  std::memcpy(&x, emulate::exchange({{words[0], words[1]}, nullptr})[(thread_index() % 32) ^ mask].words, 8);
  return x;
}
XATT_FN uint32_t ballot(bool x) {
  const emulate::Slot* all = emulate::exchange({{x}, nullptr});
  uint32_t said = 0;
  for (int lane = 0; lane < 32; ++lane) said |= all[lane].words[0] << lane;
  return said;
}
XATT_FN int bits_set(uint32_t x) { return __builtin_popcount(x); }
XATT_FN void add_shared(int* sum, int n) { *sum += n; }  // a fiber is only left at a collective
XATT_FN int32_t bits_of(float x) { return int32_t(emulate::float_to_bits(x)); }
XATT_FN float float_of(int32_t bits) { return emulate::bits_to_float(uint32_t(bits)); }
#endif

using genrec::shuffle_xor;  // of a float, beside that of a double

template <int LANES, typename T> XATT_FN T sum_among(T x) {  // neighbours of a warp
  XATT_UNROLL for (int mask = LANES / 2; mask; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
template <typename T> XATT_FN T sum_of_warp(T x) { return sum_among<32>(x); }
XATT_FN float top_of_warp(float x) {
  XATT_UNROLL for (int mask = 16; mask; mask /= 2) {
    const float other = shuffle_xor(x, mask);
    x = x > other ? x : other;
  }
  return x;
}

// N neighbours, moved at once.
template <typename T, int N> struct alignas(N * sizeof(T)) Pack {
  T at[N];
};
template <int N, typename T> XATT_FN Pack<T, N> load(const T* from) { return *reinterpret_cast<const Pack<T, N>*>(from); }
template <typename T, int N> XATT_FN void store(T* to, const Pack<T, N>& pack) { *reinterpret_cast<Pack<T, N>*>(to) = pack; }

}  // namespace genrec::fused
