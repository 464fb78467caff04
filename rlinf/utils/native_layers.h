/* What decoders in C have in common, in fp32 on a CPU.
 *
 * For HEAD_DIM, numbers per head, a multiple of LANES.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define HALF (HEAD_DIM / 2)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
#define AT(pointer) (*(vec *)(pointer))

/* C = alpha A B + beta C, by columns, as in BLAS. */
typedef void (*Sgemm)(const char *, const char *, const int *, const int *, const int *,
                      const float *, const float *, const int *, const float *, const int *,
                      const float *, float *, const int *);

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
    const union { int32_t i; float f; } power = {.i = ((int32_t)n + 127) << 23};
    return (p * r * r + r + 1.0f) * power.f;
}

static inline float inverse_rms(const float *x, int64_t width, float epsilon) {
    float square = 0;
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < width; i++) square += x[i] * x[i];
    return 1.0f / sqrtf(square / (float)width + epsilon);
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

/* Normalises a head (if there are weights), turns it by its position, and scales it. */
static inline void turn(const float *x, const float *weight, float epsilon, const float *cosine,
                        const float *sine, float scale, float *y) {
    float t[HEAD_DIM];
    if (weight) {
        const float inverse = inverse_rms(x, HEAD_DIM, epsilon);
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
