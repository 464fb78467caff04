/* Reading and drawing tokens with a Llama-like model, in fp32 on a CPU.
 *
 * Compiled for HEAD_DIM (numbers per head, a multiple of LANES) and GROUP (query heads per key head).
 * A slot is the memory of one sequence. Values of a layer lie as [slots, kv_heads, capacity,
 * HEAD_DIM]; keys in blocks of LANES positions, [slots, kv_heads, capacity / LANES, HEAD_DIM, LANES],
 * so that the scores of a block are one vector. Only this file knows.
 */

#include <omp.h>

#include "native_layers.h"

/* Weights are [out, in]; biases and the norms of heads may be null. */
typedef struct {
    const float *before_attention, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias;
    const float *before_mlp, *gate_up, *gate_up_bias, *down, *down_bias;
    float *keys, *values;
} Layer;

/* cosine, sine: [capacity, HALF]. set_threads gives BLAS so many in the calling one; may be null. */
typedef struct {
    Sgemm sgemm;
    int (*set_threads)(int);
    const Layer *layers;
    const float *embedding, *norm, *head, *cosine, *sine;
    int64_t layers_count, hidden, inner, vocabulary, kv_heads, capacity;
    float epsilon;
} Model;

/* Tokens to read, and where they are. Without slots, token b is in slot b. */
typedef struct {
    int64_t *tokens, *positions;
    const int64_t *slots;
} Input;

/* How to draw the next token of each; result: [rows, 2], tokens and log-probabilities. */
typedef struct {
    const float *temperatures;
    const int64_t *keys;
    int64_t *counters;
    double *result;
} Drawing;

/* -- parts of a layer ------------------------------------------------------------------------- */

/* out = x weight^T + bias, or that added to out; x: [rows, in]; out: [rows, width]. */
static void multiply(const Model *m, const float *x, const float *weight, const float *bias,
                     int add, int64_t rows, int64_t in, int64_t width, float *out) {
    const int n = (int)width, k = (int)in, count = (int)rows;
    const float one = 1.0f, zero = 0.0f;
    if (!count) return;
    if (bias)
        for (int64_t b = 0; b < rows; b++)
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                out[b * width + i] = add ? out[b * width + i] + bias[i] : bias[i];
    m->sgemm("T", "N", &n, &count, &k, &one, weight, &k, x, &k, add || bias ? &one : &zero, out, &n);
}

/* Sums are four variables each: a sum in memory, or a single one, would wait for itself. */

/* scores[t] = q . k[t] for the LANES positions of a block. */
static inline void score(const float *q, const float *block, float *scores) {
    vec a = {0}, b = {0}, c = {0}, e = {0};
    for (int d = 0; d < HEAD_DIM; d += 4) {
        a += q[d] * AT(block + d * LANES);
        b += q[d + 1] * AT(block + (d + 1) * LANES);
        c += q[d + 2] * AT(block + (d + 2) * LANES);
        e += q[d + 3] * AT(block + (d + 3) * LANES);
    }
    AT(scores) = (a + b) + (c + e);
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

/* out = sum over t of p[t] * v[t], LANES of the HEAD_DIM numbers of a value. */
static inline void mix(const float *p, const float *values, int64_t count, float *out) {
    vec a = {0}, b = {0}, c = {0}, e = {0};
    int64_t t = 0;
    for (; t + 4 <= count; t += 4) {
        a += p[t] * AT(values + t * HEAD_DIM);
        b += p[t + 1] * AT(values + (t + 1) * HEAD_DIM);
        c += p[t + 2] * AT(values + (t + 2) * HEAD_DIM);
        e += p[t + 3] * AT(values + (t + 3) * HEAD_DIM);
    }
    for (; t < count; t++) a += p[t] * AT(values + t * HEAD_DIM);
    AT(out) = (a + b) + (c + e);
}

/* Where the keys or values of a sequence begin. */
static inline int64_t place(const Model *m, int64_t slot, int64_t kv_head) {
    return (slot * m->kv_heads + kv_head) * m->capacity * HEAD_DIM;
}

/* Keeps the keys and values of tokens; qkv: [rows, heads + 2 * kv_heads, HEAD_DIM]. */
static void keep(const Model *m, const Layer *w, const Input *in, int64_t first, int64_t rows,
                 const float *qkv) {
    const int64_t heads = m->kv_heads * GROUP;
    for (int64_t b = first; b < first + rows; b++)
        for (int64_t g = 0; g < m->kv_heads; g++) {
            const int64_t position = in->positions[b];
            const int64_t begin = place(m, in->slots ? in->slots[b] : b, g);
            const float *row = qkv + (b - first) * (heads + 2 * m->kv_heads) * HEAD_DIM;
            float key[HEAD_DIM];
            turn(row + (heads + g) * HEAD_DIM, w->k_norm, m->epsilon, m->cosine + position * HALF,
                 m->sine + position * HALF, 1.0f, key);
            float *block = w->keys + begin + position / LANES * LANES * HEAD_DIM;
            for (int d = 0; d < HEAD_DIM; d++) block[d * LANES + position % LANES] = key[d];
            memcpy(w->values + begin + position * HEAD_DIM,
                   row + (heads + m->kv_heads + g) * HEAD_DIM, sizeof key);
        }
}

/* Attends from each token to those up to it; out: [rows, heads, HEAD_DIM]; scores: [capacity]. */
static void attend(const Model *m, const Layer *w, const Input *in, int64_t first, int64_t rows,
                   const float *qkv, float *scores, float *out) {
    const float scale = 1.0f / sqrtf(HEAD_DIM);
    const int64_t heads = m->kv_heads * GROUP;
    for (int64_t b = first; b < first + rows; b++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t position = in->positions[b], count = position + 1;
            const int64_t begin = place(m, in->slots ? in->slots[b] : b, h / GROUP);
            const float *row = qkv + (b - first) * (heads + 2 * m->kv_heads) * HEAD_DIM;
            float query[HEAD_DIM];
            turn(row + h * HEAD_DIM, w->q_norm, m->epsilon, m->cosine + position * HALF,
                 m->sine + position * HALF, scale, query);
            for (int64_t t = 0; t < count; t += LANES)
                score(query, w->keys + begin + t * HEAD_DIM, scores + t);
            softmax(scores, count);
            for (int j = 0; j < HEAD_DIM; j += LANES)
                mix(scores, w->values + begin + j, count,
                    out + ((b - first) * heads + h) * HEAD_DIM + j);
        }
}

/* -- drawing ------------------------------------------------------------------------------------ */

#define BLOCKS 512

static inline double uniform(uint64_t key, uint64_t counter) {
    uint64_t x = key + counter * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x = x ^ (x >> 31);
    return (double)(x >> 16) * 0x1p-48;
}

/* exp(x / temperature - top), summed. */
static inline double weights(const float *x, int64_t count, float temperature, float top) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += exponential(x[i] / temperature - top);
    return sum;
}

/* Draws a token from the logits of a row as `rlinf.hybrid_engines.generation.sampling` does. */
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
        sums[j] = weights(x + begin, count, temperature, highest);
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

/* Draws a token per row; logits: [rows, vocabulary]. */
void draw(const Drawing *d, const float *logits, int64_t rows, int64_t vocabulary, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t b = 0; b < rows; b++)
        d->result[2 * b] = (double)draw_row(logits + b * vocabulary, vocabulary, d->temperatures[b],
                                            uniform(d->keys[b], d->counters[b]),
                                            d->result + 2 * b + 1);
}

/* -- steps -------------------------------------------------------------------------------------- */

/* Widths of what `forward` works in: of the first projection, the widest, and inputs of seconds. */
static void widths(const Model *m, int64_t *projected, int64_t *widest, int64_t *second) {
    const int64_t attended = m->kv_heads * GROUP * HEAD_DIM;
    *projected = attended + 2 * m->kv_heads * HEAD_DIM;
    *widest = *projected > 2 * m->inner ? *projected : 2 * m->inner;
    *second = attended > m->inner ? attended : m->inner;
}

/* Numbers that `forward` needs to work in. */
int64_t scratch_size(const Model *m, int64_t rows, int threads) {
    int64_t projected, widest, second;
    widths(m, &projected, &widest, &second);
    return rows * (2 * m->hidden + widest + second) + threads * m->capacity;
}

/* Reads tokens; leaves their normalised hidden states [rows, hidden] at the start of scratch. With
 * logits [rows, vocabulary] these are computed, too, and with a drawing the next tokens are drawn.
 *
 * Threads take tokens of their own through all layers. They wait for each other's keys only if
 * tokens have slots, since several of one sequence may be there then.
 */
void forward(const Model *m, const Input *in, float *logits, const Drawing *d, float *scratch,
             int64_t rows, int threads) {
    const int64_t hidden = m->hidden, inner = m->inner, vocabulary = m->vocabulary;
    const int64_t attended = m->kv_heads * GROUP * HEAD_DIM;
    int64_t projected, widest, second;
    widths(m, &projected, &widest, &second);
#pragma omp parallel num_threads(threads)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int64_t first = rows * thread / team, count = rows * (thread + 1) / team - first;
        float *h = scratch + first * hidden, *x = scratch + (rows + first) * hidden;
        float *wide = scratch + 2 * rows * hidden + first * widest;
        float *half = scratch + rows * (2 * hidden + widest) + first * second;
        float *scores = scratch + rows * (2 * hidden + widest + second) + thread * m->capacity;
        const int before = m->set_threads ? m->set_threads(1) : 0;
        for (int64_t b = 0; b < count; b++)
            memcpy(x + b * hidden, m->embedding + in->tokens[first + b] * hidden, 4 * hidden);
        for (int64_t i = 0; i < m->layers_count; i++) {
            const Layer *w = m->layers + i;
            rms_norm(x, w->before_attention, m->epsilon, count, hidden, h);
            multiply(m, h, w->qkv, w->qkv_bias, 0, count, hidden, projected, wide);
            keep(m, w, in, first, count, wide);
            if (in->slots) {
#pragma omp barrier
            }
            attend(m, w, in, first, count, wide, scores, half);
            multiply(m, half, w->out, w->out_bias, 1, count, attended, hidden, x);
            rms_norm(x, w->before_mlp, m->epsilon, count, hidden, h);
            multiply(m, h, w->gate_up, w->gate_up_bias, 0, count, hidden, 2 * inner, wide);
            swiglu(wide, count, inner, half);
            multiply(m, half, w->down, w->down_bias, 1, count, inner, hidden, x);
        }
        rms_norm(x, m->norm, m->epsilon, count, hidden, h);
        if (logits)
            multiply(m, h, m->head, 0, 0, count, hidden, vocabulary, logits + first * vocabulary);
        for (int64_t b = first; d && b < first + count; b++) {
            const double noise = uniform(d->keys[b], d->counters[b]++);
            in->tokens[b] = draw_row(logits + b * vocabulary, vocabulary, d->temperatures[b], noise,
                                     d->result + 2 * b + 1);
            d->result[2 * b] = (double)in->tokens[b];
            /* Slots that nobody reads go on, too: they stay inside of their memory. */
            if (in->positions[b] + 1 < m->capacity) in->positions[b]++;
        }
        if (m->set_threads) m->set_threads(before);
    }
}

/* Copies the first lengths[i] tokens of slot sources[i] to slot targets[i], in all layers. */
void copy(const Model *m, const int64_t *sources, const int64_t *targets, const int64_t *lengths,
          int64_t count, int threads) {
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < m->layers_count; i++)
        for (int64_t b = 0; b < count; b++)
            for (int64_t g = 0; g < m->kv_heads; g++) {
                const Layer *w = m->layers + i;
                const int64_t from = place(m, sources[b], g), to = place(m, targets[b], g);
                const int64_t blocks = (lengths[b] + LANES - 1) / LANES * LANES;
                memcpy(w->keys + to, w->keys + from, 4 * blocks * HEAD_DIM);
                memcpy(w->values + to, w->values + from, 4 * lengths[b] * HEAD_DIM);
            }
}
