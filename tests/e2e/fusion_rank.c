/* A rank that trains with fusion buffers and goes on without those that are lost in the middle of a
 * step. In generation 1 the last rank kills itself in its fourth step, when half of its gradients
 * are ready; in generation 2 the last one does so in the first, in which the ranks agree on an
 * order. The ranks that are left do some steps more, all of whose gradients are checked, bit by
 * bit.
 *
 * Exit codes: 0 as expected, 7 a call of the library failed (the text is on stdout), 1 wrong
 * result. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/shoal.h"

#define EXIT_WRONG 1
#define EXIT_FAILED 7
#define PARAMETERS 12
#define STEPS 7
#define LOSSES 2
#define PATIENCE_MS 60000

struct training {
    shoal_job *job;
    shoal_fusion *fusion;
    struct shoal_parameter parameters[PARAMETERS];
    int rank, size, generation, step;
};

static void expect(int result, const char *what)
{
    if (result == SHOAL_OK)
        return;
    printf("failed: %s: %s: %s\n", what, shoal_result_name(result), shoal_error_text());
    exit(EXIT_FAILED);
}

/* Thirds: their sums depend on the order in which they are made, which is that of the ranks. */
static float value_of(const struct training *self, size_t parameter, size_t element, int rank)
{
    size_t number = (parameter * 5 + element * 3 + (size_t)(7 * self->step)) % 31;
    return (float)(number + (size_t)(11 * rank) + (size_t)(13 * self->generation)) / 3;
}

static void check(const struct training *self)
{
    for (size_t p = 0; p < PARAMETERS; p++) {
        const float *gradient = shoal_fusion_gradient(self->fusion, p);
        for (size_t i = 0; i < self->parameters[p].count; i++) {
            float sum = value_of(self, p, i, 0);
            for (int rank = 1; rank < self->size; rank++)
                sum += value_of(self, p, i, rank);
            if (memcmp(&gradient[i], &sum, sizeof(sum)) == 0)
                continue;
            printf("wrong: generation %d step %d parameter %zu element %zu: %.9g, not %.9g\n",
                   self->generation, self->step, p, i, (double)gradient[i], (double)sum);
            exit(EXIT_WRONG);
        }
    }
}

static void die_if_it_is_time(const struct training *self, size_t ready)
{
    bool last = self->rank == self->size - 1 && ready == PARAMETERS / 2;
    if (last &&
        ((self->generation == 1 && self->step == 3) || (self->generation == 2 && self->step == 0)))
        raise(SIGKILL);
}

static int step(struct training *self)
{
    for (size_t k = 0; k < PARAMETERS; k++) {
        /* 5 has no divisor in common with 12; ranks are ready in orders of their own. */
        size_t p = (k * 5 + (size_t)(self->rank * 3 + self->step)) % PARAMETERS;
        float *gradient = shoal_fusion_gradient(self->fusion, p);
        die_if_it_is_time(self, k);
        for (size_t i = 0; i < self->parameters[p].count; i++)
            gradient[i] = value_of(self, p, i, self->rank);
        int result = shoal_fusion_ready(self->fusion, p);
        if (result != SHOAL_OK)
            return result;
    }
    int result = shoal_fusion_wait(self->fusion, PATIENCE_MS);
    if (result == SHOAL_OK)
        check(self);
    return result;
}

static void begin(struct training *self)
{
    self->rank = shoal_rank(self->job);
    self->size = shoal_world_size(self->job);
    self->generation = shoal_generation(self->job);
    self->step = 0;
    printf("generation %d: rank %d of %d\n", self->generation, self->rank, self->size);
    fflush(stdout);
}

static void go_on(struct training *self)
{
    struct shoal_reconfigure_options options = {
        .struct_size = sizeof(options), .timeout_ms = PATIENCE_MS, .stragglers_ms = PATIENCE_MS};
    int result;
    do
        result = shoal_job_reconfigure(self->job, &options);
    while (result == SHOAL_ELOST);
    expect(result, "reconfigure");
    begin(self);
}

int main(void)
{
    struct training self = {.generation = 1};
    struct shoal_fusion_options options = {
        .struct_size = sizeof(options), .threshold_bytes = 30000, .first_buffer_bytes = 2000};
    expect(shoal_open(NULL, &self.job), "open");
    for (size_t p = 0; p < PARAMETERS; p++) {
        size_t count = p == 4 ? 100003 : p * p * 171 + 1;
        self.parameters[p] = (struct shoal_parameter){.count = count, .dtype = SHOAL_F32};
        if (p % 3 == 0)
            self.parameters[p].gradient = malloc(count * sizeof(float));
    }
    expect(shoal_fusion_create(shoal_world(self.job), self.parameters, PARAMETERS, &options,
                               &self.fusion),
           "fusion_create");
    begin(&self);
    while (self.generation <= LOSSES || self.step < STEPS) {
        int result = step(&self);
        self.step++;
        if (result == SHOAL_ELOST)
            go_on(&self);
        else
            expect(result, "step");
    }
    printf("trained\n");
    expect(shoal_close(self.job), "close");
    for (size_t p = 0; p < PARAMETERS; p++)
        free(self.parameters[p].gradient);
    return 0;
}
