// Transformer inference on one core, or on two for a single sentence. Every row is computed by itself in a
// fixed order of additions, so the translation of a sentence does not depend on its neighbours: results are
// equal to the last bit for every batch.
//
// A weight matrix W (N, K) is packed once into panels of 64 columns of Wᵀ; a kernel keeps 6 rows × 64 columns
// in 24 registers: float32, bfloat16 in pairs, or int8 in fours (weights scaled per column, inputs per row).
// What follows a product (bias, activation, residual, softmax and the best tokens) is computed while the tile
// is in registers.
//
// Keys and values of generated tokens are in slots that are never moved; each row of a beam has the list of
// the slots of its ancestors. Reordering a beam copies indices, not vectors. The rows of a sentence share its
// cross-attention memory.
#include <immintrin.h>
#include <unistd.h>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "the engine is written for AVX-512"
#endif

namespace {
constexpr int W = 64;   // columns of a panel
constexpr int MR = 6;   // rows of a tile
constexpr float NEG_INF = -std::numeric_limits<float>::infinity();
enum Kind { F32 = 0, INT8 = 1, BF16 = 2 };
enum Activation { RELU = 0, GELU = 1, SWIGLU = 2, TANH_GELU = 3, SWISH = 4 };

inline int round_up(int n, int m) { return (n + m - 1) / m * m; }

int64_t max_bytes = INT64_MAX;  // limit of one allocation; tests lower it

inline void* allocate_bytes(int64_t bytes) {
  void* p = bytes >= 0 && bytes <= max_bytes ? std::aligned_alloc(64, (bytes / 64 + 1) * 64) : nullptr;
  if (!p) throw std::bad_alloc();
  return p;
}

template <class T> struct Array {  // aligned; grows and never shrinks
  T* p = nullptr; size_t n = 0;
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { std::free(p); }
  T* need(size_t k) {
    if (k > n) {
      std::free(p); p = nullptr; n = 0;  // in this order: a failed allocation must leave an empty array
      p = static_cast<T*>(allocate_bytes(int64_t(k * sizeof(T))));
      n = k;
    }
    return p;
  }
};

// e^x for x ≤ 0, relative error 1e-7
inline __m512 exp512(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.f)));
  return _mm512_scalef_ps(p, n);
}
inline __m512 abs512(__m512 x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.f), x); }
inline __m512 sigmoid512(__m512 x) {  // with e^−|x|, which cannot overflow
  const __m512 e = exp512(_mm512_sub_ps(_mm512_setzero_ps(), abs512(x))), one = _mm512_set1_ps(1.f);
  const __m512 s = _mm512_div_ps(one, _mm512_add_ps(one, e));  // σ(|x|)
  return _mm512_mask_sub_ps(s, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), one, s);
}
inline __m512 tanh512(__m512 x) {
  return _mm512_fmsub_ps(_mm512_set1_ps(2.f), sigmoid512(_mm512_add_ps(x, x)), _mm512_set1_ps(1.f));
}
inline __m512 erf512(__m512 x) {  // Abramowitz & Stegun 7.1.26, error 1.5e-7
  const __m512 a = abs512(x), one = _mm512_set1_ps(1.f);
  const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(a, _mm512_set1_ps(0.3275911f), one));
  __m512 p = _mm512_set1_ps(1.061405429f);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
  const __m512 y = _mm512_fnmadd_ps(_mm512_mul_ps(p, t),
                                    exp512(_mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), a), a)), one);
  return _mm512_or_ps(y, _mm512_and_ps(x, _mm512_set1_ps(-0.f)));
}
inline __m512 act512(__m512 x, int kind) {
  const __m512 half = _mm512_set1_ps(.5f), one = _mm512_set1_ps(1.f);
  switch (kind) {
    case RELU: return _mm512_max_ps(x, _mm512_setzero_ps());
    case GELU:
      return _mm512_mul_ps(_mm512_mul_ps(half, x),
                           _mm512_add_ps(one, erf512(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f)))));
    case TANH_GELU: {
      const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
      const __m512 in =
          _mm512_mul_ps(_mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x), _mm512_set1_ps(0.7978845608f));
      return _mm512_mul_ps(_mm512_mul_ps(half, x), _mm512_add_ps(one, tanh512(in)));
    }
    default: return _mm512_mul_ps(x, sigmoid512(x));  // SWISH, and SWIGLU's gate
  }
}

// --- Products ---
// bfloat16: round to nearest, ties to even
inline uint16_t rounded(float x) {
  uint32_t bits; std::memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline __m256i rounded(__m512 x) {
  const __m512i v = _mm512_castps_si512(x),
                odd = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_add_epi32(v, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd)), 16));
}

struct Matrix {  // y = x Wᵀ + b
  int kind = F32, N = 0, K = 0, panels = 0, depth = 0;  // depth: groups of inputs of one instruction
  char* data = nullptr;
  float *bias = nullptr, *scale = nullptr;
  int32_t* shift = nullptr;  // 128 Σ w, because inputs are stored as x + 128
  ~Matrix() { std::free(data); std::free(bias); std::free(scale); std::free(shift); }
};

template <class T> T* allocate(size_t n) { return static_cast<T*>(allocate_bytes(int64_t(n * sizeof(T)))); }

// Column n of an int8 matrix: the largest weight becomes ±127. Weights that models/int8.py has restored get
// exactly the stored integers and scale.
void pack_int8(Matrix& m, int n, const float* row) {
  __m512 most = _mm512_setzero_ps();
  for (int k = 0; k < m.K; k += 16) {
    const __mmask16 live = m.K - k >= 16 ? 0xffff : (1u << (m.K - k)) - 1;
    most = _mm512_max_ps(most, abs512(_mm512_maskz_loadu_ps(live, row + k)));
  }
  const float top = _mm512_reduce_max_ps(most), s = top > 0 ? 127.f / top : 1.f;
  __m512i sum = _mm512_setzero_si512();
  auto* cells = reinterpret_cast<int32_t*>(m.data) + size_t(n / W) * m.depth * W + n % W;
  for (int k = 0; k < m.K; k += 16) {
    const __mmask16 live = m.K - k >= 16 ? 0xffff : (1u << (m.K - k)) - 1;
    const __m512i q =
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(live, row + k), _mm512_set1_ps(s)));
    sum = _mm512_add_epi32(sum, q);
    alignas(16) int32_t fours[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(fours), _mm512_cvtepi32_epi8(q));
    for (int j = 0; j < 4 && k / 4 + j < m.depth; ++j) cells[size_t(k / 4 + j) * W] = fours[j];
  }
  m.scale[n] = top > 0 ? top / 127.f : 1.f;
  m.shift[n] = 128 * _mm512_reduce_add_epi32(sum);
}

Matrix* pack(int kind, int N, int K, const float* w, const float* b) {
  auto m = std::make_unique<Matrix>();
  const int group = kind == F32 ? 1 : kind == INT8 ? 4 : 2;
  m->kind = kind; m->N = N; m->K = K; m->panels = round_up(N, W) / W; m->depth = round_up(K, group) / group;
  const size_t cells = size_t(m->panels) * m->depth * W;  // of 4 bytes each
  m->data = allocate<char>(cells * 4);
  std::memset(m->data, 0, cells * 4);
  m->bias = allocate<float>(m->panels * W);
  for (int n = 0; n < m->panels * W; ++n) m->bias[n] = n < N ? (b ? b[n] : 0.f) : NEG_INF;
  if (kind == INT8) {
    m->scale = allocate<float>(m->panels * W);
    m->shift = allocate<int32_t>(m->panels * W);
    for (int n = 0; n < m->panels * W; ++n) { m->scale[n] = 1.f; m->shift[n] = 0; }
  }
  for (int n = 0; n < N; ++n) {
    const float* row = w + size_t(n) * K;
    if (kind == INT8) { pack_int8(*m, n, row); continue; }
    for (int k = 0; k < K; ++k) {
      const size_t cell = (size_t(n / W) * m->depth + k / group) * W + n % W;
      if (kind == F32) reinterpret_cast<float*>(m->data)[cell] = row[k];
      else reinterpret_cast<uint16_t*>(m->data)[cell * 2 + k % 2] = rounded(row[k]);
    }
  }
  return m.release();
}

// Some columns of a matrix as a new matrix. `cells`: the weights column by column, in groups of 4 bytes.
Matrix* select_columns(const Matrix& from, const int32_t* cells, int n, const int32_t* columns) {
  auto m = std::make_unique<Matrix>();
  m->kind = from.kind; m->N = n; m->K = from.K; m->panels = round_up(n, W) / W; m->depth = from.depth;
  m->data = allocate<char>(size_t(m->panels) * m->depth * W * 4);
  m->bias = allocate<float>(m->panels * W);
  if (m->kind == INT8) {
    m->scale = allocate<float>(m->panels * W);
    m->shift = allocate<int32_t>(m->panels * W);
  }
  for (int i = 0; i < m->panels * W; ++i) {
    m->bias[i] = i < n ? from.bias[columns[i]] : NEG_INF;
    if (m->kind == INT8) {
      m->scale[i] = i < n ? from.scale[columns[i]] : 1.f;
      m->shift[i] = i < n ? from.shift[columns[i]] : 0;
    }
  }
  for (int i = 0; i < m->panels * W; i += 16) {
    const __mmask16 live = n - i >= 16 ? 0xffff : n <= i ? 0 : (1u << (n - i)) - 1;
    // Offsets count from the first of 16 columns, so they stay small for any vocabulary.
    const int32_t first = live ? columns[i] : 0;
    const __m512i places = _mm512_mullo_epi32(
        _mm512_sub_epi32(_mm512_maskz_loadu_epi32(live, columns + i), _mm512_set1_epi32(first)),
        _mm512_set1_epi32(m->depth));
    const int32_t* in = cells + size_t(first) * m->depth;
    auto* to = reinterpret_cast<int32_t*>(m->data) + size_t(i / W) * m->depth * W + i % W;
    for (int k = 0; k < m->depth; ++k)
      _mm512_store_si512(to + size_t(k) * W,
                         _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), live, places, in + k, 4));
  }
  return m.release();
}

struct Input {  // rows in the format of a kernel
  const void* data = nullptr; size_t stride = 0;  // in units of 4 bytes
  const float* scale = nullptr;
};

struct Scratch {  // memory of a thread that is reused between calls
  Array<char> quant; Array<float> qscale;
  Array<float> x, h, a, b, c, kt, p, scores;
  Array<int32_t> filled;
};

// Rows of x in the format of the kernel of m; for int8, each row has its own scale.
Input kernel_input(Scratch& s, const Matrix& m, const float* x, int rows, int ldx) {
  if (m.kind == F32) return {x, size_t(ldx), nullptr};
  const int K = m.K;
  if (m.kind == BF16) {
    const size_t stride = round_up(m.depth * 2, 32) / 2;
    auto* to = reinterpret_cast<uint16_t*>(s.quant.need(rows * stride * 4));
    for (int r = 0; r < rows; ++r) {
      const float* from = x + size_t(r) * ldx;
      uint16_t* out = to + r * stride * 2;
      for (int k = 0; k < K; k += 16) {
        const __mmask16 live = K - k >= 16 ? 0xffff : (1u << (K - k)) - 1;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + k),
                            rounded(_mm512_maskz_loadu_ps(live, from + k)));
      }
    }
    return {to, stride, nullptr};
  }
  const size_t stride = round_up(m.depth * 4, 64) / 4;
  auto* to = reinterpret_cast<uint8_t*>(s.quant.need(rows * stride * 4));
  float* scale = s.qscale.need(rows);
  for (int r = 0; r < rows; ++r) {
    const float* from = x + size_t(r) * ldx;
    uint8_t* out = to + r * stride * 4;
    __m512 most = _mm512_setzero_ps();
    for (int k = 0; k < K; k += 16) {
      const __mmask16 live = K - k >= 16 ? 0xffff : (1u << (K - k)) - 1;
      most = _mm512_max_ps(most, abs512(_mm512_maskz_loadu_ps(live, from + k)));
    }
    const float top = _mm512_reduce_max_ps(most);
    const float f = top > 0 ? 127.f / top : 1.f;
    scale[r] = 1.f / f;
    const __m512 by = _mm512_set1_ps(f);
    for (int k = 0; k < K; k += 16) {
      const __mmask16 live = K - k >= 16 ? 0xffff : (1u << (K - k)) - 1;
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(live, from + k), by));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + k),
                       _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(128))));
    }
  }
  return {to, stride, scale};
}

// The arithmetic of a kernel: four bytes of an input times 64 bytes of a panel. Two instructions are inline
// assembly because gcc 12 keeps the sums of their builtins in memory.
struct Float32 {
  using Sum = __m512; using Operand = __m512;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Operand load(const char* p) { return _mm512_load_ps(p); }
  static Operand broadcast(const char* p) { return _mm512_set1_ps(*reinterpret_cast<const float*>(p)); }
  static Sum add(Sum s, Operand a, Operand b) { return _mm512_fmadd_ps(a, b, s); }
  static __m512 end(Sum s, const Matrix& m, const Input&, int, int col) {
    return _mm512_add_ps(s, _mm512_load_ps(m.bias + col));
  }
};
#ifdef __AVX512VNNI__
struct Int8 {
  using Sum = __m512i; using Operand = __m512i;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Operand load(const char* p) { return _mm512_load_si512(p); }
  static Operand broadcast(const char* p) { return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p)); }
  static Sum add(Sum s, Operand a, Operand b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
    return s;
  }
  static __m512 end(Sum s, const Matrix& m, const Input& in, int row, int col) {
    const __m512 by = _mm512_mul_ps(_mm512_load_ps(m.scale + col), _mm512_set1_ps(in.scale[row]));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(s, _mm512_load_si512(m.shift + col))), by,
                           _mm512_load_ps(m.bias + col));
  }
};
#endif
#ifdef __AVX512BF16__
struct BFloat16 {
  using Sum = __m512; using Operand = __m512i;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Operand load(const char* p) { return _mm512_load_si512(p); }
  static Operand broadcast(const char* p) { return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p)); }
  static Sum add(Sum s, Operand a, Operand b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
    return s;
  }
  static __m512 end(Sum s, const Matrix& m, const Input&, int, int col) {
    return _mm512_add_ps(s, _mm512_load_ps(m.bias + col));
  }
};
#endif

// One tile: R rows × 64 columns over the whole depth, then `end(row, column, four registers)`. Not inlined:
// the registers of a caller would push the sums into memory.
template <int R, class K, class End>
__attribute__((noinline)) void tile(const Matrix& m, const Input& in, int row, int panel, End&& end) {
  typename K::Sum sum[R][4];
  const char* w = m.data + size_t(panel) * m.depth * W * 4;
  const char* x = static_cast<const char*>(in.data) + size_t(row) * in.stride * 4;
  const size_t step = in.stride * 4;
  for (int r = 0; r < R; ++r) for (int j = 0; j < 4; ++j) sum[r][j] = K::zero();
  for (int k = 0; k < m.depth; ++k, w += W * 4, x += 4) {
    typename K::Operand b[4];
    for (int j = 0; j < 4; ++j) b[j] = K::load(w + 64 * j);
    for (int r = 0; r < R; ++r) {
      const typename K::Operand a = K::broadcast(x + r * step);
      for (int j = 0; j < 4; ++j) sum[r][j] = K::add(sum[r][j], a, b[j]);
    }
  }
  for (int r = 0; r < R; ++r) {
    __m512 y[4];
    for (int j = 0; j < 4; ++j) y[j] = K::end(sum[r][j], m, in, row + r, panel * W + 16 * j);
    end(row + r, panel * W, y);
  }
}

template <class K, class End>
void run_panels(const Matrix& m, const Input& in, int rows, int first, int last, End&& end) {
  for (int p = first; p < last; ++p) {
    int r = 0;
    for (; r + MR <= rows; r += MR) tile<MR, K>(m, in, r, p, end);
    switch (rows - r) {
      case 5: tile<5, K>(m, in, r, p, end); break;
      case 4: tile<4, K>(m, in, r, p, end); break;
      case 3: tile<3, K>(m, in, r, p, end); break;
      case 2: tile<2, K>(m, in, r, p, end); break;
      case 1: tile<1, K>(m, in, r, p, end); break;
      default: break;
    }
  }
}

// A second thread for single sentences on an idle machine. It computes the second half of a product if it
// starts before the first thread has finished its own half; otherwise the first thread computes both. It
// spins briefly between two products, then sleeps.
class HelperThread {
 public:
  HelperThread() : thread_([this] { run(); }) {}
  ~HelperThread() {
    if (getpid() != owner_pid_) { thread_.detach(); return; }  // a forked child does not have the thread
    { std::lock_guard<std::mutex> guard(lock_); stopping_ = true; }
    wake_.notify_one();
    thread_.join();
  }
  template <class First, class Second> void run_both(First&& first, Second&& second) {
    if (calls_to_skip_ > 0) { --calls_to_skip_; first(); second(); return; }
    function_ = [](void* f) { (*static_cast<std::remove_reference_t<Second>*>(f))(); };
    argument_ = &second;
    state_.store(OFFERED);
    if (sleeping_.load()) { std::lock_guard<std::mutex> guard(lock_); wake_.notify_one(); }
    const auto begin = __rdtsc();
    first();
    int expected = OFFERED;
    if (state_.compare_exchange_strong(expected, NOTHING)) { second(); return count_miss(); }
    const auto done = __rdtsc();
    while (state_.load(std::memory_order_acquire) != DONE) _mm_pause();
    state_.store(NOTHING);
    misses_in_a_row_ = 0;
    if (__rdtsc() - done > (done - begin) + 50000) pause();
    else if (++helped_in_a_row_ == 4000) { pause_length_ = 256; helped_in_a_row_ = 0; }
  }

 private:
  enum { NOTHING, OFFERED, TAKEN, DONE };
  // If the other core is busy, the helper costs time: the first thread waits for a helper that lost its core,
  // and a helper that wakes may displace the first thread. Then the next products are computed alone, more of
  // them after each pause.
  void pause() {
    calls_to_skip_ = pause_length_;
    if (pause_length_ < (1 << 20)) pause_length_ *= 4;
    helped_in_a_row_ = misses_in_a_row_ = 0;
  }
  void count_miss() { if (++misses_in_a_row_ == 24) pause(); }
  bool claim() {
    int expected = OFFERED;
    return state_.load(std::memory_order_relaxed) == OFFERED &&
           state_.compare_exchange_strong(expected, TAKEN);
  }
  void run() {
    for (int idle = 0;;) {
      if (claim()) {
        function_(argument_);
        state_.store(DONE, std::memory_order_release);
        idle = 0;
        continue;
      }
      if (++idle < 12000) { _mm_pause(); continue; }
      std::unique_lock<std::mutex> guard(lock_);
      sleeping_ = true;
      wake_.wait(guard, [&] { return stopping_ || state_.load() == OFFERED; });
      sleeping_ = false;
      if (stopping_) return;
      idle = 0;
    }
  }
  std::atomic<int> state_{NOTHING};
  std::atomic<bool> sleeping_{false};
  bool stopping_ = false;
  void (*function_)(void*) = nullptr;
  void* argument_ = nullptr;
  const pid_t owner_pid_ = getpid();
  int calls_to_skip_ = 0, pause_length_ = 256, helped_in_a_row_ = 0, misses_in_a_row_ = 0;
  std::mutex lock_;
  std::condition_variable wake_;
  std::thread thread_;  // last: it starts when the other members exist
};
thread_local std::unique_ptr<HelperThread> helper;

// The first panel of the second half of a product. One thread or two compute the halves in the same way.
inline int second_half(const Matrix& m) { return m.panels / 2; }

template <class End> void product(Scratch& s, const Matrix& m, const float* x, int rows, int ldx, End&& end,
                                  bool in_halves = true) {
  const Input in = kernel_input(s, m, x, rows, ldx);
  auto run_range = [&](int first, int last) {
    if (m.kind == F32) run_panels<Float32>(m, in, rows, first, last, end);
#ifdef __AVX512VNNI__
    if (m.kind == INT8) run_panels<Int8>(m, in, rows, first, last, end);
#endif
#ifdef __AVX512BF16__
    if (m.kind == BF16) run_panels<BFloat16>(m, in, rows, first, last, end);
#endif
  };
  const int half = second_half(m);
  if (!in_halves || !helper || half == 0) return run_range(0, m.panels);
  helper->run_both([&] { run_range(0, half); }, [&] { run_range(half, m.panels); });
}

// y = x Wᵀ + b, with an activation; columns beyond N are not written.
void linear(Scratch& s, const Matrix& m, const float* x, int rows, int ldx, float* y, int ldy,
            int activation = -1) {
  product(s, m, x, rows, ldx, [&](int r, int c, const __m512* v) {
    float* to = y + size_t(r) * ldy + c;
    for (int j = 0; j < 4 && c + 16 * j < m.N; ++j) {
      const __mmask16 live = m.N - c - 16 * j >= 16 ? 0xffff : (1u << (m.N - c - 16 * j)) - 1;
      _mm512_mask_storeu_ps(to + 16 * j, live, activation < 0 ? v[j] : act512(v[j], activation));
    }
  });
}
// y += x Wᵀ + b
void add_linear(Scratch& s, const Matrix& m, const float* x, int rows, int ldx, float* y, int ldy) {
  product(s, m, x, rows, ldx, [&](int r, int c, const __m512* v) {
    float* to = y + size_t(r) * ldy + c;
    for (int j = 0; j < 4 && c + 16 * j < m.N; ++j) {
      const __mmask16 live = m.N - c - 16 * j >= 16 ? 0xffff : (1u << (m.N - c - 16 * j)) - 1;
      _mm512_mask_storeu_ps(to + 16 * j, live, _mm512_add_ps(_mm512_maskz_loadu_ps(live, to + 16 * j), v[j]));
    }
  });
}

// --- Best tokens ---
struct TopK {  // the k best tokens of a row, and the sum for the softmax over all
  float max = NEG_INF, lowest = NEG_INF;  // of all scores; of the kept ones
  int count = 0;
  alignas(64) float sum[16] = {};

  // Add 64 scores of a row, from token c on.
  void add_scores(int c, const __m512* v, int k, float* values, int64_t* ids) {
    const float top =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3])));
    if (top == NEG_INF) return;
    __m512 total = _mm512_load_ps(sum);
    if (top > max) {
      if (max != NEG_INF) total = _mm512_mul_ps(total, exp512(_mm512_set1_ps(max - top)));
      max = top;
    }
    const __m512 high = _mm512_set1_ps(max);
    for (int j = 0; j < 4; ++j) total = _mm512_add_ps(total, exp512(_mm512_sub_ps(v[j], high)));
    _mm512_store_ps(sum, total);
    if (count == k && !(top > lowest)) return;
    for (int j = 0; j < 4; ++j) {
      __mmask16 better = _mm512_cmp_ps_mask(v[j], _mm512_set1_ps(lowest), _CMP_GT_OQ);
      if (!better) continue;
      alignas(64) float y[16];
      _mm512_store_ps(y, v[j]);
      for (; better; better &= better - 1) {
        const int i = __builtin_ctz(better);
        insert(y[i], c + 16 * j + i, k, values, ids);
      }
    }
  }
  // Add a candidate; the first of equals stays in front.
  void insert(float value, int64_t id, int k, float* values, int64_t* ids) {
    if (count == k && !(value > lowest)) return;
    int place = count < k ? count++ : k - 1;
    for (; place > 0 && values[place - 1] < value; --place) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
    }
    values[place] = value; ids[place] = id;
    if (count == k) lowest = values[k - 1];
  }
  // Merge the result for the tokens that follow.
  void merge(const TopK& other, int k, float* values, int64_t* ids, const float* other_values,
             const int64_t* other_ids) {
    if (other.max == NEG_INF) return;
    const float top = max > other.max ? max : other.max;
    auto scaled = [&](const TopK& b) {
      return b.max == NEG_INF ? _mm512_setzero_ps()
                              : _mm512_mul_ps(_mm512_load_ps(b.sum), exp512(_mm512_set1_ps(b.max - top)));
    };
    _mm512_store_ps(sum, _mm512_add_ps(scaled(*this), scaled(other)));
    max = top;
    for (int i = 0; i < other.count; ++i) insert(other_values[i], other_ids[i], k, values, ids);
  }
  // Turn scores into log p.
  void to_log_p(int k, float* values, int64_t* ids) const {
    const float norm = max + std::log(_mm512_reduce_add_ps(_mm512_load_ps(sum)));
    for (int i = 0; i < k; ++i) {
      if (i < count) values[i] -= norm;
      else { values[i] = NEG_INF; ids[i] = 0; }
    }
  }
};

void best_tokens(Scratch& s, const Matrix& m, const float* x, int rows, int ldx, int k, float* log_p,
                 int64_t* tokens) {
  const int half = second_half(m) * W;
  std::vector<TopK> top(2 * rows);  // of the first half of the tokens, then of the second
  float* second_values = s.scores.need(size_t(rows) * k);
  std::vector<int64_t> second_ids(size_t(rows) * k);
  product(s, m, x, rows, ldx, [&](int r, int c, const __m512* v) {
    if (c < half) top[r].add_scores(c, v, k, log_p + size_t(r) * k, tokens + size_t(r) * k);
    else top[rows + r].add_scores(c, v, k, second_values + size_t(r) * k, second_ids.data() + size_t(r) * k);
  });
  for (int r = 0; r < rows; ++r) {
    const size_t row = size_t(r) * k;
    top[r].merge(top[rows + r], k, log_p + row, tokens + row, second_values + row, second_ids.data() + row);
    top[r].to_log_p(k, log_p + row, tokens + row);
  }
}

// The shortlist of a row: its tokens, sorted, and a matrix with the columns of several rows; the bits of
// `columns` mark those of this row.
struct Shortlist { const Matrix* matrix; const uint64_t* columns; const int32_t* tokens; int64_t count; };

// The scores of the tokens in each row's shortlist, without gaps, so that a result does not depend on the
// other rows; padded with NEG_INF to a multiple of 64. Returns the distance between rows.
size_t shortlist_scores(Scratch& s, const Shortlist* shortlists, const float* x, int rows, int ldx) {
  int64_t longest = 0;
  for (int r = 0; r < rows; ++r) longest = shortlists[r].count > longest ? shortlists[r].count : longest;
  const size_t ld = round_up(int(longest), W) + W;
  float* y = s.scores.need(rows * ld);
  int32_t* filled = s.filled.need(rows);
  std::memset(filled, 0, rows * sizeof *filled);
  for (int r = 0, end; r < rows; r = end) {
    for (end = r + 1; end < rows && shortlists[end].matrix == shortlists[r].matrix;) ++end;
    product(s, *shortlists[r].matrix, x + size_t(r) * ldx, end - r, ldx, [&](int i, int c, const __m512* v) {
      const uint64_t marked = shortlists[r + i].columns[c / W];
      float* to = y + (r + i) * ld;
      int32_t& n = filled[r + i];
      for (int j = 0; j < 4; ++j) {
        const __mmask16 chosen = marked >> (16 * j);
        _mm512_storeu_ps(to + n, _mm512_maskz_compress_ps(chosen, v[j]));
        n += _mm_popcnt_u32(chosen);
      }
    }, false);  // tokens in order
  }
  for (int r = 0; r < rows; ++r)
    for (int i = filled[r]; i < round_up(filled[r], W); ++i) y[r * ld + i] = NEG_INF;
  return ld;
}

void best_shortlisted(Scratch& s, const Shortlist* shortlists, const float* x, int rows, int ldx, int k,
                      float* log_p, int64_t* tokens) {
  const size_t ld = shortlist_scores(s, shortlists, x, rows, ldx);
  std::vector<float> second_values(k);
  std::vector<int64_t> second_ids(k);
  for (int r = 0; r < rows; ++r) {
    TopK first, second;  // in halves, as without a shortlist
    float* values = log_p + size_t(r) * k;
    int64_t* ids = tokens + size_t(r) * k;
    const int half = round_up(int(shortlists[r].count), W) / W / 2 * W;
    for (int c = 0; c < shortlists[r].count; c += W) {
      const float* y = s.scores.p + r * ld + c;
      const __m512 v[4] = {_mm512_loadu_ps(y), _mm512_loadu_ps(y + 16), _mm512_loadu_ps(y + 32),
                           _mm512_loadu_ps(y + 48)};
      if (c < half) first.add_scores(c, v, k, values, ids);
      else second.add_scores(c, v, k, second_values.data(), second_ids.data());
    }
    first.merge(second, k, values, ids, second_values.data(), second_ids.data());
    first.to_log_p(k, values, ids);
    for (int i = 0; i < first.count; ++i) ids[i] = shortlists[r].tokens[ids[i]];
  }
}

void all_shortlisted(Scratch& s, const Shortlist* shortlists, const float* x, int rows, int ldx,
                     float* scores, int vocab) {
  const size_t ld = shortlist_scores(s, shortlists, x, rows, ldx);
  for (int r = 0; r < rows; ++r, scores += vocab) {
    for (int i = 0; i < vocab; ++i) scores[i] = NEG_INF;
    for (int i = 0; i < shortlists[r].count; ++i) scores[shortlists[r].tokens[i]] = s.scores.p[r * ld + i];
  }
}

// --- Layers ---
struct Norm {
  int kind = 0;  // 0 none, 1 layer, 2 rms
  float eps = 1e-5f;
  const float *weight = nullptr, *bias = nullptr;
};

void normalise(const Norm& n, const float* x, float* y, int rows, int dim) {
  if (!n.kind) { if (x != y) std::memcpy(y, x, size_t(rows) * dim * 4); return; }
  for (int r = 0; r < rows; ++r, x += dim, y += dim) {
    __m512 sum = _mm512_setzero_ps(), square = _mm512_setzero_ps();
    if (n.kind == 1) for (int i = 0; i < dim; i += 16) sum = _mm512_add_ps(sum, _mm512_loadu_ps(x + i));
    const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / dim);
    for (int i = 0; i < dim; i += 16) {
      const __m512 d = _mm512_sub_ps(_mm512_loadu_ps(x + i), mean);
      square = _mm512_fmadd_ps(d, d, square);
    }
    const __m512 f = _mm512_set1_ps(1.f / std::sqrt(_mm512_reduce_add_ps(square) / dim + n.eps));
    for (int i = 0; i < dim; i += 16) {
      __m512 v = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + i), mean), f);
      v = _mm512_mul_ps(v, _mm512_loadu_ps(n.weight + i));
      if (n.bias) v = _mm512_add_ps(v, _mm512_loadu_ps(n.bias + i));
      _mm512_storeu_ps(y + i, v);
    }
  }
}

// The sizes and kinds of a model; `ModelShape` of cpp_engine.py has the same fields.
struct ModelShape {
  int64_t dim, heads, width, inner, vocab;  // width: of a head
  int64_t activation, pre_norm, has_encoder, kind;   // pre_norm: the norm comes before the sublayer
  int64_t encoder_layers, decoder_layers, norm, last_norm;
  double scale, eps;                        // scale of the embeddings, epsilon of the norms
};

struct Sublayer { Matrix *in = nullptr, *out = nullptr; Norm norm; };
struct Layer { Sublayer self, feed; Matrix *cross_query = nullptr, *cross_out = nullptr; Norm cross_norm; };
struct Stack { std::vector<Layer> layers; Norm last; const float* positions = nullptr; };

struct Model {
  int dim, heads, width, inner, vocab, activation, pre_norm, has_encoder, kind;
  float scale;
  Stack encoder, decoder;
  const float *source_embeddings = nullptr, *target_embeddings = nullptr;
  Matrix *cross_memory = nullptr, *output = nullptr;
  const int32_t* weight_by_token = nullptr;  // the output weights token by token, for shortlists
  Array<int32_t> cells;
  std::vector<Matrix*> owned;
  ~Model() { for (auto* m : owned) delete m; }
};

// Keys and values are float32, or bfloat16 if the weights are rounded anyway: reading them is bound by
// memory.
inline __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load16(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline void store16(float* to, __m512 x) { _mm512_storeu_ps(to, x); }
inline void store16(uint16_t* to, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(x));
}
inline float convert(float x, float) { return x; }
inline uint16_t convert(float x, uint16_t) { return rounded(x); }
template <class T> void copy(const float* from, T* to, int n) {
  for (int i = 0; i < n; i += 16) store16(to + i, _mm512_loadu_ps(from + i));
}

// Softmax of n numbers in place, without the division; returns 1 / sum. `e` must be readable up to a multiple
// of 16.
float softmax(float* e, int n) {
  __m512 most = _mm512_set1_ps(NEG_INF);
  for (int j = 0; j < n; j += 16) {
    const __mmask16 live = n - j >= 16 ? 0xffff : (1u << (n - j)) - 1;
    most = _mm512_mask_max_ps(most, live, most, _mm512_loadu_ps(e + j));
  }
  const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  __m512 sum = _mm512_setzero_ps();
  for (int j = 0; j < n; j += 16) {
    const __mmask16 live = n - j >= 16 ? 0xffff : (1u << (n - j)) - 1;
    const __m512 p = exp512(_mm512_sub_ps(_mm512_loadu_ps(e + j), top));
    _mm512_storeu_ps(e + j, p);
    sum = _mm512_mask_add_ps(sum, live, sum, p);
  }
  return 1.f / _mm512_reduce_add_ps(sum);
}

// Energies of one query with n keys stored as columns: kt (D, ld); D a multiple of 4. P registers of keys,
// and 4 / P sums for each, so that no addition waits for the previous one.
template <int P, class T>
inline void energies_of(const float* q, const T* kt, int D, int ld, __m512 f, float* e) {
  constexpr int C = P >= 3 ? 1 : 4 / P;
  __m512 a[C][P];
  for (int c = 0; c < C; ++c) for (int i = 0; i < P; ++i) a[c][i] = _mm512_setzero_ps();
  for (int d = 0; d < D; d += C)
    for (int c = 0; c < C; ++c) {
      const __m512 x = _mm512_set1_ps(q[d + c]);
      const T* k = kt + size_t(d + c) * ld;
      for (int i = 0; i < P; ++i) a[c][i] = _mm512_fmadd_ps(x, load16(k + 16 * i), a[c][i]);
    }
  for (int i = 0; i < P; ++i) {
    for (int c = 1; c < C; ++c) a[0][i] = _mm512_add_ps(a[0][i], a[c][i]);
    _mm512_storeu_ps(e + 16 * i, _mm512_mul_ps(a[0][i], f));
  }
}
template <class T>
inline void energies(const float* q, const T* kt, int D, int n, int ld, float scale, float* e) {
  const __m512 f = _mm512_set1_ps(scale);
  for (; n > 48; n -= 64, kt += 64, e += 64) energies_of<4>(q, kt, D, ld, f, e);
  if (n > 32) energies_of<3>(q, kt, D, ld, f, e);
  else if (n > 16) energies_of<2>(q, kt, D, ld, f, e);
  else if (n > 0) energies_of<1>(q, kt, D, ld, f, e);
}

// out = by · Σ p_s v_s with v_s = value(s); D a multiple of 16
template <class Value>
inline void weighted_sum(const float* p, int n, int D, float by, float* out, Value&& value) {
  const __m512 f = _mm512_set1_ps(by);
  int d = 0;
  for (; d + 64 <= D; d += 64) {
    __m512 a[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int s = 0; s < n; ++s) {
      const auto* v = value(s) + d;
      const __m512 w = _mm512_set1_ps(p[s]);
      for (int i = 0; i < 4; ++i) a[i] = _mm512_fmadd_ps(w, load16(v + 16 * i), a[i]);
    }
    for (int i = 0; i < 4; ++i) _mm512_storeu_ps(out + d + 16 * i, _mm512_mul_ps(a[i], f));
  }
  for (; d < D; d += 16) {
    __m512 a = _mm512_setzero_ps();
    for (int s = 0; s < n; ++s) a = _mm512_fmadd_ps(_mm512_set1_ps(p[s]), load16(value(s) + d), a);
    _mm512_storeu_ps(out + d, _mm512_mul_ps(a, f));
  }
}

// Store keys (n, ·) of one head as columns (D, ld).
template <class T> void columns(const float* k, int stride, int n, int D, int ld, T* kt) {
  for (int s = 0; s < n; ++s)
    for (int d = 0; d < D; ++d) kt[size_t(d) * ld + s] = convert(k[size_t(s) * stride + d], T());
  for (int d = 0; d < D; ++d) for (int s = n; s < ld; ++s) kt[size_t(d) * ld + s] = 0;
}

// Norm and residual of a sublayer: `f(input)` adds its result to x.
template <class F> void residual(const Model& m, Scratch& s, const Norm& norm, float* x, int rows, F&& f) {
  if (m.pre_norm) {
    float* h = s.h.need(size_t(rows) * m.dim);
    normalise(norm, x, h, rows, m.dim);
    f(h);
  } else {
    f(x);  // the first product reads x before the last one adds to it
    normalise(norm, x, x, rows, m.dim);
  }
}

void feed_forward(const Model& m, Scratch& s, const Sublayer& l, const float* h, float* x, int rows) {
  const int hidden = m.activation == SWIGLU ? 2 * m.inner : m.inner;
  float* a = s.a.need(size_t(rows) * hidden);
  linear(s, *l.in, h, rows, m.dim, a, hidden, m.activation == SWIGLU ? -1 : m.activation);
  if (m.activation == SWIGLU)
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < m.inner; i += 16) {
        float* gate = a + size_t(r) * hidden + i;
        _mm512_storeu_ps(
            gate, _mm512_mul_ps(act512(_mm512_loadu_ps(gate), SWIGLU), _mm512_loadu_ps(gate + m.inner)));
      }
  add_linear(s, *l.out, a, rows, hidden, x, m.dim);
}

void embed(const Model& m, const float* table, const float* positions, const int64_t* tokens,
           const int32_t* position, int n, float* x) {
  const __m512 f = _mm512_set1_ps(m.scale);
  for (int r = 0; r < n; ++r) {
    const float *e = table + size_t(tokens[r]) * m.dim,
                *p = positions ? positions + size_t(position[r]) * m.dim : nullptr;
    for (int i = 0; i < m.dim; i += 16) {
      __m512 v = _mm512_mul_ps(_mm512_loadu_ps(e + i), f);
      if (p) v = _mm512_add_ps(v, _mm512_loadu_ps(p + i));
      _mm512_storeu_ps(x + size_t(r) * m.dim + i, v);
    }
  }
}
thread_local Scratch scratch;

// Cross-attention keys and values of all decoder layers for each sentence.
template <class T> void store_cross_memory(const Model& m, Scratch& s, int sentences, const int32_t* lengths,
                                           int total, const float* x, T* const* memory) {
  const int layers = m.decoder.layers.size(), attention_dim = m.heads * m.width,
            all = layers * 2 * attention_dim, D = m.width;
  float* kv = s.a.need(size_t(total) * all);
  linear(s, *m.cross_memory, x, total, m.dim, kv, all);
  for (int b = 0; b < sentences; kv += size_t(lengths[b++]) * all) {
    const int n = lengths[b], ld = round_up(n, 16);
    T* to = memory[b];
    for (int l = 0; l < layers; ++l) {
      const float* from = kv + size_t(l) * 2 * attention_dim;
      for (int head = 0; head < m.heads; ++head, to += size_t(D) * ld)
        columns(from + head * D, all, n, D, ld, to);
      for (int i = 0; i < n; ++i, to += attention_dim)
        copy(from + attention_dim + size_t(i) * all, to, attention_dim);
    }
  }
}

// The inputs and outputs of one decoder step; `StepPlan` of cpp_engine.py has the same fields.
struct StepPlan {
  int64_t rows;
  const int64_t* tokens;      // (rows,) the last token of each row
  const int32_t* lengths;     // (rows,) tokens generated before
  const int32_t* past;        // (rows, past_stride) the slots of these tokens
  int64_t past_stride;
  void* slots;                // keys and values of generated tokens, one slot per row and step
  int64_t first_slot;         // row r writes slot first_slot + r
  void* const* memory;        // (rows,) cross-attention keys and values of each row's sentence
  const int32_t* source_lengths;
  int64_t k;                  // number of best tokens
  float* log_p;               // out (rows, k)
  int64_t* best;              // out (rows, k)
  float* scores;              // out (rows, vocabulary) instead of the best tokens, or null
  const Shortlist* shortlists;   // (rows,) or null
};

// Causal self-attention of layer i for one new token per row. `p` holds heads × ldp weights.
template <class T> void self_attention(const Model& m, const StepPlan& plan, int i, const float* qkv,
                                       float* p, int ldp, float* out) {
  const int D = m.width, attention_dim = m.heads * D;
  const size_t slot = m.decoder.layers.size() * 2 * size_t(attention_dim);
  const float f = 1.f / std::sqrt(float(D));
  T* slots = static_cast<T*>(plan.slots) + size_t(i) * 2 * attention_dim;
  for (int r = 0; r < plan.rows; ++r) {
    const float* q = qkv + size_t(r) * 3 * attention_dim;
    T* new_slot = slots + (plan.first_slot + r) * slot;
    copy(q + attention_dim, new_slot, 2 * attention_dim);
    const int32_t* before = plan.past + r * plan.past_stride;
    const int length = plan.lengths[r], steps = length + 1;
    auto key = [&](int t) { return t < length ? slots + before[t] * slot : new_slot; };
    for (int t = 0; t < steps; ++t) {
      const T* kk = key(t);
      for (int head = 0; head < m.heads; ++head) {
        __m512 a = _mm512_setzero_ps();
        for (int d = head * D; d < head * D + D; d += 16)
          a = _mm512_fmadd_ps(_mm512_loadu_ps(q + d), load16(kk + d), a);
        p[head * ldp + t] = f * _mm512_reduce_add_ps(a);
      }
    }
    for (int head = 0; head < m.heads; ++head) {
      float* e = p + head * ldp;
      const float by = softmax(e, steps);
      weighted_sum(e, steps, D, by, out + size_t(r) * attention_dim + head * D,
                   [&](int t) { return key(t) + attention_dim + head * D; });
    }
  }
}

// Cross-attention of layer i.
template <class T>
void cross_attention(const Model& m, const StepPlan& plan, int i, const float* q, float* p, float* out) {
  const int D = m.width, attention_dim = m.heads * D;
  const float f = 1.f / std::sqrt(float(D));
  for (int r = 0; r < plan.rows; ++r) {
    const int S = plan.source_lengths[r], ld = round_up(S, 16);
    const T* kt = static_cast<const T*>(plan.memory[r]) + size_t(i) * attention_dim * (ld + S);
    const T* v = kt + size_t(attention_dim) * ld;
    for (int head = 0; head < m.heads; ++head) {
      energies(q + size_t(r) * attention_dim + head * D, kt + size_t(head) * D * ld, D, S, ld, f, p);
      const float by = softmax(p, S);
      weighted_sum(p, S, D, by, out + size_t(r) * attention_dim + head * D,
                   [&](int j) { return v + size_t(j) * attention_dim + head * D; });
    }
  }
}

// One decoder step: T is the type of keys and values.
template <class T> void step(const Model& m, Scratch& s, const StepPlan& plan) {
  const int n = plan.rows, attention_dim = m.heads * m.width;
  int longest = 0;
  for (int r = 0; r < n; ++r) {
    longest = plan.lengths[r] + 1 > longest ? plan.lengths[r] + 1 : longest;
    if (m.has_encoder) longest = plan.source_lengths[r] > longest ? plan.source_lengths[r] : longest;
  }
  const int ldp = round_up(longest, 16);
  float* p = s.p.need(ldp * size_t(m.heads) + 64);
  float* x = s.x.need(size_t(n) * m.dim);
  embed(m, m.target_embeddings, m.decoder.positions, plan.tokens, plan.lengths, n, x);
  for (int i = 0; i < int(m.decoder.layers.size()); ++i) {
    auto& l = m.decoder.layers[i];
    residual(m, s, l.self.norm, x, n, [&](const float* h) {
      float* qkv = s.a.need(size_t(n) * 3 * attention_dim);
      linear(s, *l.self.in, h, n, m.dim, qkv, 3 * attention_dim);
      float* out = s.b.need(size_t(n) * attention_dim);
      self_attention<T>(m, plan, i, qkv, p, ldp, out);
      add_linear(s, *l.self.out, out, n, attention_dim, x, m.dim);
    });
    if (m.has_encoder)
      residual(m, s, l.cross_norm, x, n, [&](const float* h) {
        float* q = s.a.need(size_t(n) * attention_dim);
        linear(s, *l.cross_query, h, n, m.dim, q, attention_dim);
        float* out = s.b.need(size_t(n) * attention_dim);
        cross_attention<T>(m, plan, i, q, p, out);
        add_linear(s, *l.cross_out, out, n, attention_dim, x, m.dim);
      });
    residual(m, s, l.feed.norm, x, n, [&](const float* h) { feed_forward(m, s, l.feed, h, x, n); });
  }
  normalise(m.decoder.last, x, x, n, m.dim);
  const int k = int(plan.k);
  if (plan.shortlists && plan.scores) all_shortlisted(s, plan.shortlists, x, n, m.dim, plan.scores, m.vocab);
  else if (plan.shortlists) best_shortlisted(s, plan.shortlists, x, n, m.dim, k, plan.log_p, plan.best);
  else if (plan.scores) linear(s, *m.output, x, n, m.dim, plan.scores, m.vocab);
  else best_tokens(s, *m.output, x, n, m.dim, k, plan.log_p, plan.best);
}
}  // namespace

// Return 0, or an error: 1 out of memory, 2 anything else. No exception leaves this library.
template <class Run> int guarded(Run run) noexcept {
  try { run(); return 0; } catch (const std::bad_alloc&) { return 1; } catch (...) { return 2; }
}

extern "C" {

// The precisions of this machine: 1 float32, 2 int8, 4 bfloat16, added.
int engine_kinds() {
  int kinds = 1;
#ifdef __AVX512VNNI__
  kinds += 2;
#endif
#ifdef __AVX512BF16__
  kinds += 4;
#endif
  return kinds;
}

// Start or stop the second thread that computes halves of products.
void engine_use_helper(int enabled) {
  if (bool(helper) == bool(enabled)) return;
  try { helper.reset(enabled ? new HelperThread : nullptr); } catch (...) {}  // without a second thread
}

void engine_limit_allocation(int64_t bytes) { max_bytes = bytes; }

// Create a model and store it in `model`. `t` are the tensors in the order in which they are read below.
int engine_new(const ModelShape* shape, const float* const* t, void** model) { return guarded([&] {
  const ModelShape& n = *shape;
  auto m = std::make_unique<Model>();
  m->dim = n.dim; m->heads = n.heads; m->width = n.width; m->inner = n.inner; m->vocab = n.vocab;
  m->activation = n.activation;
  m->pre_norm = n.pre_norm;
  m->has_encoder = n.has_encoder;
  m->kind = n.kind;
  m->scale = n.scale;
  const int attention_dim = m->heads * m->width, dim = m->dim;
  auto matrix = [&](int N, int K) {
    m->owned.push_back(nullptr);
    auto* p = m->owned.back() = pack(m->kind, N, K, t[0], t[1]);
    t += 2;
    return p;
  };
  auto norm = [&](int kind) {
    Norm x;
    x.kind = kind;
    x.eps = float(n.eps);
    if (kind) {
      x.weight = t[0];
      x.bias = t[1];
      t += 2;
    }
    return x;
  };
  const int hidden = m->activation == SWIGLU ? 2 * m->inner : m->inner;
  auto stack = [&](Stack& s, int layers, bool cross, int last) {
    s.layers.resize(layers);
    for (auto& l : s.layers) {
      l.self.in = matrix(3 * attention_dim, dim);
      l.self.out = matrix(dim, attention_dim);
      l.self.norm = norm(n.norm);
      if (cross) {
        l.cross_query = matrix(attention_dim, dim);
        l.cross_out = matrix(dim, attention_dim);
        l.cross_norm = norm(n.norm);
      }
      l.feed.in = matrix(hidden, dim); l.feed.out = matrix(dim, m->inner); l.feed.norm = norm(n.norm);
    }
    s.last = norm(last);
  };
  m->target_embeddings = *t++;
  if (m->has_encoder) {
    m->source_embeddings = *t++;
    stack(m->encoder, n.encoder_layers, false, n.last_norm);
    m->cross_memory = matrix(int(n.decoder_layers) * 2 * attention_dim, dim);
  }
  stack(m->decoder, n.decoder_layers, m->has_encoder, n.last_norm);
  m->output = matrix(m->vocab, dim);
  *model = m.release();
}); }
void engine_free(void* m) { delete static_cast<Model*>(m); }

// Prepare for shortlists. `weight` (vocabulary, dim) is not copied and must stay valid.
int engine_prepare_shortlists(void* model, const float* weight) { return guarded([&] {
  auto& m = *static_cast<Model*>(model);
  const Matrix& o = *m.output;
  if (o.kind == F32) { m.weight_by_token = reinterpret_cast<const int32_t*>(weight); return; }
  int32_t* to = m.cells.need(size_t(o.N) * o.depth);
  for (int n = 0; n < o.N; ++n)
    for (int k = 0; k < o.depth; ++k)
      *to++ = reinterpret_cast<const int32_t*>(o.data)[(size_t(n / W) * o.depth + k) * W + n % W];
  m.weight_by_token = m.cells.p;
}); }
// The columns of some tokens (sorted); freed by engine_free_columns.
int engine_select_columns(void* model, int64_t n, const int32_t* tokens, void** chosen) { return guarded([&] {
  auto& m = *static_cast<Model*>(model);
  *chosen = select_columns(*m.output, m.weight_by_token, int(n), tokens);
}); }
void engine_free_columns(void* chosen) { delete static_cast<Matrix*>(chosen); }

void engine_positions(void* model, const float* encoder, const float* decoder) {
  auto* m = static_cast<Model*>(model);
  m->encoder.positions = encoder; m->decoder.positions = decoder;
}

// Number of elements of the cross-attention memory of a sentence of n tokens.
int64_t engine_memory_size(void* model, int64_t n) {
  auto* m = static_cast<Model*>(model);
  return int64_t(m->decoder.layers.size()) * m->heads * m->width * (round_up(n, 16) + n);
}

// Encode concatenated sentences. The memory of each has, per decoder layer, keys as columns (heads, D, n
// rounded up to 16) and values (n, attention_dim).
int engine_encode(void* model, int64_t sentences, const int32_t* lengths, const int64_t* tokens,
                  const int32_t* position, void* const* memory) {
  return guarded([&] {
  auto& m = *static_cast<Model*>(model);
  auto& s = scratch;
  int total = 0, longest = 0;
  for (int b = 0; b < sentences; ++b) {
    total += lengths[b];
    longest = lengths[b] > longest ? lengths[b] : longest;
  }
  const int attention_dim = m.heads * m.width, D = m.width, ld = round_up(longest, 16);
  const float f = 1.f / std::sqrt(float(D));
  float* x = s.x.need(size_t(total) * m.dim);
  embed(m, m.source_embeddings, m.encoder.positions, tokens, position, total, x);
  float* kt = s.kt.need(size_t(D) * ld);
  float* p = s.p.need(ld + 64);
  for (auto& l : m.encoder.layers) {
    residual(m, s, l.self.norm, x, total, [&](const float* h) {
      float* qkv = s.a.need(size_t(total) * 3 * attention_dim);
      linear(s, *l.self.in, h, total, m.dim, qkv, 3 * attention_dim);
      float* out = s.b.need(size_t(total) * attention_dim);
      size_t o = 0;
      for (int b = 0; b < sentences; o += lengths[b++])
        for (int head = 0; head < m.heads; ++head) {
          const int n = lengths[b];
          const float* base = qkv + o * 3 * attention_dim + head * D;
          columns(base + attention_dim, 3 * attention_dim, n, D, round_up(n, 16), kt);
          for (int i = 0; i < n; ++i) {
            energies(base + size_t(i) * 3 * attention_dim, kt, D, n, round_up(n, 16), f, p);
            const float by = softmax(p, n);
            weighted_sum(p, n, D, by, out + (o + i) * attention_dim + head * D,
                         [&](int j) { return base + 2 * attention_dim + size_t(j) * 3 * attention_dim; });
          }
        }
      add_linear(s, *l.self.out, out, total, attention_dim, x, m.dim);
    });
    residual(m, s, l.feed.norm, x, total, [&](const float* h) { feed_forward(m, s, l.feed, h, x, total); });
  }
  normalise(m.encoder.last, x, x, total, m.dim);
  if (m.kind == F32)
    store_cross_memory(m, s, sentences, lengths, total, x, reinterpret_cast<float* const*>(memory));
  else store_cross_memory(m, s, sentences, lengths, total, x, reinterpret_cast<uint16_t* const*>(memory));
  });
}

// One decoder step: the k best next tokens of each row with log p, or all scores; with shortlists, of their
// tokens.
int engine_step(void* model, const StepPlan* plan) {
  auto& m = *static_cast<Model*>(model);
  return guarded([&] {
    if (m.kind == F32) step<float>(m, scratch, *plan);
    else step<uint16_t>(m, scratch, *plan);
  });
}
}
