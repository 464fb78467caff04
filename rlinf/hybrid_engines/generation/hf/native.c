/* One decoding step of a Llama-like model, in fp32 on a CPU.
 *
 * Compiled for HEAD_DIM (numbers per head, a multiple of LANES) and GROUP (query heads per key head).
 * Rows are sequences. Keys and values of a layer are [slots, kv_heads, capacity, HEAD_DIM]; the
 * capacity is a multiple of LANES.
 */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define HALF (HEAD_DIM / 2)
#define PARTS (HEAD_DIM / LANES)
/* Positions at a time, so that there are enough independent sums to hide the latency of one. */
#define STEPS (GROUP * PARTS < 8 ? 2 : 1)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
#define AT(pointer) (*(vec *)(pointer))

/* C = alpha A B + beta C, by columns, as in BLAS. */
typedef void (*Sgemm)(const char *, const char *, const int *, const int *, const int *,
                      const float *, const float *, const int *, const float *, const int *,
                      const float *, float *, const int *);

/* Weights are [out, in]; biases and head norms may be null. */
typedef struct {
    const float *before_attention, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias;
    const float *before_mlp, *gate_up, *gate_up_bias, *down, *down_bias;
    float *keys, *values;
} Layer;

/* cosine, sine: [capacity, HALF]. set_threads gives BLAS so many threads in this one; may be null. */
typedef struct {
    Sgemm sgemm;
    int (*set_threads)(int);
    const Layer *layers;
    const float *embedding, *norm, *head, *cosine, *sine;
    int64_t layers_count, hidden, inner, vocabulary, kv_heads, capacity;
    float epsilon;
} Model;

/* Relative error about 1e-7 (Cephes); x below -87 gives 1.6e-38. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float n = rintf(x * 1.44269504088896341f);
    const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    union { int32_t i; float f; } power = {.i = ((int32_t)n + 127) << 23};
    return (p * r * r + r + 1.0f) * power.f;
}

static inline float inverse_rms(const float *x, int64_t width, float epsilon) {
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < width; i++) square += x[i] * x[i];
    return 1.0f / sqrtf(square / (float)width + epsilon);
}

/* Normalises a head (if there are weights), turns it by its position, and scales it. */
static inline void turn(const float *x, const float *weight, float epsilon, const float *cosine,
                        const float *sine, float scale, float *y) {
    float t[HEAD_DIM];
    if (weight) {
        float inverse = inverse_rms(x, HEAD_DIM, epsilon);
#pragma omp simd
        for (int d = 0; d < HEAD_DIM; d++) t[d] = x[d] * inverse * weight[d];
    } else {
        memcpy(t, x, sizeof t);
    }
#pragma omp simd
    for (int d = 0; d < HALF; d++) {
        y[d] = (t[d] * cosine[d] - t[d + HALF] * sine[d]) * scale;
        y[d + HALF] = (t[d + HALF] * cosine[d] + t[d] * sine[d]) * scale;
    }
}

static inline float total(vec x) {
    typedef float half __attribute__((vector_size(2 * LANES)));
    typedef float quarter __attribute__((vector_size(LANES)));
    const union { vec whole; half part[2]; } a = {.whole = x};
    const union { half whole; quarter part[2]; } b = {.whole = a.part[0] + a.part[1]};
    const quarter c = b.part[0] + b.part[1];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* scores[r][t] = q[r] . k[t] for the first `count` positions. */
static inline void score(float q[GROUP][HEAD_DIM], const float *keys, int64_t count,
                         int64_t capacity, float *scores) {
    for (int64_t t = 0; t < count; t++)
#pragma GCC unroll 16
        for (int r = 0; r < GROUP; r++) {
            vec sum = {0};
#pragma GCC unroll 16
            for (int j = 0; j < PARTS; j++)
                sum += AT(q[r] + j * LANES) * AT(keys + t * HEAD_DIM + j * LANES);
            scores[r * capacity + t] = total(sum);
        }
}

/* Turns the scores of `count` positions into probabilities. */
static inline void softmax(float *scores, int64_t count) {
    const int64_t whole = (count + LANES - 1) / LANES * LANES;
    float top = scores[0], sum = 0;
    for (int64_t t = count; t < whole; t++) scores[t] = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t t = 0; t < whole; t++) top = scores[t] > top ? scores[t] : top;
#pragma omp simd reduction(+ : sum)
    for (int64_t t = 0; t < whole; t++) {
        scores[t] = exponential(scores[t] - top);
        sum += scores[t];
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t t = 0; t < whole; t++) scores[t] *= inverse;
}

/* out[r] = sum over t of probabilities[r][t] * v[t]. */
static inline void mix(const float *probabilities, const float *values, int64_t count,
                       int64_t capacity, float *out) {
    vec sum[STEPS][GROUP][PARTS] = {0};
    int64_t t = 0;
    for (; t + STEPS <= count; t += STEPS)
#pragma GCC unroll 2
        for (int s = 0; s < STEPS; s++)
#pragma GCC unroll 16
            for (int r = 0; r < GROUP; r++)
#pragma GCC unroll 16
                for (int j = 0; j < PARTS; j++)
                    sum[s][r][j] += probabilities[r * capacity + t + s] *
                                    AT(values + (t + s) * HEAD_DIM + j * LANES);
    for (; t < count; t++)
        for (int r = 0; r < GROUP; r++)
            for (int j = 0; j < PARTS; j++)
                sum[0][r][j] += probabilities[r * capacity + t] *
                                AT(values + t * HEAD_DIM + j * LANES);
    for (int r = 0; r < GROUP; r++)
        for (int j = 0; j < PARTS; j++)
            AT(out + r * HEAD_DIM + j * LANES) =
                STEPS == 2 ? sum[0][r][j] + sum[STEPS - 1][r][j] : sum[0][r][j];
}

/* Writes the keys and values of one new token per row and attends to all up to it.
 *
 * qkv: [rows, heads + 2 * kv_heads, HEAD_DIM]; out: [rows, heads, HEAD_DIM];
 * scores: [GROUP, capacity] to work in.
 */
static void attend(const Model *m, const Layer *w, int64_t first, int64_t rows,
                   const int64_t *positions, const float *qkv, float *scores, float *out) {
    const float scale = 1.0f / sqrtf(HEAD_DIM);
    const int64_t kv_heads = m->kv_heads, heads = kv_heads * GROUP, capacity = m->capacity;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t g = 0; g < kv_heads; g++) {
            const int64_t position = positions[b], count = position + 1;
            const float *row = qkv + b * (heads + 2 * kv_heads) * HEAD_DIM;
            const float *c = m->cosine + position * HALF, *s = m->sine + position * HALF;
            float *keys = w->keys + ((first + b) * kv_heads + g) * capacity * HEAD_DIM;
            float *values = w->values + ((first + b) * kv_heads + g) * capacity * HEAD_DIM;
            float q[GROUP][HEAD_DIM];

            turn(row + (heads + g) * HEAD_DIM, w->k_norm, m->epsilon, c, s, 1.0f,
                 keys + position * HEAD_DIM);
            memcpy(values + position * HEAD_DIM, row + (heads + kv_heads + g) * HEAD_DIM, sizeof q[0]);
            for (int r = 0; r < GROUP; r++)
                turn(row + (g * GROUP + r) * HEAD_DIM, w->q_norm, m->epsilon, c, s, scale, q[r]);
            score(q, keys, count, capacity, scores);
            for (int r = 0; r < GROUP; r++) softmax(scores + r * capacity, count);
            mix(scores, values, count, capacity, out + (b * heads + g * GROUP) * HEAD_DIM);
        }
}

/* out = x / rms(x) * weight; x, out: [rows, width]. */
static void rms_norm(const float *x, const float *weight, float epsilon, int64_t rows,
                     int64_t width, float *out) {
    for (int64_t b = 0; b < rows; b++) {
        const float *row = x + b * width;
        const float inverse = inverse_rms(row, width, epsilon);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) out[b * width + i] = row[i] * inverse * weight[i];
    }
}

/* out = silu(gate) * up; gate_up: [rows, 2 * width]; out: [rows, width]. */
static void swiglu(const float *gate_up, int64_t rows, int64_t width, float *out) {
    for (int64_t b = 0; b < rows; b++) {
        const float *gate = gate_up + b * 2 * width, *up = gate + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            out[b * width + i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
    }
}

/* out = x weight^T + bias, or out + that; x: [rows, in]; weight: [width, in]; out: [rows, width]. */
static void multiply(const Model *m, const float *x, const float *weight, const float *bias,
                     int add, int64_t rows, int64_t in, int64_t width, float *out) {
    const int n = (int)width, k = (int)in, count = (int)rows;
    const float one = 1.0f, zero = 0.0f;
    if (bias)
        for (int64_t b = 0; b < rows; b++)
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                out[b * width + i] = add ? out[b * width + i] + bias[i] : bias[i];
    m->sgemm("T", "N", &n, &count, &k, &one, weight, &k, x, &k, add || bias ? &one : &zero, out, &n);
}

static inline double uniform(uint64_t key, uint64_t counter) {
    uint64_t x = key + counter * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x = x ^ (x >> 31);
    return (double)(x >> 16) * 0x1p-48;
}

/* exp(x / temperature - top), summed over a block of a row. */
static inline double block_sum(const float *x, int64_t count, float temperature, float top) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += exponential(x[i] / temperature - top);
    return sum;
}

#define BLOCKS 512

/* Draws a token from the logits of a row, see `rlinf.hybrid_engines.generation.sampling`. */
static int64_t draw_row(const float *x, int64_t vocabulary, float temperature, double noise,
                        double *logprob) {
    const int64_t least = (vocabulary + BLOCKS - 1) / BLOCKS, width = least < 64 ? 64 : least;
    const int64_t blocks = (vocabulary + width - 1) / width;
    const int greedy = !(temperature > 0);
    double sums[BLOCKS], total = 0;
    float top = x[0];
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < vocabulary; i++) top = x[i] > top ? x[i] : top;
    int64_t token = 0;
    if (greedy) temperature = 1.0f;
    const float highest = top / temperature;
    for (int64_t j = 0; j < blocks; j++) {
        const int64_t begin = j * width;
        const int64_t count = vocabulary - begin < width ? vocabulary - begin : width;
        sums[j] = block_sum(x + begin, count, temperature, highest);
        total += sums[j];
    }
    if (greedy) {
        while (token < vocabulary - 1 && x[token] != top) token++;
    } else {
        double rest = noise * total;
        int64_t block = 0;
        while (block < blocks - 1 && rest >= sums[block]) rest -= sums[block++];
        const int64_t end = (block + 1) * width < vocabulary ? (block + 1) * width : vocabulary;
        /* Rounding may leave a rest behind the last token: then it is the last one of any weight. */
        token = block * width;
        for (int64_t i = token; i < end; i++) {
            const float z = x[i] / temperature - highest;
            if (z <= -87.0f) continue;
            token = i;
            const double weight = exponential(z);
            if (rest < weight) break;
            rest -= weight;
        }
    }
    *logprob = x[token] / temperature - highest - log(total);
    return token;
}

/* The state of rows; without a result nothing is drawn, and only tokens and positions are read. */
typedef struct {
    int64_t *tokens, *positions, *counters;
    const int64_t *keys;
    const float *temperatures;
    double *result;
    int64_t stride;
} Rows;

/* Widths of what `step` works in: the widest product, and the widest input of a second one. */
static void widths(const Model *m, int64_t *projected, int64_t *widest, int64_t *second) {
    const int64_t attended = m->kv_heads * GROUP * HEAD_DIM;
    *projected = attended + 2 * m->kv_heads * HEAD_DIM;
    *widest = *projected > 2 * m->inner ? *projected : 2 * m->inner;
    *second = attended > m->inner ? attended : m->inner;
}

/* Numbers that `step` needs to work in. */
int64_t scratch_size(const Model *m, int64_t rows, int threads) {
    int64_t projected, widest, second;
    widths(m, &projected, &widest, &second);
    return rows * (2 * m->hidden + widest + second) + threads * GROUP * m->capacity;
}

/* Reads one more token in each row; then, if there is a result, draws the next one from the logits
 * [rows, vocabulary] and moves on. Threads take rows of their own through all layers and never wait
 * for each other.
 */
void step(const Model *m, const Rows *s, float *logits, float *scratch, int64_t rows, int threads) {
    const int64_t hidden = m->hidden, inner = m->inner, vocabulary = m->vocabulary;
    const int64_t attended = m->kv_heads * GROUP * HEAD_DIM;
    int64_t projected, widest, second;
    widths(m, &projected, &widest, &second);
#pragma omp parallel num_threads(threads)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t first = rows * thread / team, count = rows * (thread + 1) / team - first;
        float *x = scratch + first * hidden, *h = scratch + (rows + first) * hidden;
        float *wide = scratch + 2 * rows * hidden + first * widest;
        float *half = scratch + rows * (2 * hidden + widest) + first * second;
        float *scores = scratch + rows * (2 * hidden + widest + second) + thread * GROUP * m->capacity;
        float *own = logits + first * vocabulary;
        const int before = m->set_threads ? m->set_threads(1) : 0;
        for (int64_t b = 0; b < count; b++)
            memcpy(x + b * hidden, m->embedding + s->tokens[first + b] * hidden, 4 * hidden);
        for (int64_t i = 0; count && i < m->layers_count; i++) {
            const Layer *w = m->layers + i;
            rms_norm(x, w->before_attention, m->epsilon, count, hidden, h);
            multiply(m, h, w->qkv, w->qkv_bias, 0, count, hidden, projected, wide);
            attend(m, w, first, count, s->positions + first, wide, scores, half);
            multiply(m, half, w->out, w->out_bias, 1, count, attended, hidden, x);
            rms_norm(x, w->before_mlp, m->epsilon, count, hidden, h);
            multiply(m, h, w->gate_up, w->gate_up_bias, 0, count, hidden, 2 * inner, wide);
            swiglu(wide, count, inner, half);
            multiply(m, half, w->down, w->down_bias, 1, count, inner, hidden, x);
        }
        rms_norm(x, m->norm, m->epsilon, count, hidden, h);
        if (count) multiply(m, h, m->head, 0, 0, count, hidden, vocabulary, own);
        for (int64_t b = first; s->result && b < first + count; b++) {
            const double noise = uniform(s->keys[b], s->counters[b]++);
            s->tokens[b] = draw_row(logits + b * vocabulary, vocabulary, s->temperatures[b], noise,
                                    s->result + s->stride + b);
            s->result[b] = (double)s->tokens[b];
            /* Rows that nobody reads go on, too: they stay inside of the cache. */
            if (s->positions[b] + 1 < m->capacity) s->positions[b]++;
        }
        if (m->set_threads) m->set_threads(before);
    }
}

/* Draws a token per row without cuts.
 *
 * logits: [rows, vocabulary]; result: [2, stride], tokens and log-probabilities.
 */
void draw(const float *logits, const float *temperatures, const int64_t *keys,
          const int64_t *counters, double *result, int64_t stride, int64_t rows, int64_t vocabulary,
          int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t b = 0; b < rows; b++)
        result[b] = (double)draw_row(logits + b * vocabulary, vocabulary, temperatures[b],
                                     uniform(keys[b], counters[b]), result + stride + b);
}

/* Keeps keys and values [rows, kv_heads, length, HEAD_DIM] in given rows, from position 0 on.
 *
 * k, v: [sequences, length, kv_heads, HEAD_DIM]; targets: [rows], rows of the cache; sources:
 * [rows], which of the sequences each gets.
 */
void keep(const Model *m, int64_t layer, const float *k, const float *v, const int64_t *targets,
          const int64_t *sources, int64_t rows, int64_t length, int threads) {
    const int64_t kv_heads = m->kv_heads, step = kv_heads * HEAD_DIM;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t b = 0; b < rows; b++)
        for (int64_t g = 0; g < kv_heads; g++) {
            const int64_t place = (targets[b] * kv_heads + g) * m->capacity * HEAD_DIM;
            const int64_t begin = sources[b] * length * step + g * HEAD_DIM;
            float *keys = m->layers[layer].keys + place, *values = m->layers[layer].values + place;
            for (int64_t t = 0; t < length; t++) {
                memcpy(keys + t * HEAD_DIM, k + begin + t * step, 4 * HEAD_DIM);
                memcpy(values + t * HEAD_DIM, v + begin + t * step, 4 * HEAD_DIM);
            }
        }
}

/* Copies the first `length` tokens of `count` rows of all layers to other rows. */
void move(const Model *m, const int64_t *sources, const int64_t *targets, int64_t count,
          int64_t length) {
    const int64_t size = m->capacity * HEAD_DIM, bytes = 4 * length * HEAD_DIM;
    for (int64_t i = 0; i < m->layers_count; i++)
        for (int64_t b = 0; b < count; b++)
            for (int64_t g = 0; g < m->kv_heads; g++) {
                const int64_t from = (sources[b] * m->kv_heads + g) * size;
                const int64_t to = (targets[b] * m->kv_heads + g) * size;
                memcpy(m->layers[i].keys + to, m->layers[i].keys + from, bytes);
                memcpy(m->layers[i].values + to, m->layers[i].values + from, bytes);
            }
}
