/* The layers of a Llama-like model and their gradients, in fp32 on a CPU.
 *
 * Compiled for HEAD_DIM, numbers per head, a multiple of LANES. Sequences lie end to end in one row of
 * tokens, in units: a prompt, then its responses, each of which sees the prompt and itself. Threads
 * take units of their own through all layers, some at a time, so that what they work in stays in the
 * cache; they share nothing but weights, and add their gradients of these up at the end.
 */

#include <omp.h>

#include "native_layers.h"

#define CHUNK 256 /* tokens that go through a layer together, at least */

/* A response; of the first segment of a unit, the prompt, the prefix is empty. */
typedef struct {
    int64_t begin, length, prefix;
} Segment;

/* weights: of each layer those of `Weights`, end to end, then those of the last norm.
 * units: first segments of all units, and the end. cosine, sine: [positions, HALF].
 * set_threads gives BLAS so many in the calling one; may be null. */
typedef struct {
    Sgemm sgemm;
    int (*set_threads)(int);
    const float *weights, *cosine, *sine;
    const Segment *segments;
    const int64_t *units;
    int64_t units_count, tokens, largest, layers, hidden, inner, heads, kv_heads;
    int64_t head_norms, biases;
    float epsilon, scale;
} Model;

/* Of one layer, [out, in]; without biases or norms of heads, they have no memory. */
typedef struct {
    float *before_attention, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *before_mlp, *gate_up, *down;
} Weights;

/* What the backward pass of a layer has to know of its tokens, [tokens, width] each. */
typedef struct {
    float *x, *qkv, *attended, *middle, *gate_up;
} Kept;

/* -- sizes ------------------------------------------------------------------------------------ */

static inline int64_t attended_width(const Model *m) { return m->heads * HEAD_DIM; }

static inline int64_t qkv_width(const Model *m) { return (m->heads + 2 * m->kv_heads) * HEAD_DIM; }

static inline int64_t kept_width(const Model *m) {
    return 2 * m->hidden + qkv_width(m) + attended_width(m) + 2 * m->inner;
}

static inline int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Takes weights from their memory; returns the first that are not of this layer. */
static float *weights_of(const Model *m, float *at, Weights *w) {
    const int64_t hidden = m->hidden;
    w->before_attention = at, at += hidden;
    w->qkv = at, at += qkv_width(m) * hidden;
    w->qkv_bias = at, at += m->biases ? qkv_width(m) : 0;
    w->q_norm = at, at += m->head_norms ? HEAD_DIM : 0;
    w->k_norm = at, at += m->head_norms ? HEAD_DIM : 0;
    w->out = at, at += hidden * attended_width(m);
    w->before_mlp = at, at += hidden;
    w->gate_up = at, at += 2 * m->inner * hidden;
    w->down = at, at += hidden * m->inner;
    return at;
}

static int64_t layer_size(const Model *m) {
    Weights w;
    return weights_of(m, (float *)m->weights, &w) - m->weights;
}

int64_t weights_size(const Model *m) { return m->layers * layer_size(m) + m->hidden; }

/* Numbers that `forward` keeps for `backward`. */
int64_t kept_size(const Model *m) { return m->tokens * (m->layers * kept_width(m) + m->hidden); }

/* Numbers that one thread works in. */
static int64_t own_scratch(const Model *m) {
    const int64_t rows = CHUNK + m->largest, wide = larger(2 * m->inner, qkv_width(m));
    const int64_t second = larger(m->inner, attended_width(m));
    return rows * (kept_width(m) + 3 * m->hidden + wide + 2 * second) +
           padded(m->largest) * (9 * HEAD_DIM + 2);
}

int64_t scratch_size(const Model *m, int threads) { return threads * own_scratch(m); }

static Kept kept_at(const Model *m, float *memory, int64_t tokens, int64_t layer, int64_t first) {
    Kept k;
    float *at = memory + layer * tokens * kept_width(m);
    k.x = at + first * m->hidden, at += tokens * m->hidden;
    k.qkv = at + first * qkv_width(m), at += tokens * qkv_width(m);
    k.attended = at + first * attended_width(m), at += tokens * attended_width(m);
    k.middle = at + first * m->hidden, at += tokens * m->hidden;
    k.gate_up = at + first * 2 * m->inner;
    return k;
}

static int64_t begin_of(const Model *m, int64_t unit) {
    return unit < m->units_count ? m->segments[m->units[unit]].begin : m->tokens;
}

/* -- products --------------------------------------------------------------------------------- */

/* out = x weight^T, or that added to out; x: [rows, in]; out: [rows, width]. */
static void multiply(const Model *m, const float *x, const float *weight, int add, int64_t rows,
                     int64_t in, int64_t width, float *out) {
    const int n = (int)width, k = (int)in, count = (int)rows;
    const float one = 1.0f, beta = add ? 1.0f : 0.0f;
    m->sgemm("T", "N", &n, &count, &k, &one, weight, &k, x, &k, &beta, out, &n);
}

/* to_x = grad weight, the gradient of x. */
static void input_back(const Model *m, const float *grad, const float *weight, int64_t rows,
                       int64_t in, int64_t width, float *to_x) {
    const int n = (int)width, k = (int)in, count = (int)rows;
    const float one = 1.0f, zero = 0.0f;
    m->sgemm("N", "N", &k, &count, &n, &one, weight, &k, grad, &n, &zero, to_x, &k);
}

/* to_weight += grad^T x. */
static void weight_back(const Model *m, const float *grad, const float *x, int64_t rows, int64_t in,
                        int64_t width, float *to_weight) {
    const int n = (int)width, k = (int)in, count = (int)rows;
    const float one = 1.0f;
    m->sgemm("N", "T", &k, &n, &count, &one, x, &k, grad, &n, &one, to_weight, &k);
}

/* -- norms ------------------------------------------------------------------------------------ */

/* to_x (+)= the gradient of a row in x, to_weight += that in the weight. */
static inline void norm_row_back(const float *grad, const float *x, const float *weight,
                                 float epsilon, int64_t width, int add, float *to_x,
                                 float *to_weight) {
    const float inverse = inverse_rms(x, width, epsilon);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) sum += grad[i] * weight[i] * x[i];
    const float mean = sum * inverse * inverse / (float)width;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        to_weight[i] += grad[i] * x[i] * inverse;
        const float own = inverse * (grad[i] * weight[i] - x[i] * mean);
        to_x[i] = add ? to_x[i] + own : own;
    }
}

static void rms_norm_back(const float *grad, const float *x, const float *weight, float epsilon,
                          int64_t rows, int64_t width, int add, float *to_x, float *to_weight) {
    for (int64_t b = 0; b < rows; b++)
        norm_row_back(grad + b * width, x + b * width, weight, epsilon, width, add,
                      to_x + b * width, to_weight);
}

/* -- gates ------------------------------------------------------------------------------------ */

/* to_gate_up = the gradient; out is computed again, too. */
static void swiglu_back(const float *grad, const float *gate_up, int64_t rows, int64_t width,
                        float *to_gate_up, float *out) {
    for (int64_t b = 0; b < rows; b++) {
        const float *gate = gate_up + b * 2 * width, *up = gate + width, *own = grad + b * width;
        float *to_gate = to_gate_up + b * 2 * width, *to_up = to_gate + width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            const float sigmoid = 1.0f / (1.0f + exponential(-gate[i]));
            const float silu = gate[i] * sigmoid;
            out[b * width + i] = silu * up[i];
            to_up[i] = own[i] * silu;
            to_gate[i] = own[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
        }
    }
}

/* -- heads ------------------------------------------------------------------------------------ */

/* See `turn`. */
static inline void turn_at(const Model *m, const float *x, const float *weight, int64_t position,
                           float scale, float *y) {
    turn(x, m->head_norms ? weight : NULL, m->epsilon, m->cosine + position * HALF,
         m->sine + position * HALF, scale, y);
}

static inline void turn_back(const Model *m, const float *grad, const float *x, const float *weight,
                             int64_t position, float scale, float *to_x, float *to_weight) {
    const float *cosine = m->cosine + position * HALF, *sine = m->sine + position * HALF;
    float t[HEAD_DIM];
#pragma omp simd
    for (int d = 0; d < HALF; d++) {
        t[d] = (grad[d] * cosine[d] + grad[d + HALF] * sine[d]) * scale;
        t[d + HALF] = (grad[d + HALF] * cosine[d] - grad[d] * sine[d]) * scale;
    }
    if (m->head_norms)
        norm_row_back(t, x, weight, m->epsilon, HEAD_DIM, 0, to_x, to_weight);
    else
        memcpy(to_x, t, sizeof t);
}

/* -- attention -------------------------------------------------------------------------------- */

/* What a segment sees of one key head: of its prompt, then of itself. `count` tokens, stride
 * padded(count) where tokens are columns. */
typedef struct {
    int64_t count, stride;
    float *keys, *values;                   /* [count, HEAD_DIM] */
    float *key_columns, *value_columns;     /* [HEAD_DIM, stride] */
    float *to_keys, *to_values;             /* [count, HEAD_DIM] */
    float *probabilities, *to_probabilities; /* [stride] */
} Context;

/* Where a segment's context token is, counted from the beginning of its unit. */
static inline int64_t source(const Segment *s, int64_t unit, int64_t token) {
    return token < s->prefix ? token : s->begin - unit + token - s->prefix;
}

/* keys: [unit tokens, HEAD_DIM], turned; values: a column of heads of qkv rows. */
static void gather(const Segment *s, int64_t unit, const float *keys, const float *values,
                   int64_t width, Context *c) {
    c->count = s->prefix + s->length, c->stride = padded(c->count);
    for (int64_t t = 0; t < c->count; t++) {
        const int64_t from = source(s, unit, t);
        memcpy(c->keys + t * HEAD_DIM, keys + from * HEAD_DIM, 4 * HEAD_DIM);
        memcpy(c->values + t * HEAD_DIM, values + from * width, 4 * HEAD_DIM);
    }
}

/* Columns behind the last token are zero. */
static void transpose(const float *rows, int64_t count, int64_t stride, float *columns) {
    for (int d = 0; d < HEAD_DIM; d++) {
        for (int64_t t = 0; t < count; t++) columns[d * stride + t] = rows[t * HEAD_DIM + d];
        for (int64_t t = count; t < stride; t++) columns[d * stride + t] = 0;
    }
}

/* out[t] = x . columns[t] for the first tokens, whole blocks of them. Sums are four variables: a
 * single one would wait for itself. */
static inline void dots(const float *x, const float *columns, int64_t stride, int64_t count,
                        float *out) {
    for (int64_t t = 0; t < count; t += LANES) {
        vec a = {0}, b = {0}, c = {0}, e = {0};
        for (int d = 0; d < HEAD_DIM; d += 4) {
            a += x[d] * AT(columns + d * stride + t);
            b += x[d + 1] * AT(columns + (d + 1) * stride + t);
            c += x[d + 2] * AT(columns + (d + 2) * stride + t);
            e += x[d + 3] * AT(columns + (d + 3) * stride + t);
        }
        AT(out + t) = (a + b) + (c + e);
    }
}

/* out = sum of weights[t] * rows[t]. */
static inline void mix(const float *weights, const float *rows, int64_t count, float *out) {
    for (int j = 0; j < HEAD_DIM; j += LANES) {
        vec a = {0}, b = {0};
        int64_t t = 0;
        for (; t + 1 < count; t += 2) {
            a += weights[t] * AT(rows + t * HEAD_DIM + j);
            b += weights[t + 1] * AT(rows + (t + 1) * HEAD_DIM + j);
        }
        if (t < count) a += weights[t] * AT(rows + t * HEAD_DIM + j);
        AT(out + j) = a + b;
    }
}

/* rows[t] += weights[t] * x. */
static inline void spread(const float *weights, const float *x, int64_t count, float *rows) {
    for (int64_t t = 0; t < count; t++)
        for (int j = 0; j < HEAD_DIM; j += LANES)
            AT(rows + t * HEAD_DIM + j) += weights[t] * AT(x + j);
}

/* Scores of `count` tokens become probabilities; those of the rest of the last block zero. */
static inline void softmax(float *scores, int64_t count) {
    const int64_t whole = padded(count);
    float top = scores[0], sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t t = 0; t < count; t++) top = scores[t] > top ? scores[t] : top;
    for (int64_t t = count; t < whole; t++) scores[t] = -INFINITY;
#pragma omp simd reduction(+ : sum)
    for (int64_t t = 0; t < whole; t++) {
        const float weight = scores[t] == -INFINITY ? 0.0f : exponential(scores[t] - top);
        scores[t] = weight;
        sum += weight;
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t t = 0; t < whole; t++) scores[t] *= inverse;
}

static Context context_in(float *scratch, int64_t largest, float **rest) {
    const int64_t size = padded(largest) * HEAD_DIM;
    Context c = {.keys = scratch, .values = scratch + size};
    c.key_columns = scratch + 2 * size, c.value_columns = scratch + 3 * size;
    c.to_keys = scratch + 4 * size, c.to_values = scratch + 5 * size;
    c.probabilities = scratch + 6 * size, c.to_probabilities = c.probabilities + padded(largest);
    *rest = c.to_probabilities + padded(largest);
    return c;
}

/* keys: [unit tokens, HEAD_DIM], of one key head, normalised and turned. */
static void turn_keys(const Model *m, const Weights *w, int64_t unit, const float *qkv,
                             int64_t head, float *keys) {
    const int64_t begin = begin_of(m, unit), width = qkv_width(m);
    for (int64_t i = m->units[unit]; i < m->units[unit + 1]; i++) {
        const Segment *s = m->segments + i;
        for (int64_t t = 0; t < s->length; t++) {
            const int64_t token = s->begin - begin + t;
            turn_at(m, qkv + token * width + (m->heads + head) * HEAD_DIM, w->k_norm, s->prefix + t,
                 1.0f, keys + token * HEAD_DIM);
        }
    }
}

/* qkv: of the tokens of the unit; out: [tokens, heads, HEAD_DIM]. */
static void attend(const Model *m, const Weights *w, int64_t unit, const float *qkv, float *scratch,
                   float *out) {
    const int64_t begin = begin_of(m, unit), width = qkv_width(m), group = m->heads / m->kv_heads;
    float *keys, query[HEAD_DIM];
    Context c = context_in(scratch, m->largest, &keys);
    for (int64_t g = 0; g < m->kv_heads; g++) {
        turn_keys(m, w, unit, qkv, g, keys);
        for (int64_t i = m->units[unit]; i < m->units[unit + 1]; i++) {
            const Segment *s = m->segments + i;
            gather(s, begin, keys, qkv + (m->heads + m->kv_heads + g) * HEAD_DIM, width, &c);
            transpose(c.keys, c.count, c.stride, c.key_columns);
            for (int64_t h = g * group; h < (g + 1) * group; h++)
                for (int64_t t = 0; t < s->length; t++) {
                    const int64_t token = s->begin - begin + t, seen = s->prefix + t + 1;
                    turn_at(m, qkv + token * width + h * HEAD_DIM, w->q_norm, s->prefix + t, m->scale,
                         query);
                    dots(query, c.key_columns, c.stride, seen, c.probabilities);
                    softmax(c.probabilities, seen);
                    mix(c.probabilities, c.values, seen, out + (token * m->heads + h) * HEAD_DIM);
                }
        }
    }
}

/* grad: of what `attend` gave; to_qkv gets the gradient of qkv, `to` those of norms. */
static void attend_back(const Model *m, const Weights *w, int64_t unit, const float *grad,
                        const float *qkv, float *scratch, float *to_qkv, const Weights *to) {
    const int64_t begin = begin_of(m, unit), width = qkv_width(m), group = m->heads / m->kv_heads;
    const int64_t tokens = begin_of(m, unit + 1) - begin, size = padded(m->largest) * HEAD_DIM;
    float *keys, query[HEAD_DIM], to_query[HEAD_DIM];
    Context c = context_in(scratch, m->largest, &keys);
    float *to_keys = keys + size, *to_values = keys + 2 * size;
    for (int64_t g = 0; g < m->kv_heads; g++) {
        const float *values = qkv + (m->heads + m->kv_heads + g) * HEAD_DIM;
        turn_keys(m, w, unit, qkv, g, keys);
        memset(to_keys, 0, 4 * tokens * HEAD_DIM);
        memset(to_values, 0, 4 * tokens * HEAD_DIM);
        for (int64_t i = m->units[unit]; i < m->units[unit + 1]; i++) {
            const Segment *s = m->segments + i;
            gather(s, begin, keys, values, width, &c);
            transpose(c.keys, c.count, c.stride, c.key_columns);
            transpose(c.values, c.count, c.stride, c.value_columns);
            memset(c.to_keys, 0, 4 * c.count * HEAD_DIM);
            memset(c.to_values, 0, 4 * c.count * HEAD_DIM);
            for (int64_t h = g * group; h < (g + 1) * group; h++)
                for (int64_t t = 0; t < s->length; t++) {
                    const int64_t token = s->begin - begin + t, seen = s->prefix + t + 1;
                    const float *x = qkv + token * width + h * HEAD_DIM;
                    const float *own = grad + (token * m->heads + h) * HEAD_DIM;
                    turn_at(m, x, w->q_norm, s->prefix + t, m->scale, query);
                    dots(query, c.key_columns, c.stride, seen, c.probabilities);
                    softmax(c.probabilities, seen);
                    dots(own, c.value_columns, c.stride, seen, c.to_probabilities);
                    const float *p = c.probabilities;
                    float *to_p = c.to_probabilities, mean = 0;
#pragma omp simd reduction(+ : mean)
                    for (int64_t j = 0; j < seen; j++) mean += p[j] * to_p[j];
#pragma omp simd
                    for (int64_t j = 0; j < seen; j++) to_p[j] = p[j] * (to_p[j] - mean);
                    mix(to_p, c.keys, seen, to_query);
                    spread(to_p, query, seen, c.to_keys);
                    spread(p, own, seen, c.to_values);
                    turn_back(m, to_query, x, w->q_norm, s->prefix + t, m->scale,
                              to_qkv + token * width + h * HEAD_DIM, to->q_norm);
                }
            for (int64_t t = 0; t < c.count; t++) {
                const int64_t from = source(s, begin, t);
                for (int j = 0; j < HEAD_DIM; j += LANES) {
                    AT(to_keys + from * HEAD_DIM + j) += AT(c.to_keys + t * HEAD_DIM + j);
                    AT(to_values + from * HEAD_DIM + j) += AT(c.to_values + t * HEAD_DIM + j);
                }
            }
        }
        for (int64_t i = m->units[unit]; i < m->units[unit + 1]; i++) {
            const Segment *s = m->segments + i;
            for (int64_t t = 0; t < s->length; t++) {
                const int64_t token = s->begin - begin + t;
                const int64_t key = token * width + (m->heads + g) * HEAD_DIM;
                turn_back(m, to_keys + token * HEAD_DIM, qkv + key, w->k_norm, s->prefix + t, 1.0f,
                          to_qkv + key, to->k_norm);
                memcpy(to_qkv + key + m->kv_heads * HEAD_DIM, to_values + token * HEAD_DIM,
                       4 * HEAD_DIM);
            }
        }
    }
}

/* -- layers ----------------------------------------------------------------------------------- */

/* Units that a thread goes through together: [*first, returned), without a gap. Those that are not
 * wanted are passed over; if no other is left, *first is the end. */
static int64_t chunk(const Model *m, const char *wanted, int64_t *first, int64_t end) {
    while (*first < end && wanted && !wanted[*first]) ++*first;
    int64_t last = *first, tokens = 0;
    while (last < end && tokens < CHUNK && (!wanted || wanted[last])) {
        tokens += begin_of(m, last + 1) - begin_of(m, last);
        last++;
    }
    return last;
}

/* Where the units of a thread begin, so that each has about as many tokens that are wanted. */
static int64_t share(const Model *m, const char *wanted, int64_t thread, int64_t team) {
    int64_t total = 0, before = 0, unit = 0;
    for (int64_t u = 0; u < m->units_count; u++)
        if (!wanted || wanted[u]) total += begin_of(m, u + 1) - begin_of(m, u);
    for (; unit < m->units_count && before * team < total * thread; unit++)
        if (!wanted || wanted[unit]) before += begin_of(m, unit + 1) - begin_of(m, unit);
    return thread == team ? m->units_count : unit;
}

/* x, out: [tokens, hidden], embeddings and last hidden states behind the last norm. Keeps what
 * `backward` needs in `kept`, or nothing if it is null. */
void forward(const Model *m, const float *x, float *out, float *kept, float *scratch, int threads) {
    const int64_t hidden = m->hidden, rows = CHUNK + m->largest;
#pragma omp parallel num_threads(threads)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int before = m->set_threads ? m->set_threads(1) : 0;
        const int64_t end = share(m, 0, thread + 1, team);
        float *own = scratch + thread * own_scratch(m), *h = own + rows * kept_width(m);
        float *half = h + rows * hidden, *rest = half + rows * larger(m->inner, attended_width(m));
        for (int64_t first = share(m, 0, thread, team); first < end;) {
            const int64_t last = chunk(m, 0, &first, end), begin = begin_of(m, first);
            const int64_t count = begin_of(m, last) - begin;
            float *at = (float *)m->weights, *next = h;
            const float *input = x + begin * hidden;
            for (int64_t i = 0; i < m->layers; i++) {
                Weights w;
                at = weights_of(m, at, &w);
                /* Without a backward pass, the memory of one layer is enough. */
                Kept k = kept ? kept_at(m, kept, m->tokens, i, begin) : kept_at(m, own, rows, 0, 0);
                if (input != k.x) memcpy(k.x, input, 4 * count * hidden);
                rms_norm(k.x, w.before_attention, m->epsilon, count, hidden, h);
                if (m->biases)
                    for (int64_t b = 0; b < count; b++)
                        memcpy(k.qkv + b * qkv_width(m), w.qkv_bias, 4 * qkv_width(m));
                multiply(m, h, w.qkv, m->biases != 0, count, hidden, qkv_width(m), k.qkv);
                for (int64_t u = first; u < last; u++) {
                    const int64_t place = begin_of(m, u) - begin;
                    attend(m, &w, u, k.qkv + place * qkv_width(m), rest,
                           k.attended + place * attended_width(m));
                }
                memcpy(k.middle, k.x, 4 * count * hidden);
                multiply(m, k.attended, w.out, 1, count, attended_width(m), hidden, k.middle);
                rms_norm(k.middle, w.before_mlp, m->epsilon, count, hidden, h);
                multiply(m, h, w.gate_up, 0, count, hidden, 2 * m->inner, k.gate_up);
                swiglu(k.gate_up, count, m->inner, half);
                next = k.x;
                if (kept) next = kept_at(m, kept, m->tokens, i + 1, begin).x;
                memcpy(next, k.middle, 4 * count * hidden);
                multiply(m, half, w.down, 1, count, m->inner, hidden, next);
                input = next;
            }
            rms_norm(next, at, m->epsilon, count, hidden, out + begin * hidden);
            first = last;
        }
        if (m->set_threads) m->set_threads(before);
    }
}

/* grad: of what `forward` gave. to_x gets the gradient of its x; to_weights, [threads, weights], in
 * its first row that of the weights. wanted: memory for a flag per unit. A unit whose gradient is
 * zero, such as a group of responses that are all equally good, is left out. */
void backward(const Model *m, const float *grad, float *kept, float *to_x, float *to_weights,
              char *wanted, float *scratch, int threads) {
    const int64_t hidden = m->hidden, rows = CHUNK + m->largest, size = weights_size(m);
    const int64_t wide_width = larger(2 * m->inner, qkv_width(m));
    const int64_t half_width = larger(m->inner, attended_width(m));
#pragma omp parallel num_threads(threads)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        const int before = m->set_threads ? m->set_threads(1) : 0;
        float *own = scratch + thread * own_scratch(m) + rows * kept_width(m);
        float *h = own, *to_h = h + rows * hidden, *to_row = to_h + rows * hidden;
        float *wide = to_row + rows * hidden, *half = wide + rows * wide_width;
        float *to_half = half + rows * half_width, *rest = to_half + rows * half_width;
        float *sums = to_weights + thread * size;
        memset(sums, 0, 4 * size);
#pragma omp for schedule(static)
        for (int64_t u = 0; u < m->units_count; u++) {
            const int64_t begin = begin_of(m, u) * hidden, end = begin_of(m, u + 1) * hidden;
            int any = 0;
            for (int64_t i = begin; i < end && !any; i++) any = grad[i] != 0.0f;
            wanted[u] = (char)any;
            if (!any) memset(to_x + begin, 0, 4 * (end - begin));
        }
        const int64_t end = share(m, wanted, thread + 1, team);
        for (int64_t first = share(m, wanted, thread, team); first < end;) {
            const int64_t last = chunk(m, wanted, &first, end), begin = begin_of(m, first);
            const int64_t count = begin_of(m, last) - begin, all = m->layers * layer_size(m);
            if (first == end) break;
            rms_norm_back(grad + begin * hidden,
                          kept_at(m, kept, m->tokens, m->layers, begin).x, m->weights + all,
                          m->epsilon, count, hidden, 0, to_row, sums + all);
            for (int64_t i = m->layers - 1; i >= 0; i--) {
                Weights w, to;
                weights_of(m, (float *)m->weights + i * layer_size(m), &w);
                weights_of(m, sums + i * layer_size(m), &to);
                const Kept k = kept_at(m, kept, m->tokens, i, begin);
                input_back(m, to_row, w.down, count, m->inner, hidden, to_half);
                swiglu_back(to_half, k.gate_up, count, m->inner, wide, half);
                weight_back(m, to_row, half, count, m->inner, hidden, to.down);
                rms_norm(k.middle, w.before_mlp, m->epsilon, count, hidden, h);
                weight_back(m, wide, h, count, hidden, 2 * m->inner, to.gate_up);
                input_back(m, wide, w.gate_up, count, hidden, 2 * m->inner, to_h);
                rms_norm_back(to_h, k.middle, w.before_mlp, m->epsilon, count, hidden, 1, to_row,
                              to.before_mlp);
                weight_back(m, to_row, k.attended, count, attended_width(m), hidden, to.out);
                input_back(m, to_row, w.out, count, attended_width(m), hidden, to_half);
                for (int64_t u = first; u < last; u++) {
                    const int64_t place = begin_of(m, u) - begin;
                    attend_back(m, &w, u, to_half + place * attended_width(m),
                                k.qkv + place * qkv_width(m), rest, wide + place * qkv_width(m),
                                &to);
                }
                rms_norm(k.x, w.before_attention, m->epsilon, count, hidden, h);
                weight_back(m, wide, h, count, hidden, qkv_width(m), to.qkv);
                input_back(m, wide, w.qkv, count, hidden, qkv_width(m), to_h);
                for (int64_t b = 0; m->biases && b < count; b++)
#pragma omp simd
                    for (int64_t j = 0; j < qkv_width(m); j++)
                        to.qkv_bias[j] += wide[b * qkv_width(m) + j];
                rms_norm_back(to_h, k.x, w.before_attention, m->epsilon, count, hidden, 1, to_row,
                              to.before_attention);
            }
            memcpy(to_x + begin * hidden, to_row, 4 * count * hidden);
            first = last;
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < size; i++)
            for (int64_t other = 1; other < team; other++)
                to_weights[i] += to_weights[other * size + i];
        if (m->set_threads) m->set_threads(before);
    }
}
