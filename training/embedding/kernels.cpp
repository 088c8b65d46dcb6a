// Loops over the arrays of a dynamic embedding table (MTGRBoost, section 4.1). NumPy owns all memory, and
// training/embedding/portable.py has every function again, for machines without a compiler.
#include "memory.h"

#include <cmath>
#include <thread>
#include <vector>

extern "C" {

// ids [n] -> rows [n], -1 where absent, by so many threads. While a table grows, `old` has the ids that have not moved yet.
void find(const int64_t* ids, int64_t n, Table t, Table old, int32_t* rows, int64_t threads) {
    const auto share = [&](int64_t first, int64_t last) {
        each_of(ids, first, last, t, [&](int64_t i, uint64_t key, uint64_t hash) {
            int64_t slot = seek(t, key, hash);
            rows[i] = slot >= 0 ? t.rows[slot] - 1 : -1;
            if (slot < 0 && old.keys && (slot = seek(old, key, hash)) >= 0) rows[i] = old.rows[slot] - 1;
            return true;
        });
    };
    std::vector<std::thread> others;
    for (int64_t k = 1; k < threads; ++k) others.emplace_back(share, n * k / threads, n * (k + 1) / threads);
    share(0, n / threads);
    for (auto& each : others) each.join();
}

// Find or add ids [n] -> rows [n], until `room` of the table is used up. state: 0 keys held, 1 rows ever given,
// 2 free rows left, 3 ids that are new. fresh [n]: places of the new ids. Returns how many ids are done.
int64_t insert(const int64_t* ids, int64_t n, Table t, Table old, int64_t room, const int32_t* free_rows,
               int64_t* state, int32_t* rows, int64_t* fresh) {
    return each_of(ids, 0, n, t, [&](int64_t i, uint64_t key, uint64_t hash) {
        const int64_t slot = seek(t, key, hash);
        const int64_t before = slot < 0 && old.keys ? seek(old, key, hash) : -1;
        if (slot >= 0) {
            rows[i] = t.rows[slot] - 1;
        } else if (before >= 0) {
            rows[i] = old.rows[before] - 1;
        } else {
            if (state[0] >= room) return false;
            rows[i] = state[2] ? free_rows[--state[2]] : int32_t(state[1]++);
            put(t, ~slot, key, rows[i]);
            ++state[0];
            fresh[state[3]++] = i;
        }
        return true;
    });
}

// Move the keys of lines [from, to) into another table; rows r with drop[r] set are left behind. `drop` may be null.
// The first slots of 16 lines come first, then their second slots: keys of one line go to two lines, and a line that was
// just written to cannot be read as a whole until the write is through.
void move(Table source, int64_t from, int64_t to, const uint8_t* drop, Table t) {
    constexpr int LINES = 16;
    uint64_t hash[LINES * LINE];
    int64_t slot[LINES * LINE];
    for (int64_t line = from; line < to; line += LINES) {
        const int64_t end = (line + LINES < to ? line + LINES : to) * LINE;
        int count = 0;
        for (int64_t j = line * LINE; j < (line + 1) * LINE; ++j)
            for (int64_t at = j; at < end; at += LINE) {
                const int32_t row = source.rows[at];
                slot[count] = at;
                count += row && !(drop && drop[row - 1]);  // no branch: how full lines are is hard to foresee
            }
        for (int j = 0; j < count; ++j) expect(t, hash[j] = mix(source.keys[slot[j]] ^ SIGN));
        for (int j = 0; j < count; ++j)
            put(t, vacant(t, hash[j]), source.keys[slot[j]], source.rows[slot[j]] - 1);
    }
}

// The lines that an id is looked for in, in their order: int64 [2^bits].
void probes(int64_t id, int64_t bits, int64_t* lines) {
    const uint64_t hash = mix(uint64_t(id)), by = stride(hash, bits), mask = (1ull << bits) - 1;
    for (uint64_t i = 0, at = home(hash, bits); i <= mask; ++i, at = (at + by) & mask) lines[i] = int64_t(at);
}

// Distinct ids in the order they first come, and for each id its place among them. slots: zeros [2^bits], over n.
int64_t unique(const int64_t* ids, int64_t n, int32_t* slots, int64_t bits, int64_t* distinct, int64_t* inverse) {
    const uint64_t mask = (1ull << bits) - 1;
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        uint64_t at = home(mix(uint64_t(ids[i])), bits);
        while (slots[at] && distinct[slots[at] - 1] != ids[i]) at = (at + 1) & mask;
        if (!slots[at]) {
            distinct[count++] = ids[i];
            slots[at] = int32_t(count);
        }
        inverse[i] = slots[at] - 1;
    }
    return count;
}

// Owner of an id: its hash modulo the ranks. Places of ids [n] by owner, each owner's in order; counts: zeros [ranks].
void by_owner(const int64_t* ids, int64_t n, int64_t ranks, int64_t* places, int64_t* counts) {
    int64_t next[4096];  // the wrapper refuses more ranks
    for (int64_t i = 0; i < n; ++i) ++counts[mix(uint64_t(ids[i])) % uint64_t(ranks)];
    for (int64_t r = 0, at = 0; r < ranks; at += counts[r++]) next[r] = at;
    for (int64_t i = 0; i < n; ++i) places[next[mix(uint64_t(ids[i])) % uint64_t(ranks)]++] = i;
}

// sums [distinct, dim] += values [n, dim] at index [n].
void add_by(const float* values, const int64_t* index, int64_t n, int64_t dim, float* sums) {
    for (int64_t i = 0; i < n; ++i) {
        float* to = sums + index[i] * dim;
        const float* from = values + i * dim;
        for (int64_t d = 0; d < dim; ++d) to[d] += from[d];
    }
}

// Whether all of values [n] are numbers below a limit in size; NaN is below nothing.
int64_t sound(const float* values, int64_t n, float limit) {
    int bad = 0;
    for (int64_t i = 0; i < n; ++i) bad |= !(std::fabs(values[i]) < limit);
    return !bad;
}

// out [n, dim] = values [distinct, dim] at index [n].
void spread(const float* values, const int64_t* index, int64_t n, int64_t dim, float* out) {
    for (int64_t i = 0; i < n; ++i) memcpy(out + i * dim, values + index[i] * dim, dim * sizeof(float));
}

// Vectors of rows [n] -> out [n, dim]; `absent` [dim] for row -1.
void gather(Chunks values, const int32_t* rows, int64_t n, int64_t dim, const float* absent, float* out) {
    const bool past = n * dim * 4 >= PAST_CACHES && dim * 4 % PART == 0 && uintptr_t(out) % PART == 0;
    (past ? copy_rows<true> : copy_rows<false>)(values, rows, n, dim, absent, out);
}

// A row's first vector depends on its id and the seed alone: uniform in [-scale, scale).
void initialise(Chunks values, const int32_t* rows, const int64_t* ids, int64_t n, int64_t dim, float scale,
                uint64_t seed) {
    for (int64_t i = 0; i < n; ++i) {
        float* to = values.row<float>(rows[i], dim);
        const uint64_t base = mix(uint64_t(ids[i]) + seed * 0x9e3779b97f4a7c15ull);
        for (int64_t d = 0; d < dim; ++d) {
            const uint32_t bits = uint32_t(mix(base + uint64_t(d) * 0x9e3779b97f4a7c15ull) >> 40);  // 24 bits
            to[d] = scale * (float(bits) * 0x1p-23f - 1.0f);
        }
    }
}

// marks [rows, 2]: how often a row was looked up, and at which step last.
void touch(Chunks marks, const int32_t* rows, int64_t n, uint32_t stamp) {
    for (int64_t i = 0; i < n; ++i) {
        if (i + NEAR < n) __builtin_prefetch(marks.row<uint32_t>(rows[i + NEAR], 2));
        uint32_t* mark = marks.row<uint32_t>(rows[i], 2);
        mark[0] += mark[0] != UINT32_MAX;
        mark[1] = stamp;
    }
}

// Row-wise Adagrad; state [rows, 1] is the sum of mean squares. Rows are distinct; gradients are times `scale`. The
// vectors of rows [n] are at `places` [n] of `values`.
void adagrad(Chunks values, Chunks state, const int32_t* places, const int32_t* rows, const float* gradients, int64_t n,
             int64_t dim, float scale, float rate, float epsilon) {
    for (int64_t i = 0; i < n; ++i) {
        if (i + AHEAD < n) __builtin_prefetch(values.row<float>(places[i + AHEAD], dim), 1);
        float* value = values.row<float>(places[i], dim);
        float* sum = state.row<float>(rows[i], 1);
        const float* g = gradients + i * dim;
        float square = 0;
        for (int64_t d = 0; d < dim; ++d) square += (g[d] * scale) * (g[d] * scale);
        *sum += square / float(dim);
        const float by = rate / (std::sqrt(*sum) + epsilon);
        for (int64_t d = 0; d < dim; ++d) value[d] -= by * (g[d] * scale);
    }
}

// Adam with a step count per row, and weights that decay apart from it; state [rows, 2 dim + 1]: first moments, second
// moments, steps. With `averaging` above 0 a moving average of the row follows in it: dim numbers more.
void adam(Chunks values, Chunks state, const int32_t* places, const int32_t* rows, const float* gradients, int64_t n,
          int64_t dim, float scale, float rate, float epsilon, float beta1, float beta2, float decay, float averaging) {
    const int64_t width = 2 * dim + 1 + (averaging > 0 ? dim : 0);
    const float shrink = 1 - rate * decay;
    for (int64_t i = 0; i < n; ++i) {
        float* value = values.row<float>(places[i], dim);
        float *first = state.row<float>(rows[i], width), *second = first + dim, *average = second + dim + 1;
        const float steps = second[dim] += 1;
        const float by = rate / (1 - std::pow(beta1, steps)), root = 1 / std::sqrt(1 - std::pow(beta2, steps));
        for (int64_t d = 0; d < dim; ++d) {
            const float g = gradients[i * dim + d] * scale;
            first[d] += (1 - beta1) * (g - first[d]);
            second[d] += (1 - beta2) * (g * g - second[d]);
            value[d] = shrink * value[d] - by * first[d] / (std::sqrt(second[d]) * root + epsilon);
        }
        if (averaging > 0) {
            const float kept = std::fmin(averaging, (steps - 1) / (steps + 8));
            for (int64_t d = 0; d < dim; ++d) average[d] = value[d] + kept * (average[d] - value[d]);
        }
    }
}
}
