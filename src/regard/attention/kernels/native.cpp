// Attention over a range of keys per query: softmax(energy) @ v and its gradients, float32 on the CPU.
//
// Layout: queries are along the SIMD lanes. A block of BR = NV * LANES queries is transposed once, and
// every tile of energies is stored as S[key][query]. Keys and values are read in place, one scalar
// broadcast at a time. So any feature size works, keys need no packing, a tile ends exactly at its last
// key, and the softmax of a query needs no reduction across lanes.
//
// Sections: vectors, matrix microkernel, key ranges, bias and soft cap, dot energy, distance energy,
// additive energy, forward, backward.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

// ------------------------------------------------------------------------- arguments from Python
struct Tensor {  // element (b, h, t, e) is data[b * sb + h * sh + t * st + e]
    float* data;
    int64_t sb, sh, st;
    float* at(int64_t b, int64_t h, int64_t t) const { return data + b * sb + h * sh + t * st; }
};

struct Call {
    int64_t B, H, Hk, Tq, Tk, D, Dv;
    int64_t threads;
    int64_t range_sb;         // batch stride of start and stop, 0 if they are shared
    int64_t chunks;           // backward: the keys are split into this many chunks, with one dq for each
    int64_t parallel_b, parallel_h;  // backward: batch entries and key heads that may run in parallel
    double scale, softcap;
    const int32_t *start, *stop;     // query i sees the keys start[i] <= j < stop[i]
    const float *slopes, *w;         // (H) and (H, D)
    Tensor q, k, v, out, norm, bias, grad, dq, dk, dv, dbias, dw;  // norm: see save_norm

    // A query without keys may hold NaN, so its values are not read.
    bool empty(int64_t b, int64_t i) const { return start[b * range_sb + i] >= stop[b * range_sb + i]; }
};

// ------------------------------------------------------------------------------------- vectors
#if defined(__AVX512F__)
constexpr int LANES = 16, ACCUMULATORS = 24;
#elif defined(__AVX__)
constexpr int LANES = 8, ACCUMULATORS = 12;
#else
constexpr int LANES = 4, ACCUMULATORS = 12;
#endif
#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER
typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef float vf_any __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

constexpr float INF = __builtin_inff(), LOG2E = 1.44269504088896f, LOG2E_REST = 1.92596299e-8f;
constexpr int TILE = 96;  // keys per tile of energies: tile, queries and output fit the L1 cache

INLINE vf splat(float x) { return x - vf{}; }
INLINE vf load(const float* p) { return *(const vf_any*)p; }
INLINE void store(float* p, vf x) { *(vf_any*)p = x; }
#ifdef __AVX512F__  // one instruction, which the compiler does not generate by itself
INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#else
INLINE vf larger(vf a, vf b) { return a > b ? a : b; }  // b when one of them is NaN
INLINE vf smaller(vf a, vf b) { return a < b ? a : b; }
#endif
INLINE vf at_least(vf x, float low) { return larger(splat(low), x); }  // NaN stays NaN
INLINE vf at_most(vf x, float high) { return smaller(splat(high), x); }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

INLINE vf lane_index() {  // 0, 1, 2, ...
    vf x;
    for (int l = 0; l < LANES; l++) x[l] = l;
    return x;
}

INLINE float sum_lanes(vf x) {
    float sum = 0;
    for (int l = 0; l < LANES; l++) sum += x[l];
    return sum;
}

INLINE float dot(const float* x, const float* y, int64_t n) {  // x . y for n a multiple of LANES
    vf sum = {};
    for (int64_t d = 0; d < n; d += LANES) sum += load(x + d) * load(y + d);
    return sum_lanes(sum);
}

INLINE bool any(vi x) {
    int32_t r = 0;
    for (int l = 0; l < LANES; l++) r |= x[l];
    return r;
}

constexpr float ROUND = 12582912.0f + 127.0f;  // adding 1.5 * 2^23 rounds to an integer; 127: see below

// 2^(n + f) for |f| <= 1/2 and t = n + ROUND with integer n in -126..127: a polynomial gives 2^f, and
// the last bits of t, which hold n + 127, become the exponent of the factor 2^n.
INLINE vf exp2_parts(vf t, vf f) {
    vf r = f * 1.53458118e-4f + 1.33999314e-3f;
    r = r * f + 9.61848896e-3f;
    r = r * f + 5.55032878e-2f;
    r = r * f + 2.40226469e-1f;
    r = r * f + 6.93147206e-1f;
    r = r * f + 1.0f;
    return r * (vf)((vi)t << 23);
}

// e^x for x <= 87; exactly 0 below -87, so that a masked key (-inf) has weight 0.
INLINE vf exp_or_zero(vf x) {
    vf y = at_least(x, -87.0f), t = y * LOG2E + ROUND;
    vf r = exp2_parts(t, y * LOG2E_REST + (y * LOG2E - (t - ROUND)));
    return x < -87.0f ? vf{} : r;
}

// e^x for |x| <= 87 with the error of one rounding: x - n ln 2 is computed in two exact steps.
INLINE vf expv(vf x) {
    vf t = x * LOG2E + ROUND, n = t - ROUND;
    vf f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    return exp2_parts(t, f * LOG2E);
}

// 1 / x for 1e-37 < x < 1e37: a 14-bit estimate and one Newton step, faster than a division.
INLINE vf reciprocal(vf x) {
#ifdef __AVX512F__
    vf r = (vf)_mm512_rcp14_ps((__m512)x);
    return r + r * (1.0f - x * r);
#else
    return 1.0f / x;
#endif
}

// tanh with a small relative error also near 0: an odd polynomial there, the exponential elsewhere.
INLINE vf tanhv(vf x) {
    vf z = x * x;
    vf r = z * -5.85217e-3f + 2.075363e-2f;
    r = r * z - 5.37687e-2f;
    r = r * z + 1.3331689e-1f;
    r = r * z - 3.3333283e-1f;
    vf near = x + x * (z * r);
    vf e = expv(-2.0f * at_most(x < 0.0f ? -x : x, 20.0f));
    vf far = 1.0f - 2.0f * e / (1.0f + e);  // the subtracted term is small, and so is its error
    return z < 0.36f ? near : x < 0.0f ? -far : far;
}

// tanh'(x) = 4 e / (1 + e)^2 with e = e^(-2 |x|): unlike 1 - tanh^2, accurate also where tanh is near 1.
INLINE vf tanh_derivative(vf x) {
    vf e = expv(-2.0f * at_most(x < 0.0f ? -x : x, 40.0f)), r = 1.0f / (1.0f + e);
    return 4.0f * e * r * r;
}

static int64_t max_allocation = INT64_MAX;  // bytes; tests lower it

static void* allocate(int64_t bytes) {
    void* p = bytes > 0 && bytes <= max_allocation ? std::aligned_alloc(64, round_up(bytes, 64)) : nullptr;
    if (!p) throw std::bad_alloc();
    return p;
}

struct Buffer {  // aligned scratch memory
    float* p;
    explicit Buffer(int64_t n) : p((float*)allocate(round_up(n * 4 + 64, 64))) {}
    ~Buffer() { std::free(p); }
    Buffer(const Buffer&) = delete;
    operator float*() const { return p; }
};

// The first access to a new output of many MB is faster with pages of 2 MB; only a hint.
static void prefer_large_pages(const Tensor& x, int64_t floats) {
#ifdef __linux__
    const int64_t page = 1 << 21, from = round_up((int64_t)x.data, page);
    const int64_t to = (int64_t)(x.data + floats) / page * page;
    if (to - from >= 4 * page) madvise((void*)from, to - from, MADV_HUGEPAGE);
#else
    (void)x, (void)floats;
#endif
}

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, vi{__VA_ARGS__})
#endif

// One step of a transpose: rows a and b, STEP apart, exchange the lanes that are STEP apart.
template <int STEP, int... I> static inline void exchange(vf& a, vf& b, std::integer_sequence<int, I...>) {
    vf x = SHUFFLE(a, b, ((I & STEP) ? LANES + (I ^ STEP) : I)...);
    b = SHUFFLE(a, b, ((I & STEP) ? LANES + I : (I ^ STEP))...);
    a = x;
}

template <int STEP = 1> static inline void transpose_square(vf* x) {
    if constexpr (STEP < LANES) {
#pragma GCC unroll 16
        for (int r = 0; r < LANES; r++)
            if (!(r & STEP)) exchange<STEP>(x[r], x[r | STEP], std::make_integer_sequence<int, LANES>{});
        transpose_square<STEP * 2>(x);
    }
}

// dst[c][r] = src[r][c]
static void transpose(const float* src, int64_t ss, float* dst, int64_t ds, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < cols; c += LANES) {
            if (r + LANES <= rows && c + LANES <= cols) {
                vf x[LANES];
                for (int l = 0; l < LANES; l++) x[l] = load(src + (r + l) * ss + c);
                transpose_square(x);
                for (int l = 0; l < LANES; l++) store(dst + (c + l) * ds + r, x[l]);
            } else {
                for (int64_t i = r; i < std::min(rows, r + LANES); i++)
                    for (int64_t j = c; j < std::min(cols, c + LANES); j++) dst[j * ds + i] = src[i * ss + j];
            }
        }
}

// --------------------------------------------------------------------------- matrix microkernel
// c[R][C vectors] (+)= a[R][K] b[K][C vectors]. Element (r, k) of a is a[r * rs + k * ks]; ldb and ldc are
// the row strides of b and c, as in BLAS. All R * C sums stay in registers; each scalar of a is broadcast
// once per C multiply-adds.
template <int R, int C>
static inline void kernel(int64_t K, const float* a, int64_t rs, int64_t ks, const float* b, int64_t ldb,
                          float* c, int64_t ldc, bool add) {
    vf sum[R][C];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < C; v++) sum[r][v] = add ? load(c + r * ldc + v * LANES) : vf{};
    for (int64_t k = 0; k < K; k++, a += ks, b += ldb) {
        vf x[C];
        for (int v = 0; v < C; v++) x[v] = load(b + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < C; v++) sum[r][v] += a[r * rs] * x[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < C; v++) store(c + r * ldc + v * LANES, sum[r][v]);
}

template <int R, int C>
static void kernel_rest(int64_t M, int64_t K, const float* a, int64_t rs, int64_t ks, const float* b,
                        int64_t ldb, float* c, int64_t ldc, bool add) {
    if constexpr (R > 0) {
        if (M == R) kernel<R, C>(K, a, rs, ks, b, ldb, c, ldc, add);
        else kernel_rest<R - 1, C>(M, K, a, rs, ks, b, ldb, c, ldc, add);
    }
}

// kernel() for any number of rows M.
template <int C>
static void matmul(int64_t M, int64_t K, const float* a, int64_t rs, int64_t ks, const float* b, int64_t ldb,
                   float* c, int64_t ldc, bool add) {
    constexpr int R = std::min(12, ACCUMULATORS / C);
    int64_t m = 0;
    for (; m + R <= M; m += R) kernel<R, C>(K, a + m * rs, rs, ks, b, ldb, c + m * ldc, ldc, add);
    kernel_rest<R - 1, C>(M - m, K, a + m * rs, rs, ks, b, ldb, c + m * ldc, ldc, add);
}

// c[M][N] += a[M][K] b[K][N] for N a multiple of LANES.
static void matmul_wide(int64_t M, int64_t N, int64_t K, const float* a, int64_t lda, const float* b,
                        int64_t ldb, float* c, int64_t ldc) {
    int64_t n = 0;
    for (; n + 2 * LANES <= N; n += 2 * LANES) matmul<2>(M, K, a, lda, 1, b + n, ldb, c + n, ldc, true);
    if (n < N) matmul<1>(M, K, a, lda, 1, b + n, ldb, c + n, ldc, true);
}

// ------------------------------------------------------------------------------------ key ranges
// The key ranges of a block of queries, and their union as disjoint segments: only those keys are read.
// Rows beyond the last query see no key.
template <int NV>
struct KeyRanges {
    static constexpr int BR = NV * LANES;
    alignas(64) int32_t start[BR], stop[BR];
    int64_t common_lo = 0, common_hi = INT32_MAX;  // keys that every row sees
    int segments = 0;
    std::pair<int64_t, int64_t> segment[BR];

    KeyRanges(const Call& c, int64_t b, int64_t i0, int64_t from, int64_t to) {
        for (int r = 0; r < BR; r++) {
            int64_t i = b * c.range_sb + i0 + r;
            start[r] = i0 + r < c.Tq ? c.start[i] : 0, stop[r] = i0 + r < c.Tq ? c.stop[i] : 0;
            common_lo = std::max<int64_t>(common_lo, start[r]);
            common_hi = std::min<int64_t>(common_hi, stop[r]);
            int64_t lo = std::max<int64_t>(start[r], from), hi = std::min<int64_t>(stop[r], to);
            if (lo < hi) segment[segments++] = {lo, hi};
        }
        std::sort(segment, segment + segments);
        int n = 0;  // merge segments that overlap or touch
        for (int s = 0; s < segments; s++) {
            if (n && segment[s].first <= segment[n - 1].second)
                segment[n - 1].second = std::max(segment[n - 1].second, segment[s].second);
            else segment[n++] = segment[s];
        }
        segments = n;
    }

    // Set S to -inf where a row does not see the key. Nothing to do if all rows see the whole tile.
    void mask(float* S, int64_t j0, int64_t n) const {
        if (j0 >= common_lo && j0 + n <= common_hi) return;
        for (int v = 0; v < NV; v++) {
            vi lo = *(const vi*)(start + v * LANES), hi = *(const vi*)(stop + v * LANES);
            for (int64_t j = 0; j < n; j++) {
                float* s = S + j * BR + v * LANES;
                int32_t key = j0 + j;
                store(s, ((lo <= key) & (hi > key)) ? load(s) : splat(-INF));
            }
        }
    }

    template <class F> void tiles(F f) const {  // f(first key, number of keys)
        for (int s = 0; s < segments; s++)
            for (int64_t j = segment[s].first; j < segment[s].second; j += TILE)
                f(j, std::min<int64_t>(TILE, segment[s].second - j));
    }
};

// -------------------------------------------------------------------------- bias and soft cap
// Base of the energies: the current block of queries, their ALiBi slopes or bias, the soft cap, and the
// gradient of the bias.
template <int NV>
struct QueryBlock {
    static constexpr int BR = NV * LANES;
    const Call& c;
    int64_t b, h, hk, i0, rows;
    float slope, softcap;
    Buffer flip;  // a transposed tile

    explicit QueryBlock(const Call& c) : c(c), flip(TILE * BR) {}

    void set_block(int64_t b_, int64_t h_, int64_t i0_) {
        b = b_, h = h_, hk = h / (c.H / c.Hk), i0 = i0_, rows = std::min<int64_t>(BR, c.Tq - i0);
        slope = c.slopes ? c.slopes[h] : 0.0f, softcap = c.softcap;
    }

    bool capped() const { return softcap > 0; }
    bool few_queries() const { return false; }  // so few that features, not queries, are along the lanes

    // Add the bias to the energies S and apply the soft cap; if F is given, store the cap's derivative there.
    void add_bias_and_cap(float* S, int64_t j0, int64_t n, float* F) {
        if (!c.slopes && !c.bias.data && !capped()) return;
        if (c.bias.data) transpose(c.bias.at(b, h, i0) + j0, c.bias.st, flip, BR, rows, n);
        // Local copies: the compiler knows that a store to S cannot change them.
        const bool slopes = c.slopes, biased = c.bias.data, bounded = capped();
        const float m = slope, limit = softcap, *added = flip;
        for (int64_t j = 0; j < n; j++)
            for (int v = 0; v < NV; v++) {
                const int64_t x = j * BR + v * LANES;
                vf distance = lane_index() + float(i0 + v * LANES + (c.Tk - c.Tq) - (j0 + j));
                vf s = load(S + x);
                if (slopes) s -= m * (distance < 0.0f ? -distance : distance);
                // -inf masks, even if s is NaN
                if (biased) s = load(added + x) == -INF ? splat(-INF) : s + load(added + x);
                if (bounded && F) store(F + x, tanh_derivative(s / limit));
                if (bounded) s = s == -INF ? s : limit * tanhv(s / limit);
                store(S + x, s);
            }
    }

    INLINE_MEMBER vf add_bias(vf s, vf distance, vf bias) const {
        if (c.slopes) s -= slope * (distance < 0.0f ? -distance : distance);
        if (c.bias.data) s = bias == -INF ? bias : s + bias;  // -inf masks, even NaN
        return s;
    }

    INLINE_MEMBER vf cap(vf s) const {
        if (capped()) s = s == -INF ? s : softcap * tanhv(s / softcap);
        return s;
    }

    void bias_gradient(const float* dS, int64_t j0, int64_t n) {
        if (!c.dbias.data) return;
        transpose(dS, BR, flip, TILE, n, rows);
        for (int64_t r = 0; r < rows; r++) {
            float* to = c.dbias.at(b, h, i0 + r) + j0;
            for (int64_t j = 0; j < n; j++) to[j] += flip[r * TILE + j];
        }
    }
};

// ------------------------------------------------------------------------------------ dot energy
// An energy class: begin() sets the block of queries, scores() computes a tile of energies for n keys,
// backward() turns the gradient of a tile into gradients of the inputs, end() stores dq.
template <int NV_>
struct Dot : QueryBlock<NV_> {
    static constexpr int NV = NV_, BR = NV * LANES;
    using Base = QueryBlock<NV_>;
    using Base::c, Base::b, Base::h, Base::hk, Base::i0, Base::rows;
    struct Shared { explicit Shared(const Call&) {} };  // data shared by all threads: none here
    int64_t Dp;
    Buffer qt, q_rows, dqt;

    Dot(const Call& c, const Shared&)
        : Base(c), Dp(round_up(c.D, LANES)), qt(c.D * BR), q_rows(BR * Dp), dqt(c.D * BR) {}

    void begin(int64_t b_, int64_t h_, int64_t i0_, bool backward) {
        this->set_block(b_, h_, i0_);
        const float scale = c.scale;
        std::memset(q_rows, 0, BR * Dp * 4);
        for (int64_t r = 0; r < rows; r++) {
            const float* q = c.q.at(b, h, i0 + r);
            float* to = q_rows + r * Dp;
            const int64_t D = c.empty(b, i0 + r) ? 0 : c.D;
            for (int64_t d = 0; d < D; d++) to[d] = q[d] * scale;
        }
        transpose(q_rows, Dp, qt, BR, BR, c.D);
        if (backward) std::memset(dqt, 0, c.D * BR * 4);
    }

    void scores(float* S, int64_t j0, int64_t n, float* F) {
        matmul<NV>(n, c.D, c.k.at(b, hk, j0), c.k.st, 1, qt, BR, S, BR, false);
        this->add_bias_and_cap(S, j0, n, F);
    }

    void backward(const float* dS, int64_t j0, int64_t n) {
        matmul<NV>(c.D, n, c.k.at(b, hk, j0), 1, c.k.st, dS, BR, dqt, BR, true);
        matmul_wide(n, Dp, BR, dS, BR, q_rows, Dp, c.dk.at(b, hk, j0), c.dk.st);
        this->bias_gradient(dS, j0, n);
    }

    void end(int64_t chunk) {
        const float scale = c.scale;
        for (int64_t x = 0; x < c.D * BR; x++) dqt[x] *= scale;
        transpose(dqt, BR, c.dq.at(chunk * c.B + b, h, i0), c.dq.st, c.D, rows);
    }
};

// -------------------------------------------------------------------------------- distance energy
// s_ij = -scale * |q_i - k_j|^2, computed from the differences, as are the gradients, sum_j ds_ij (k_j - q_i)
// and sum_i ds_ij (q_i - k_j): products of matrices would cancel.
template <int R, int C>
static inline void squared_distances(int64_t K, const float* a, int64_t rs, const float* b, int64_t ldb,
                                     float* c, int64_t ldc, float factor) {
    vf sum[R][C] = {};
    for (int64_t k = 0; k < K; k++, a++, b += ldb)
#pragma GCC unroll 4
        for (int v = 0; v < C; v++) {
            vf x = load(b + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                vf d = a[r * rs] - x;
                sum[r][v] += d * d;
            }
        }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < C; v++) store(c + r * ldc + v * LANES, sum[r][v] * factor);
}

// c[R][C vectors] += sum_k a[R][k] (b[k] - y[R]); if OF_A, sum_k (a[R][k] - y[R]) b[k]. Element (r, k) of a
// is a[r * rs + k * ks]; c and y have the same row stride.
template <int R, int C, bool OF_A>
static inline void difference_kernel(int64_t K, const float* a, int64_t rs, int64_t ks, const float* b,
                                     int64_t ldb, const float* y, float* c, int64_t ldc) {
    vf sum[R][C], from[R][C];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < C; v++)
            sum[r][v] = load(c + r * ldc + v * LANES), from[r][v] = load(y + r * ldc + v * LANES);
    for (int64_t k = 0; k < K; k++, a += ks, b += ldb)
#pragma GCC unroll 4
        for (int v = 0; v < C; v++) {
            vf x = load(b + v * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
                sum[r][v] += OF_A ? (a[r * rs] - from[r][v]) * x : a[r * rs] * (x - from[r][v]);
        }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < C; v++) store(c + r * ldc + v * LANES, sum[r][v]);
}

// difference_kernel() for any number of rows M.
template <int C, bool OF_A>
static void differences(int64_t M, int64_t K, const float* a, int64_t rs, int64_t ks, const float* b,
                        int64_t ldb, const float* y, float* c, int64_t ldc) {
    int64_t m = 0;
    for (; m + 4 <= M; m += 4)
        difference_kernel<4, C, OF_A>(K, a + m * rs, rs, ks, b, ldb, y + m * ldc, c + m * ldc, ldc);
    for (; m < M; m++)
        difference_kernel<1, C, OF_A>(K, a + m * rs, rs, ks, b, ldb, y + m * ldc, c + m * ldc, ldc);
}

template <int NV_>
struct Distance : QueryBlock<NV_> {
    static constexpr int NV = NV_, BR = NV * LANES;
    using Base = QueryBlock<NV_>;
    using Base::c, Base::b, Base::h, Base::hk, Base::i0, Base::rows;
    struct Shared { explicit Shared(const Call&) {} };
    int64_t Dp;
    Buffer qt, q_rows, dqt, k_rows;

    Distance(const Call& c, const Shared&)
        : Base(c), Dp(round_up(c.D, LANES)), qt(c.D * BR), q_rows(BR * Dp), dqt(c.D * BR),
          k_rows(TILE * Dp) {}

    void begin(int64_t b_, int64_t h_, int64_t i0_, bool backward) {
        this->set_block(b_, h_, i0_);
        std::memset(q_rows, 0, BR * Dp * 4);
        for (int64_t r = 0; r < rows; r++)
            if (!c.empty(b, i0 + r)) std::memcpy(q_rows + r * Dp, c.q.at(b, h, i0 + r), c.D * 4);
        transpose(q_rows, Dp, qt, BR, BR, c.D);
        if (backward) std::memset(dqt, 0, c.D * BR * 4), std::memset(k_rows, 0, TILE * Dp * 4);
    }

    void scores(float* S, int64_t j0, int64_t n, float* F) {
        int64_t j = 0;
        for (; j + 8 <= n; j += 8)
            squared_distances<8, NV>(c.D, c.k.at(b, hk, j0 + j), c.k.st, qt, BR, S + j * BR, BR, -c.scale);
        for (; j < n; j++)
            squared_distances<1, NV>(c.D, c.k.at(b, hk, j0 + j), c.k.st, qt, BR, S + j * BR, BR, -c.scale);
        this->add_bias_and_cap(S, j0, n, F);
    }

    void backward(const float* dS, int64_t j0, int64_t n) {
        differences<NV, true>(c.D, n, c.k.at(b, hk, j0), 1, c.k.st, dS, BR, qt, dqt, BR);
        for (int64_t j = 0; j < n; j++) std::memcpy(k_rows + j * Dp, c.k.at(b, hk, j0 + j), c.D * 4);
        float* dk = c.dk.at(b, hk, j0);  // its rows have Dp numbers, as those of k_rows
        for (int64_t d = 0; d < Dp; d += LANES)
            differences<1, false>(n, BR, dS, BR, 1, q_rows + d, Dp, k_rows + d, dk + d, Dp);
        this->bias_gradient(dS, j0, n);
    }

    void end(int64_t chunk) {
        const float factor = 2 * c.scale;
        for (int64_t d = 0; d < c.D; d++)
            for (int v = 0; v < NV; v++) {
                const int64_t x = d * BR + v * LANES;
                store(dqt + x, load(dqt + x) * factor);
            }
        transpose(dqt, BR, c.dq.at(chunk * c.B + b, h, i0), c.dq.st, c.D, rows);
    }
};

// ------------------------------------------------------------------------------- additive energy
// s_ij = sum_d w_d tanh(a_id + b_jd), where tanh(x) = m / (m + 2), m = e^2a e^2b - 1: exponentials are
// computed once per row and feature, and two features share one division. If |a| or |b| exceeds LIMIT,
// e^2a would overflow, and m = e^(2 (a + b)) - 1 is computed instead (template parameter DIRECT).
constexpr float LIMIT = 43.5f, M_MAX = 1e15f;  // tanh is 1 long before m reaches M_MAX

template <bool DIRECT> INLINE vf exp_minus_one(vf a, vf b) {
    if (DIRECT) return expv(at_most(at_least(2.0f * (a + b), -80.0f), 34.0f)) - 1.0f;
    return at_most(a * b - 1.0f, M_MAX);
}

// Fill to[0..Dp) with e^(2 x), 1 beyond D; return whether all |x| <= LIMIT.
static bool exponentials(const float* x, int64_t D, int64_t Dp, float* to) {
    vi outside = {};
    for (int64_t d = 0; d < Dp; d += LANES) {
        if (d + LANES > D) for (int64_t l = d; l < d + LANES; l++) to[l] = l < D ? x[l] : 0.0f;
        vf y = load(d + LANES > D ? to + d : x + d), inside = at_most(at_least(y, -LIMIT), LIMIT);
        outside |= !(inside == y);  // NaN too
        store(to + d, expv(2.0f * inside));
    }
    return !any(outside);
}

template <int NV_>
struct Additive : QueryBlock<NV_> {
    static constexpr int NV = NV_, BR = NV * LANES;
    using Base = QueryBlock<NV_>;
    using Base::c, Base::b, Base::h, Base::hk, Base::i0, Base::rows;
    struct Shared {  // e^(2 b) of all keys
        int64_t Dp;
        Buffer eb;
        char* in_range;  // per key: all |b| <= LIMIT
        explicit Shared(const Call& c)
            : Dp(round_up(c.D, 2 * LANES)), eb(c.B * c.Hk * c.Tk * Dp),
              in_range((char*)allocate(c.B * c.Hk * c.Tk + 1)) {
#pragma omp parallel for num_threads(c.threads)
            for (int64_t x = 0; x < c.B * c.Hk * c.Tk; x++) {
                int64_t j = x % c.Tk, hk = x / c.Tk % c.Hk, b = x / c.Tk / c.Hk;
                in_range[x] = exponentials(c.k.at(b, hk, j), c.D, Dp, eb + x * Dp);
            }
        }
        ~Shared() { std::free(in_range); }
    };
    const Shared& shared;
    int64_t Dp;
    bool rows_in_range;  // all |a| <= LIMIT
    Buffer w, ea, a, ea_t, a_t, b_tile, da, dw;  // a, b_tile: the plain values, for DIRECT

    Additive(const Call& c, const Shared& s)
        : Base(c), shared(s), Dp(s.Dp), w(Dp), ea(BR * Dp), a(BR * Dp), ea_t(BR * Dp), a_t(BR * Dp),
          b_tile(TILE * Dp), da(BR * Dp), dw(Dp) {}

    void begin(int64_t b_, int64_t h_, int64_t i0_, bool backward) {
        this->set_block(b_, h_, i0_);
        for (int64_t d = 0; d < Dp; d++) w[d] = d < c.D ? c.w[h * c.D + d] : 0.0f;
        std::memset(a, 0, BR * Dp * 4);
        rows_in_range = true;
        for (int64_t r = 0; r < computed_rows(); r++) {
            if (r < rows && !c.empty(b, i0 + r)) std::memcpy(a + r * Dp, c.q.at(b, h, i0 + r), c.D * 4);
            rows_in_range &= exponentials(a + r * Dp, Dp, Dp, ea + r * Dp);
        }
        if (!few_queries()) transpose(ea, Dp, ea_t, BR, BR, Dp);
        if (!few_queries() && !rows_in_range) transpose(a, Dp, a_t, BR, BR, Dp);
        if (backward) std::memset(da, 0, BR * Dp * 4), std::memset(dw, 0, Dp * 4);
    }

    // A step of a recurrent decoder has one query per sequence; then features are along the lanes.
    bool few_queries() const { return rows <= 4; }
    int64_t computed_rows() const { return few_queries() ? 4 : BR; }

    int64_t key_index(int64_t j) const { return (b * c.Hk + hk) * c.Tk + j; }

    // Whether the tile needs DIRECT; if so, prepare the plain values.
    bool needs_direct(int64_t j0, int64_t n) {
        bool in_range = rows_in_range;
        for (int64_t j = 0; j < n; j++) in_range &= shared.in_range[key_index(j0 + j)] != 0;
        if (in_range) return false;
        if (!few_queries() && rows_in_range) transpose(a, Dp, a_t, BR, BR, Dp);
        std::memset(b_tile, 0, n * Dp * 4);
        for (int64_t j = 0; j < n; j++) std::memcpy(b_tile + j * Dp, c.k.at(b, hk, j0 + j), c.D * 4);
        return true;
    }

    void scores(float* S, int64_t j0, int64_t n, float* F) {
        const bool direct = needs_direct(j0, n);
        const float* bt = direct ? (const float*)b_tile : shared.eb + key_index(j0) * Dp;
        if (few_queries()) direct ? few_rows<true>(S, n, a, bt) : few_rows<false>(S, n, ea, bt);
        else direct ? all_keys<true>(S, n, a_t, bt) : all_keys<false>(S, n, ea_t, bt);
        this->add_bias_and_cap(S, j0, n, F);
    }

    template <bool DIRECT> void few_rows(float* S, int64_t n, const float* at, const float* bt) const {
        std::memset(S, 0, n * BR * 4);
        for (int64_t j = 0; j < n; j++)
            for (int64_t r = 0; r < rows; r++) {
                vf sum = {};
                for (int64_t d = 0; d < c.D; d += 2 * LANES) {
                    vf m1 = exp_minus_one<DIRECT>(load(at + r * Dp + d), load(bt + j * Dp + d));
                    vf p1 = m1 + 2.0f;
                    vf m2 = exp_minus_one<DIRECT>(load(at + r * Dp + d + LANES),
                                                  load(bt + j * Dp + d + LANES));
                    vf p2 = m2 + 2.0f;
                    sum += (load(w + d) * m1 * p2 + load(w + d + LANES) * m2 * p1) * reciprocal(p1 * p2);
                }
                S[j * BR + r] = sum_lanes(sum);
            }
    }

    template <bool DIRECT> void all_keys(float* S, int64_t n, const float* at, const float* bt) const {
        int64_t j = 0;
        for (; j + 4 <= n; j += 4) some_keys<DIRECT, 4>(S + j * BR, at, bt + j * Dp);
        for (; j < n; j++) some_keys<DIRECT, 1>(S + j * BR, at, bt + j * Dp);
    }

    template <bool DIRECT, int J> void some_keys(float* S, const float* at, const float* bt) const {
        vf sum[J][NV] = {};
        for (int64_t d = 0; d < c.D; d += 2)
            for (int v = 0; v < NV; v++) {
                vf a1 = load(at + d * BR + v * LANES), a2 = load(at + (d + 1) * BR + v * LANES);
#pragma GCC unroll 4
                for (int j = 0; j < J; j++) {
                    vf m1 = exp_minus_one<DIRECT>(a1, splat(bt[j * Dp + d])), p1 = m1 + 2.0f;
                    vf m2 = exp_minus_one<DIRECT>(a2, splat(bt[j * Dp + d + 1])), p2 = m2 + 2.0f;
                    sum[j][v] += (w[d] * m1 * p2 + w[d + 1] * m2 * p1) * reciprocal(p1 * p2);
                }
            }
        for (int j = 0; j < J; j++)
            for (int v = 0; v < NV; v++) store(S + j * BR + v * LANES, sum[j][v]);
    }

    // Features are along the lanes here, so that da, db and dw need no sum across lanes.
    void backward(const float* dS, int64_t j0, int64_t n) {
        const bool direct = needs_direct(j0, n);
        for (int64_t d = 0; d < c.D; d += 2 * LANES)
            if (rows == 1) {
                if (direct) some_rows<true, 1>(dS, j0, n, d, a + d, b_tile + d, da + d);
                else some_rows<false, 1>(dS, j0, n, d, ea + d, shared.eb + key_index(j0) * Dp + d, da + d);
            } else for (int64_t r = 0; r < computed_rows(); r += 4) {
                if (direct) some_rows<true, 4>(dS + r, j0, n, d, a + r * Dp + d, b_tile + d, da + r * Dp + d);
                else
                    some_rows<false, 4>(dS + r, j0, n, d, ea + r * Dp + d, shared.eb + key_index(j0) * Dp + d,
                                        da + r * Dp + d);
            }
        this->bias_gradient(dS, j0, n);
    }

    // Gradients for R queries and 2 * LANES features from d on; the factor w is applied last.
    template <bool DIRECT, int R>
    void some_rows(const float* dS, int64_t j0, int64_t n, int64_t d, const float* at, const float* bt,
                   float* to) const {
        vf da1[R], da2[R], dw1 = {}, dw2 = {}, w1 = load(w + d), w2 = load(w + d + LANES);
        for (int r = 0; r < R; r++) da1[r] = load(to + r * Dp), da2[r] = load(to + r * Dp + LANES);
        for (int64_t j = 0; j < n; j++) {
            vf b1 = load(bt + j * Dp), b2 = load(bt + j * Dp + LANES), db1 = {}, db2 = {};
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                vf g = splat(dS[j * BR + r]);
                vf m1 = exp_minus_one<DIRECT>(load(at + r * Dp), b1), p1 = m1 + 2.0f;
                vf m2 = exp_minus_one<DIRECT>(load(at + r * Dp + LANES), b2), p2 = m2 + 2.0f;
                vf both = reciprocal(p1 * p2), t1 = m1 * (p2 * both), t2 = m2 * (p1 * both);
                dw1 += g * t1, dw2 += g * t2;
                vf gu1 = g * (1.0f - t1 * t1), gu2 = g * (1.0f - t2 * t2);  // tanh' = 1 - tanh^2
                da1[r] += gu1, da2[r] += gu2, db1 += gu1, db2 += gu2;
            }
            float* db = c.dk.at(b, hk, j0 + j) + d;
            store(db, load(db) + w1 * db1), store(db + LANES, load(db + LANES) + w2 * db2);
        }
        for (int r = 0; r < R; r++) store(to + r * Dp, da1[r]), store(to + r * Dp + LANES, da2[r]);
        store(dw + d, load(dw + d) + dw1);
        store(dw + d + LANES, load(dw + d + LANES) + dw2);
    }

    void end(int64_t chunk) {
        for (int64_t r = 0; r < rows; r++) {
            float* to = c.dq.at(chunk * c.B + b, h, i0 + r);
            for (int64_t d = 0; d < c.D; d++) to[d] = w[d] * da[r * Dp + d];
        }
        float* to = c.dw.at(chunk * c.B + b, h, 0);
        for (int64_t d = 0; d < c.D; d++) to[d] += dw[d];
    }
};

// --------------------------------------------------------------------------------------- forward
// Save what the backward pass needs to recompute the weights, p = e^(s - level) * inverse. A single number,
// level + log sum, would lose digits when it is large. A row without keys gets p = e^(s - inf) * 0.
static void save_norm(const Call& c, int64_t b, int64_t h, int64_t i, float top, float sum) {
    c.norm.at(b, h, 0)[i] = sum == 0.0f ? INF : top == -INF ? 0.0f : top;
    c.norm.at(b, h, 1)[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
}

template <class Energy>
struct Forward {
    static constexpr int NV = Energy::NV, BR = Energy::BR;
    const Call& c;
    Energy energy;
    Buffer S, out_t, row;  // tile of energies, then weights; transposed output; an output row and its weights
    vf top[NV], sum[NV];

    Forward(const Call& c, const typename Energy::Shared& s)
        : c(c), energy(c, s), S(TILE * BR), out_t(c.Dv * BR), row(c.Dv + TILE) {}

    void block(int64_t b, int64_t h, int64_t i0) {
        KeyRanges<NV> ranges(c, b, i0, 0, c.Tk);
        energy.begin(b, h, i0, false);
        for (int v = 0; v < NV; v++) top[v] = splat(-INF), sum[v] = vf{};
        std::memset(out_t, 0, c.Dv * BR * 4);
        ranges.tiles([&](int64_t j0, int64_t n) {
            energy.scores(S, j0, n, nullptr);
            ranges.mask(S, j0, n);
            softmax(n);
            if (energy.few_queries() && c.Dv % LANES == 0) few_values(c.v.at(b, energy.hk, j0), n);
            else matmul<NV>(c.Dv, n, c.v.at(b, energy.hk, j0), 1, c.v.st, S, BR, out_t, BR, true);
        });
        finish(b, h, i0);
    }

    void few_values(const float* v, int64_t n) {
        for (int64_t r = 0; r < energy.rows; r++) {
            for (int64_t j = 0; j < n; j++) row[c.Dv + j] = S[j * BR + r];
            std::memset(row, 0, c.Dv * 4);
            int64_t d = 0;
            for (; d + 4 * LANES <= c.Dv; d += 4 * LANES)
                kernel<1, 4>(n, row + c.Dv, 0, 1, v + d, c.v.st, row + d, 0, true);
            for (; d < c.Dv; d += LANES) kernel<1, 1>(n, row + c.Dv, 0, 1, v + d, c.v.st, row + d, 0, true);
            for (d = 0; d < c.Dv; d++) out_t[d * BR + r] += row[d];
        }
    }

    // Online softmax. The level changes only if a tile exceeds it by 8: until then the weights are far
    // from overflow, and the output need not be rescaled.
    void softmax(int64_t n) {
        vf high[NV], level[NV];
        for (int v = 0; v < NV; v++) high[v] = top[v];
        for (int64_t j = 0; j < n; j++)
            for (int v = 0; v < NV; v++) {
                vf s = load(S + j * BR + v * LANES);
                high[v] = larger(s, high[v]);
            }
        vi exceeded = {};
        for (int v = 0; v < NV; v++) exceeded |= high[v] > top[v] + 8.0f;
        if (any(exceeded)) rescale(high);
        for (int v = 0; v < NV; v++) level[v] = top[v] == -INF ? vf{} : top[v];  // no -inf - -inf
        for (int64_t j = 0; j < n; j++)
            for (int v = 0; v < NV; v++) {
                vf p = exp_or_zero(load(S + j * BR + v * LANES) - level[v]);
                sum[v] += p;
                store(S + j * BR + v * LANES, p);
            }
    }

    void rescale(const vf* high) {
        for (int v = 0; v < NV; v++) {
            vf shrink = high[v] == -INF ? vf{} : exp_or_zero(top[v] - high[v]);
            top[v] = high[v], sum[v] *= shrink;
            for (int64_t d = 0; d < c.Dv; d++) {
                float* o = out_t + d * BR + v * LANES;
                store(o, load(o) * shrink);
            }
        }
    }

    void finish(int64_t b, int64_t h, int64_t i0) {
        for (int v = 0; v < NV; v++) {
            vf factor = sum[v] == 0.0f ? vf{} : 1.0f / sum[v];  // a row without keys gives 0
            for (int64_t d = 0; d < c.Dv; d++) {
                float* o = out_t + d * BR + v * LANES;
                store(o, load(o) * factor);
            }
        }
        transpose(out_t, BR, c.out.at(b, h, i0), c.out.st, c.Dv, energy.rows);
        for (int64_t r = 0; r < energy.rows; r++)
            save_norm(c, b, h, i0 + r, top[r / LANES][r % LANES], sum[r / LANES][r % LANES]);
    }
};

// The scratch memory of a thread. No exception may leave a parallel region: if an allocation fails, `failed`
// is set and the thread skips its iterations.
template <class Work>
struct Worker {
    std::optional<Work> work;
    template <class... Args>
    explicit Worker(std::atomic<bool>& failed, const Args&... args) {
        try { work.emplace(args...); } catch (const std::bad_alloc&) { failed = true; }
    }
    explicit operator bool() const { return work.has_value(); }
    Work* operator->() { return &*work; }
};

template <class Energy>
static void forward(const Call& c) {
    const int64_t blocks = (c.Tq + Energy::BR - 1) / Energy::BR;
    typename Energy::Shared shared(c);
    std::atomic<bool> failed{false};
    prefer_large_pages(c.out, c.B * c.H * c.Tq * c.Dv);
#pragma omp parallel num_threads(c.threads)
    {
        Worker<Forward<Energy>> work(failed, c, shared);
#pragma omp for schedule(dynamic)
        for (int64_t x = 0; x < c.B * c.H * blocks; x++) {
            if (!work) continue;
            int64_t head = x / blocks, block = blocks - 1 - x % blocks;  // long causal rows first
            work->block(head / c.H, head % c.H, block * Energy::BR);
        }
    }
    if (failed) throw std::bad_alloc();
}

// A single query (decoding): lanes of queries would be mostly empty, so features, and then keys, are along
// the lanes. D and Dv must be multiples of LANES.
struct Single {
    const Call& c;
    Dot<1> energy;
    Buffer q, S, bias, out;
    float top;
    vf sum;

    explicit Single(const Call& c)
        : c(c), energy(c, Dot<1>::Shared(c)), q(c.D), S(TILE), bias(TILE), out(c.Dv) {}

    void row(int64_t b, int64_t h, int64_t i) {
        const int64_t from = c.start[b * c.range_sb + i], to = c.stop[b * c.range_sb + i];
        energy.set_block(b, h, i);
        for (int64_t d = 0; d < c.D; d++) q[d] = c.q.at(b, h, i)[d] * float(c.scale);
        std::memset(out, 0, c.Dv * 4);
        top = -INF, sum = vf{};
        for (int64_t j0 = from; j0 < to; j0 += TILE) {
            const int64_t n = std::min<int64_t>(TILE, to - j0);
            const float* v = c.v.at(b, energy.hk, j0);
            softmax(n, scores(j0, n));
            int64_t d = 0;
            for (; d + 4 * LANES <= c.Dv; d += 4 * LANES)
                kernel<1, 4>(n, S, 0, 1, v + d, c.v.st, out + d, 0, true);
            for (; d < c.Dv; d += LANES) kernel<1, 1>(n, S, 0, 1, v + d, c.v.st, out + d, 0, true);
        }
        float l = 0;
        for (int x = 0; x < LANES; x++) l += sum[x];
        for (int64_t d = 0; d < c.Dv; d++) c.out.at(b, h, i)[d] = l == 0.0f ? 0.0f : out[d] / l;
        save_norm(c, b, h, i, top, l);
    }

    // Fill S with the energies of n keys, and -inf up to the next multiple of LANES; return the largest
    // energy.
    float scores(int64_t j0, int64_t n) {
        if (c.bias.data) std::memcpy(bias, c.bias.at(energy.b, energy.h, energy.i0) + j0, n * 4);
        vf high = splat(-INF);
        for (int64_t j = 0; j < n; j += LANES) {
            vf partial[LANES];  // partial[l]: the products of key j + l, still to be summed over the lanes
            for (int l = 0; l < LANES; l++) {
                const float* k = c.k.at(energy.b, energy.hk, j0 + std::min(j + l, n - 1));
                partial[l] = vf{};
                for (int64_t d = 0; d < c.D; d += LANES) partial[l] += load(q + d) * load(k + d);
            }
            transpose_square(partial);
            for (int step = LANES / 2; step; step /= 2)
                for (int l = 0; l < step; l++) partial[l] += partial[l + step];
            vf distance = float(energy.i0 + c.Tk - c.Tq - j0 - j) - lane_index();
            vf s = energy.cap(energy.add_bias(partial[0], distance, load(bias + j)));
            s = lane_index() < float(n - j) ? s : splat(-INF);
            store(S + j, s);
            high = larger(s, high);
        }
        return *std::max_element((float*)&high, (float*)&high + LANES);
    }

    void softmax(int64_t n, float high) {  // as in Forward
        if (high > top + 8.0f) {
            const float shrink = std::exp(top - high);
            for (int64_t d = 0; d < c.Dv; d++) out[d] *= shrink;
            sum *= shrink, top = high;
        }
        for (int64_t j = 0; j < n; j += LANES) {
            vf p = exp_or_zero(load(S + j) - (top == -INF ? 0.0f : top));
            sum += p;
            store(S + j, p);
        }
    }
};

static void forward_single(const Call& c) {
    std::atomic<bool> failed{false};
#pragma omp parallel num_threads(c.threads)
    {
        Worker<Single> work(failed, c);
#pragma omp for schedule(dynamic)
        for (int64_t x = 0; x < c.B * c.H * c.Tq; x++)
            if (work) work->row(x / c.Tq / c.H, x / c.Tq % c.H, x % c.Tq);
    }
    if (failed) throw std::bad_alloc();
}

// -------------------------------------------------------------------------------------- backward
// With p = e^(s - level) * inverse: dv_j = sum_i p g_i, ds = p (g_i . v_j - g_i . out_i); the energy class
// does the rest. A task is a chunk of the keys of one batch entry and key head, so dk and dv need no locks.
template <class Energy>
struct Backward {
    static constexpr int NV = Energy::NV, BR = Energy::BR;
    const Call& c;
    Energy energy;
    int64_t Dvp;
    Buffer S, dS, F, g_t, out_t, g_rows, level, inverse, delta;

    Backward(const Call& c, const typename Energy::Shared& s)
        : c(c), energy(c, s), Dvp(round_up(c.Dv, LANES)), S(TILE * BR), dS(TILE * BR), F(TILE * BR),
          g_t(c.Dv * BR), out_t(c.Dv * BR), g_rows(BR * Dvp), level(BR), inverse(BR), delta(BR) {}

    void begin(int64_t b, int64_t h, int64_t i0) {
        energy.begin(b, h, i0, true);
        std::memset(g_rows, 0, BR * Dvp * 4);
        for (int64_t r = 0; r < BR; r++) {
            level[r] = INF, inverse[r] = 0.0f;  // an empty row: e^(s - inf) = 0
            if (r >= energy.rows || c.empty(b, i0 + r) || c.norm.at(b, h, 1)[i0 + r] == 0.0f) continue;
            std::memcpy(g_rows + r * Dvp, c.grad.at(b, h, i0 + r), c.Dv * 4);
            level[r] = c.norm.at(b, h, 0)[i0 + r], inverse[r] = c.norm.at(b, h, 1)[i0 + r];
        }
        transpose(g_rows, Dvp, g_t, BR, BR, c.Dv);
        std::memset(out_t, 0, c.Dv * BR * 4);
        transpose(c.out.at(b, h, i0), c.out.st, out_t, BR, energy.rows, c.Dv);
        // Summed in the same order as g . v, so that a row with a single key gets exactly 0.
        for (int v = 0; v < NV; v++) {
            vf sum = {};
            for (int64_t x = v * LANES; x < c.Dv * BR; x += BR) sum += load(g_t + x) * load(out_t + x);
            store(delta + v * LANES, sum);
        }
        if (energy.few_queries() && c.Dv % LANES == 0)
            for (int64_t r = 0; r < energy.rows; r++)
                delta[r] = dot(g_rows + r * Dvp, c.out.at(b, h, i0 + r), c.Dv);
    }

    void block(int64_t b, int64_t h, int64_t i0, int64_t chunk, int64_t from, int64_t to) {
        KeyRanges<NV> ranges(c, b, i0, from, to);
        begin(b, h, i0);
        ranges.tiles([&](int64_t j0, int64_t n) {
            energy.scores(S, j0, n, F);
            ranges.mask(S, j0, n);
            if (energy.few_queries() && c.Dv % LANES == 0) few_products(c.v.at(b, energy.hk, j0), n);
            else matmul<NV>(n, c.Dv, c.v.at(b, energy.hk, j0), c.v.st, 1, g_t, BR, dS, BR, false);
            for (int64_t j = 0; j < n; j++)
                for (int v = 0; v < NV; v++) {
                    int64_t x = j * BR + v * LANES;
                    vf p = exp_or_zero(load(S + x) - load(level + v * LANES)) * load(inverse + v * LANES);
                    vf ds = p * (load(dS + x) - load(delta + v * LANES));
                    if (energy.capped()) ds = p == 0.0f ? vf{} : ds * load(F + x);
                    store(S + x, p), store(dS + x, ds);
                }
            matmul_wide(n, Dvp, energy.few_queries() ? 4 : BR, S, BR, g_rows, Dvp, c.dv.at(b, energy.hk, j0),
                        c.dv.st);
            energy.backward(dS, j0, n);
        });
        energy.end(chunk);
    }

    void few_products(const float* v, int64_t n) {  // dS[j][r] = v_j . g_r
        std::memset(dS, 0, n * BR * 4);
        for (int64_t j = 0; j < n; j++)
            for (int64_t r = 0; r < energy.rows; r++)
                dS[j * BR + r] = dot(g_rows + r * Dvp, v + j * c.v.st, c.Dv);
    }

    // All queries of one batch entry and key head against one chunk of its keys.
    void chunk_of_keys(int64_t b, int64_t hk, int64_t chunk) {
        const int64_t group = c.H / c.Hk, from = c.Tk * chunk / c.chunks, to = c.Tk * (chunk + 1) / c.chunks;
        std::memset(c.dk.at(b, hk, from), 0, (to - from) * c.dk.st * 4);
        std::memset(c.dv.at(b, hk, from), 0, (to - from) * c.dv.st * 4);
        for (int64_t h = hk * group; h < (hk + 1) * group; h++)
            for (int64_t i0 = 0; i0 < c.Tq; i0 += BR) block(b, h, i0, chunk, from, to);
    }
};

template <class Energy>
static void backward(const Call& c) {
    typename Energy::Shared shared(c);
    std::atomic<bool> failed{false};
    prefer_large_pages(c.dq, c.chunks * c.B * c.H * c.Tq * c.D);
    prefer_large_pages(c.dk, c.B * c.Hk * c.Tk * c.dk.st);
    prefer_large_pages(c.dv, c.B * c.Hk * c.Tk * c.dv.st);
#pragma omp parallel num_threads(c.threads)
    {
        Worker<Backward<Energy>> work(failed, c, shared);
#pragma omp for schedule(dynamic)
        for (int64_t x = 0; x < c.parallel_b * c.parallel_h * c.chunks; x++) {
            if (!work) continue;
            int64_t chunk = x % c.chunks, hk = x / c.chunks % c.parallel_h, b = x / c.chunks / c.parallel_h;
            // Batch entries or heads that share a bias are one task.
            for (int64_t bb = b; bb < (c.parallel_b == c.B ? b + 1 : c.B); bb++)
                for (int64_t kk = hk; kk < (c.parallel_h == c.Hk ? hk + 1 : c.Hk); kk++)
                    work->chunk_of_keys(bb, kk, chunk);
        }
    }
    if (failed) throw std::bad_alloc();
}

// Return code: 0 success, 1 out of memory, 2 any other exception. No exception leaves this library.
template <class Run>
static int return_code(Run run) noexcept {
    try {
        run();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    } catch (...) {
        return 2;
    }
}

extern "C" {
int regard_lanes() { return LANES; }
void regard_limit(int64_t bytes) { max_allocation = bytes; }
int regard_dot_forward(const Call* c) {
    return return_code([&] {
        if (c->Tq <= 4 && c->D % LANES == 0 && c->Dv % LANES == 0) forward_single(*c);
        else c->Tq <= LANES ? forward<Dot<1>>(*c) : forward<Dot<2>>(*c);
    });
}
int regard_dot_backward(const Call* c) {
    return return_code([&] { c->Tq <= LANES ? backward<Dot<1>>(*c) : backward<Dot<2>>(*c); });
}
int regard_distance_forward(const Call* c) {
    return return_code([&] { c->Tq <= LANES ? forward<Distance<1>>(*c) : forward<Distance<2>>(*c); });
}
int regard_distance_backward(const Call* c) {
    return return_code([&] { c->Tq <= LANES ? backward<Distance<1>>(*c) : backward<Distance<2>>(*c); });
}
int regard_additive_forward(const Call* c) {
    return return_code([&] { c->Tq <= LANES ? forward<Additive<1>>(*c) : forward<Additive<2>>(*c); });
}
int regard_additive_backward(const Call* c) {
    return return_code([&] { c->Tq <= LANES ? backward<Additive<1>>(*c) : backward<Additive<2>>(*c); });
}
}
