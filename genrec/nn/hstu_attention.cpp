// HSTU attention over ragged sequences (MTGRBoost, eq. 2 and section 5.2, operator fusion): forward and backward in
// blocks of BLOCK queries by BLOCK keys, so that scores exist for one block at a time. Without a softmax, blocks just
// add up. genrec/nn/hstu_attention.py says what it computes; which keys a query sees is computed, never stored.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int64_t BLOCK = 64;
#ifdef __AVX512F__
constexpr int LANES = 16, ROWS = 8;
#elif defined(__AVX2__)
constexpr int LANES = 8, ROWS = 4;
#else
constexpr int LANES = 4, ROWS = 4;
#endif
constexpr int64_t COPIES = 8;  // of bias gradients: adds to one bucket, one after the other, would wait for each other
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere in memory

// A ragged batch; bias tables are [heads, positions] and [heads, times].
struct Batch {
    const int64_t* offsets;
    const int32_t *reach, *position, *time;
    const float *position_bias, *time_bias;
    int64_t sequences, heads, size, positions, times, threads;
    float scale;
};

// Rows of one sequence and head: row i begins at data + i * stride.
struct Rows {
    float* data;
    int64_t stride;
    float* row(int64_t i) const { return data + i * stride; }
};

// C [M, N] of A [M, K] (element (i, k) at i * a_row + k * a_column) and B [K, N]; N is a multiple of LANES.
template <bool ADD, int M, int WIDE>
inline void tile(int64_t K, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row, float* c,
                 int64_t c_row) {
    Vector sum[M][WIDE] = {};
    for (int64_t k = 0; k < K; ++k)
        for (int i = 0; i < M; ++i)
            for (int w = 0; w < WIDE; ++w)
                sum[i][w] += a[i * a_row + k * a_column] * *reinterpret_cast<const Vector*>(b + k * b_row + w * LANES);
    for (int i = 0; i < M; ++i)
        for (int w = 0; w < WIDE; ++w) {
            Vector* to = reinterpret_cast<Vector*>(c + i * c_row + w * LANES);
            *to = ADD ? *to + sum[i][w] : sum[i][w];
        }
}

template <bool ADD, int WIDE>
inline void columns(int64_t M, int64_t K, const float* a, int64_t a_row, int64_t a_column, const float* b,
                    int64_t b_row, float* c, int64_t c_row) {
    int64_t i = 0;
    for (; i + ROWS <= M; i += ROWS)
        tile<ADD, ROWS, WIDE>(K, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row);
    for (; i < M; ++i) tile<ADD, 1, WIDE>(K, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row);
}

template <bool ADD>
void multiply(int64_t M, int64_t N, int64_t K, const float* a, int64_t a_row, int64_t a_column, Rows b, Rows c) {
    int64_t j = 0;
    for (; j + 2 * LANES <= N; j += 2 * LANES)
        columns<ADD, 2>(M, K, a, a_row, a_column, b.data + j, b.stride, c.data + j, c.stride);
    if (j < N) columns<ADD, 1>(M, K, a, a_row, a_column, b.data + j, b.stride, c.data + j, c.stride);
}

// e^x to 3e-7 of it: a power of two by the exponent's bits, the rest by a series around the middle. Of NaN, which is no
// whole number, e^-87: whoever asks multiplies by x, too.
inline float exponential(float x) {
    const float t = std::min(std::max(-87.f, x), 87.f) * 1.44269504f;
    int32_t whole = int32_t(t);
    whole -= t < float(whole);
    const float y = (t - float(whole) - 0.5f) * 0.69314718f;
    float e = 1.f + y * (1.f + y * (1 / 2.f + y * (1 / 6.f + y * (1 / 24.f + y * (1 / 120.f + y * (1 / 720.f))))));
    const int32_t bits = (whole + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return e * 1.41421356f * power;
}

inline float sigmoid(float x) { return 1.f / (1.f + exponential(-x)); }

// Two buckets per octave of |difference|, by the highest bits of it as a float: no logarithm.
inline int32_t time_bucket(int32_t difference, int32_t times) {
    const float apart = std::max(1.f, std::abs(float(difference)));
    int32_t bits;
    std::memcpy(&bits, &apart, 4);
    return std::min((bits >> 22) - (127 << 1), times - 1);
}

struct Scratch {
    int32_t position[BLOCK], time[BLOCK];                              // of the keys
    int32_t near[BLOCK][BLOCK], since[BLOCK][BLOCK];                   // buckets of pairs
    alignas(64) float score[BLOCK][BLOCK], weight[BLOCK][BLOCK];       // a block of scores; of silu's values or slopes
    std::vector<float> k_turned, v_turned, positions, times;  // [size, BLOCK] twice; [COPIES, *]
};

// One sequence and head.
struct Task {
    const Batch& batch;
    int64_t head, start, length;

    Rows rows(const float* tensor, int64_t stride) const {
        return {const_cast<float*>(tensor) + start * stride + head * batch.size, stride};
    }

    // Whether some query of [first, last) sees some key of the block at `key`.
    bool meet(int64_t first, int64_t last, int64_t key) const {
        if (first == key) return true;
        const int32_t* reach = batch.reach + start;
        return std::any_of(reach + first, reach + last, [=](int32_t each) { return each > key; });
    }

    void keys(int64_t key, int64_t count, Scratch& s) const {
        for (int64_t j = 0; j < BLOCK; ++j) {
            const int64_t at = start + key + std::min(j, count - 1);
            s.position[j] = batch.position[at];
            s.time[j] = batch.time[at];
        }
    }

    // score [queries, BLOCK] += both biases; notes their buckets.
    void add_bias(int64_t query, int64_t queries, Scratch& s) const {
        const float* of_position = batch.position_bias + head * batch.positions;
        const float* of_time = batch.time_bias + head * batch.times;
        const int32_t farthest = int32_t(batch.positions) - 1, times = int32_t(batch.times);
        for (int64_t i = 0; i < queries; ++i) {
            const int32_t position = batch.position[start + query + i], time = batch.time[start + query + i];
            int32_t *near = s.near[i], *since = s.since[i];
            for (int64_t j = 0; j < BLOCK; ++j) {
                near[j] = std::min(std::max(position - s.position[j], 0), farthest);
                since[j] = time_bucket(time - s.time[j], times);
            }
            for (int64_t j = 0; j < BLOCK; ++j) s.score[i][j] += of_position[near[j]] + of_time[since[j]];
        }
    }

    // 1 / n where query `query` sees key `key + j`, else 0; keys beyond the end are never seen.
    void seen(int64_t query, int64_t key, int64_t count, float* to) const {
        const int32_t reach = int32_t(std::min(batch.reach[start + query] - key, count)), own = int32_t(query - key);
        for (int32_t j = 0; j < BLOCK; ++j) to[j] = (j < reach) | (j == own) ? batch.scale : 0.f;
    }
};

void turn(Rows from, int64_t count, int64_t size, std::vector<float>& to) {
    to.assign(size * BLOCK, 0.f);
    for (int64_t j = 0; j < count; ++j)
        for (int64_t d = 0; d < size; ++d) to[d * BLOCK + j] = from.row(j)[d];
}

void clear(Rows rows, int64_t count, int64_t size) {
    for (int64_t i = 0; i < count; ++i) std::fill_n(rows.row(i), size, 0.f);
}

void forward(const Task& task, Rows q, Rows k, Rows v, Rows out, Scratch& s) {
    const int64_t size = task.batch.size, length = task.length;
    clear(out, length, size);
    for (int64_t key = 0; key < length; key += BLOCK) {
        const int64_t count = std::min(BLOCK, length - key);
        task.keys(key, count, s);
        turn({k.row(key), k.stride}, count, size, s.k_turned);
        for (int64_t query = 0; query < length; query += BLOCK) {
            const int64_t queries = std::min(BLOCK, length - query);
            if (!task.meet(query, query + queries, key)) continue;
            multiply<false>(queries, BLOCK, size, q.row(query), q.stride, 1, {s.k_turned.data(), BLOCK},
                            {s.score[0], BLOCK});
            task.add_bias(query, queries, s);
            for (int64_t i = 0; i < queries; ++i) {
                float *score = s.score[i], *weight = s.weight[i];
                task.seen(query + i, key, count, weight);
                for (int64_t j = 0; j < BLOCK; ++j) weight[j] *= score[j] * sigmoid(score[j]);
            }
            multiply<true>(queries, size, count, s.weight[0], BLOCK, 1, {v.row(key), v.stride},
                           {out.row(query), out.stride});
        }
    }
}

struct Gradients {
    Rows q, k, v;
    float *position_bias, *time_bias;  // of the task's head, added to
};

void fold(std::vector<float>& copies, int64_t buckets, float* to) {
    for (int64_t copy = 0; copy < COPIES; ++copy)
        for (int64_t b = 0; b < buckets; ++b) to[b] += copies[copy * buckets + b];
    std::fill(copies.begin(), copies.end(), 0.f);
}

// Scores become their own gradients; weights are silu(score) / n for the gradient of v.
void back_through_silu(const Task& task, int64_t query, int64_t queries, int64_t key, int64_t count,
                       const float (*gradient)[BLOCK], Scratch& s) {
    const int64_t positions = task.batch.positions, times = task.batch.times;
    for (int64_t i = 0; i < queries; ++i) {
        float *score = s.score[i], *weight = s.weight[i];
        task.seen(query + i, key, count, weight);
        for (int64_t j = 0; j < BLOCK; ++j) {
            const float x = score[j], open = sigmoid(x), seen = weight[j];
            weight[j] = seen * x * open;
            score[j] = seen * open * (1.f + x * (1.f - open)) * gradient[i][j];
        }
        for (int64_t j = 0; j < BLOCK; ++j) {
            s.positions[(j % COPIES) * positions + s.near[i][j]] += score[j];
            s.times[(j % COPIES) * times + s.since[i][j]] += score[j];
        }
    }
}

void backward(const Task& task, Rows q, Rows k, Rows v, Rows grad, const Gradients& to, Scratch& s) {
    const int64_t size = task.batch.size, length = task.length;
    alignas(64) float gradient[BLOCK][BLOCK];  // of silu's values
    s.positions.assign(COPIES * task.batch.positions, 0.f);
    s.times.assign(COPIES * task.batch.times, 0.f);
    for (const Rows& each : {to.q, to.k, to.v}) clear(each, length, size);
    for (int64_t key = 0; key < length; key += BLOCK) {
        const int64_t count = std::min(BLOCK, length - key);
        task.keys(key, count, s);
        turn({k.row(key), k.stride}, count, size, s.k_turned);
        turn({v.row(key), v.stride}, count, size, s.v_turned);
        for (int64_t query = 0; query < length; query += BLOCK) {
            const int64_t queries = std::min(BLOCK, length - query);
            if (!task.meet(query, query + queries, key)) continue;
            const Rows asked{q.row(query), q.stride}, given{grad.row(query), grad.stride};
            multiply<false>(queries, BLOCK, size, asked.data, asked.stride, 1, {s.k_turned.data(), BLOCK},
                            {s.score[0], BLOCK});
            task.add_bias(query, queries, s);
            multiply<false>(queries, BLOCK, size, given.data, given.stride, 1, {s.v_turned.data(), BLOCK},
                            {gradient[0], BLOCK});
            back_through_silu(task, query, queries, key, count, gradient, s);
            multiply<true>(count, size, queries, s.weight[0], 1, BLOCK, given, {to.v.row(key), to.v.stride});
            multiply<true>(count, size, queries, s.score[0], 1, BLOCK, asked, {to.k.row(key), to.k.stride});
            multiply<true>(queries, size, count, s.score[0], BLOCK, 1, {k.row(key), k.stride},
                           {to.q.row(query), to.q.stride});
        }
    }
    fold(s.positions, task.batch.positions, to.position_bias);
    fold(s.times, task.batch.times, to.time_bias);
}

// Every sequence and head, in shares of about equal work that depend on the batch alone: sums keep their order.
template <typename Work> void shared(const Batch& batch, Work work) {
    const auto cost = [&](int64_t b) {
        const int64_t length = batch.offsets[b + 1] - batch.offsets[b];
        return double(length) * double(length + BLOCK);
    };
    double total = 0;
    for (int64_t b = 0; b < batch.sequences; ++b) total += cost(b) * batch.heads;
    const auto share = [&](int64_t thread) {
        Scratch scratch;
        double before = 0;
        for (int64_t b = 0; b < batch.sequences; ++b)
            for (int64_t head = 0; head < batch.heads; ++head) {
                const double middle = before + cost(b) / 2;
                before += cost(b);
                if (int64_t(middle * batch.threads / std::max(total, 1.0)) != thread) continue;
                const int64_t start = batch.offsets[b];
                work(Task{batch, head, start, batch.offsets[b + 1] - start}, thread, scratch);
            }
    };
    std::vector<std::thread> others;
    for (int64_t thread = 1; thread < batch.threads; ++thread) others.emplace_back(share, thread);
    share(0);
    for (auto& each : others) each.join();
}

}  // namespace

extern "C" {

// q, k, v: rows of `heads` x `size` floats, row i at i * stride; out [total, heads, size].
void hstu_forward(const Batch* batch, const float* q, int64_t q_row, const float* k, int64_t k_row, const float* v,
                  int64_t v_row, float* out) {
    const int64_t row = batch->heads * batch->size;
    shared(*batch, [=](const Task& task, int64_t, Scratch& scratch) {
        forward(task, task.rows(q, q_row), task.rows(k, k_row), task.rows(v, v_row), task.rows(out, row), scratch);
    });
}

// grad, dq, dk, dv [total, heads, size]; d_position [threads, heads, positions] and d_time [threads, heads, times] are
// zeros when this is called.
void hstu_backward(const Batch* batch, const float* q, int64_t q_row, const float* k, int64_t k_row, const float* v,
                   int64_t v_row, const float* grad, float* dq, float* dk, float* dv, float* d_position,
                   float* d_time) {
    const int64_t row = batch->heads * batch->size, heads = batch->heads;
    shared(*batch, [=](const Task& task, int64_t thread, Scratch& scratch) {
        const int64_t place = thread * heads + task.head;
        const Gradients to{task.rows(dq, row), task.rows(dk, row), task.rows(dv, row),
                           d_position + place * batch->positions, d_time + place * batch->times};
        backward(task, task.rows(q, q_row), task.rows(k, k_row), task.rows(v, v_row), task.rows(grad, row), to, scratch);
    });
}
}
