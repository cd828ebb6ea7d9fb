/* A rank that trains, writes checkpoints, may be killed, and is started again from its checkpoint.
 * Its gradients are thirds, whose sums depend on the order in which they are made, and depend on
 * the model: whoever has missed a sum, or has a wrong bit, ends with another model.
 *
 *   train FILE ID STEPS DEATH   rank ID, with a checkpoint in FILE.ID each CHECKPOINT steps; in
 * step DEATH the rank kills itself, when its part of it has begun back FILE ID STEPS begins at the
 * checkpoint, as a newcomer that wants its old number
 *
 * A step is two collectives: the sum of the gradients, and that of the losses.
 *
 * Exit codes: 0 as expected, 7 a call of the library failed (the text is on stdout).
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/shoal.h"

#define EXIT_FAILED 7
#define COUNT 50003u
#define CHECKPOINT 5
#define PATIENCE_MS 60000

struct state {
    uint64_t number; /* of the next collective */
    double loss;
    float model[COUNT];
};

struct training {
    shoal_job *job;
    struct state *state, *before; /* now, and one collective ago */
    float *gradient;              /* in the arena in every other step */
    float *own;
    double loss;
    int id, size;
    uint64_t steps, death;
    char file[600];
};

static void expect(int result, const char *what)
{
    if (result == SHOAL_OK)
        return;
    printf("failed: %s: %s: %s\n", what, shoal_result_name(result), shoal_error_text());
    exit(EXIT_FAILED);
}

static void say(const char *text)
{
    printf("%s\n", text);
    fflush(stdout);
}

/* --- the model -------------------------------------------------------------------------------- */

static float *gradient_make(const struct training *self)
{
    const struct state *state = self->state;
    uint64_t step = state->number / 2;
    float *gradient = step % 2 ? self->own : self->gradient;
    for (size_t i = 0; i < COUNT; i++)
        gradient[i] = (float)((i * 7 + step * 5) % 31 + 11 * (size_t)self->id) / 3 +
                      state->model[i] / (float)(self->id + 3);
    return gradient;
}

static double loss_make(const struct training *self)
{
    return (double)self->state->model[(size_t)self->id * 1000] / (self->id + 3);
}

/* Take into the state what the collective with the state's number has given. */
static void take(struct training *self, const float *gradient)
{
    struct state *state = self->state;
    memcpy(self->before, state, sizeof(*state));
    for (size_t i = 0; i < COUNT && state->number % 2 == 0; i++)
        state->model[i] -= 0.1f * gradient[i];
    if (state->number % 2 == 1)
        state->loss += self->loss;
    state->number++;
}

/* FNV-1a */
static uint64_t digest(const struct state *state)
{
    uint64_t hash = 0xcbf29ce484222325u;
    const uint8_t *bytes = (const uint8_t *)state->model;
    for (size_t i = 0; i < sizeof(state->model); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    uint8_t loss[sizeof(state->loss)];
    memcpy(loss, &state->loss, sizeof(loss));
    for (size_t i = 0; i < sizeof(loss); i++)
        hash = (hash ^ loss[i]) * 0x100000001b3u;
    return hash;
}

/* --- checkpoints ------------------------------------------------------------------------------ */

static void checkpoint_write(const struct training *self)
{
    uint64_t number;
    char next[640];
    expect(shoal_position(self->job, &number), "position");
    if (number != self->state->number) {
        printf("wrong: the next number is %lu, and not %lu\n", (unsigned long)number,
               (unsigned long)self->state->number);
        exit(1);
    }
    snprintf(next, sizeof(next), "%s.next", self->file);
    FILE *file = fopen(next, "wb");
    if (!file || fwrite(self->state, sizeof(*self->state), 1, file) != 1 || fclose(file) != 0 ||
        rename(next, self->file) != 0) {
        perror(self->file);
        exit(1);
    }
}

static void checkpoint_read(const struct training *self)
{
    FILE *file = fopen(self->file, "rb");
    if (!file || fread(self->state, sizeof(*self->state), 1, file) != 1) {
        perror(self->file);
        exit(1);
    }
    fclose(file);
}

/* --- training --------------------------------------------------------------------------------- */

/* The collective with the state's number. */
static int train_one(struct training *self)
{
    shoal_group *world = shoal_world(self->job);
    shoal_request *request;
    bool dies = self->state->number == 2 * self->death;
    if (self->state->number % 2 == 1) {
        self->loss = loss_make(self);
        int result =
            shoal_all_reduce(world, &self->loss, &self->loss, 1, SHOAL_F64, SHOAL_SUM, NULL);
        if (result == SHOAL_OK)
            take(self, NULL);
        return result;
    }
    float *gradient = gradient_make(self);
    int result = shoal_all_reduce(world, gradient, gradient, COUNT, SHOAL_F32, SHOAL_SUM, &request);
    if (dies)
        raise(SIGKILL);
    if (result == SHOAL_OK)
        result = shoal_wait(request, PATIENCE_MS);
    if (result == SHOAL_OK)
        take(self, gradient);
    return result;
}

/* Wait until all ranks are there again. Results that only some have are made again. */
static void go_on(struct training *self)
{
    struct shoal_reconfigure_options options = {
        .struct_size = sizeof(options), .timeout_ms = PATIENCE_MS, .least_ranks = self->size};
    uint64_t number;
    int result;
    say("lost");
    do
        result = shoal_job_reconfigure(self->job, &options);
    while (result == SHOAL_ELOST);
    expect(result, "reconfigure");
    expect(shoal_position(self->job, &number), "position");
    if (number + 1 == self->state->number)
        memcpy(self->state, self->before, sizeof(*self->state));
    if (number != self->state->number) {
        printf("wrong: all have what is before %lu, and this rank what is before %lu\n",
               (unsigned long)number, (unsigned long)self->state->number);
        exit(1);
    }
}

static void train(struct training *self)
{
    while (self->state->number < 2 * self->steps) {
        int result = train_one(self);
        if (result == SHOAL_ELOST) {
            printf("%s\n", shoal_error_text());
            go_on(self);
            continue;
        }
        expect(result, "all_reduce");
        if (self->state->number % (2 * CHECKPOINT) == 0)
            checkpoint_write(self);
    }
}

/* Others have done more: what it has missed, it gets. */
static void catch_up(struct training *self)
{
    uint64_t number, first, end, missed = 0;
    expect(shoal_position(self->job, &number), "position");
    expect(shoal_replay_kept(shoal_world(self->job), &first, &end), "kept");
    printf("at %lu of %lu, kept %lu to %lu\n", (unsigned long)self->state->number,
           (unsigned long)number, (unsigned long)first, (unsigned long)end);
    fflush(stdout);
    while (self->state->number < number) {
        bool sums = self->state->number % 2 == 0;
        float *gradient = missed++ % 4 < 2 ? self->own : self->gradient;
        shoal_request *request;
        int result = shoal_replay(shoal_world(self->job), self->state->number,
                                  sums ? (void *)gradient : (void *)&self->loss, sums ? COUNT : 1,
                                  sums ? SHOAL_F32 : SHOAL_F64, &request);
        if (result == SHOAL_OK)
            result = shoal_wait(request, PATIENCE_MS);
        expect(result, "replay");
        take(self, gradient);
    }
    printf("caught up with %lu\n", (unsigned long)missed);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 1;
    bool back = strcmp(argv[1], "back") == 0;
    struct training self = {.id = atoi(argv[3]),
                            .steps = strtoul(argv[4], NULL, 10),
                            .death = argc > 5 ? strtoul(argv[5], NULL, 10) : UINT64_MAX / 4};
    struct shoal_options options = {.struct_size = sizeof(options), .newcomer = back};
    snprintf(self.file, sizeof(self.file), "%s.%d", argv[2], self.id);
    self.state = calloc(1, sizeof(*self.state));
    self.before = calloc(1, sizeof(*self.before));
    self.own = calloc(COUNT, sizeof(*self.own));
    if (!self.state || !self.before || !self.own)
        return 1;
    if (back) {
        options.rank_plus_1 = self.id + 1;
        checkpoint_read(&self);
    }
    expect(shoal_open(&options, &self.job), "open");
    self.size = back ? 0 : shoal_world_size(self.job);
    self.gradient = shoal_alloc(self.job, COUNT * sizeof(*self.gradient));
    expect(self.gradient ? SHOAL_OK : SHOAL_EMEMORY, "alloc");
    if (back) {
        catch_up(&self);
        self.size = shoal_world_size(self.job);
    }
    train(&self);
    printf("rank %d of %d: generation %d, bits %016lx\n", shoal_rank(self.job),
           shoal_world_size(self.job), shoal_generation(self.job),
           (unsigned long)digest(self.state));
    shoal_free(self.job, self.gradient);
    expect(shoal_close(self.job), "close");
    free(self.state);
    free(self.before);
    free(self.own);
    return 0;
}
