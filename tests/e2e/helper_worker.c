/* A rank with the manners, and the mistakes, that the end-to-end tests ask for.
 *
 *   once                  one checked all-reduce
 *   loop FILE [COUNT]     all-reduces of COUNT elements until FILE is there or one fails; the time
 *                         between the last success and the failure is printed
 *   lag FILE COUNT RANK MS
 *                         as loop, 5 ms apart; rank RANK comes MS later
 *   lag FILE COUNT - MS APART
 *                         the same, APART ms apart, of each rank for which there is FILE.RANK; says
 *                         of each collective when it was over, by the monotonic clock in us
 *   forked FILE [COUNT]   the same beside a child that lives until FILE is there
 *   cloned FILE [COUNT]   the same, the child being made by a bare system call, so that it keeps
 *                         whatever the library has open
 *   sparse FILE COUNT     an all-reduce of COUNT elements of memory that it has never touched
 *   shared FILE [COUNT]   as loop, with the result in memory that the node's ranks share, which is
 *                         read after the failure too
 *   coming | taking FILE  small all-reduces, in which the ranks of a node meet; when FILE is there
 *                         the last rank dies as it copies its data into one, or takes the result
 *   parts FILE [COUNT]    the same with the collectives that have parts, all at once
 *   count | dtype | op | kind | root FILE
 *                         the last rank asks for something else than the rest
 *   late FILE             the last rank comes when FILE is there
 *   leave FILE            the last rank closes the job after one round, the others go on
 *   exit FILE             the last rank ends without closing, the others go on
 *   errs                  the last rank makes a call that makes no sense, and ends for it
 *   subgroups             even and odd ranks, in falling order, and a group of one
 *   crossed               two groups, their collectives started in different orders
 *   callback              completion by callbacks and by descriptor
 *   survive FILE [COUNT]  as loop in memory of the arena, and goes on as the next generation when
 *                         ranks are lost; with less than 3 ranks and FILE.grow, to take more in;
 *                         with FILE.leave the last rank leaves the first generation
 *   newcomer FILE [COUNT] likewise, of a job that runs
 *   regrow FILE [COUNT]   as survive, with as many ranks as before when it goes on
 *   timeout FILE          a wait that times out, and succeeds later
 *
 * Exit codes: 0 as expected, 7 a call of the library failed (the text is on stdout), 1 wrong
 * result.
 */
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "worker/shoal.h"

#define EXIT_WRONG 1
#define EXIT_FAILED 7
#define PATIENCE_MS 60000

struct rank {
    shoal_job *job;
    shoal_group *world;
    int rank, size;
    bool regrows;
    const char *file;
    size_t count;
    int apart_ms; /* what a rank computes, in a loop */
    int late_ms;  /* that and more, while the file `late` is there; 0: it is not looked for */
    char late[4096];
};

static void failure_say(int result, const char *what)
{
    printf("failed: %s: %s: %s\n", what, shoal_result_name(result), shoal_error_text());
    fflush(stdout);
}

static void expect(int result, const char *what)
{
    if (result == SHOAL_OK)
        return;
    failure_say(result, what);
    exit(EXIT_FAILED);
}

static void wrong(const char *what)
{
    printf("wrong: %s\n", what);
    exit(EXIT_WRONG);
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void say(const char *word)
{
    printf("%s\n", word);
    fflush(stdout);
}

static int file_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void file_wait(const char *path)
{
    for (long until = now_ms() + PATIENCE_MS; !file_there(path);) {
        if (now_ms() > until)
            wrong("the file did not come");
        poll(NULL, 0, 20);
    }
}

static float *floats(size_t count, float value)
{
    float *data = malloc(count * sizeof(*data));
    if (!data)
        wrong("no memory");
    for (size_t i = 0; i < count; i++)
        data[i] = value;
    return data;
}

static void floats_check(const float *data, size_t count, float value, const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (data[i] != value)
            wrong(what);
}

/* Sum of 1 .. size. */
static float total(int size)
{
    return (float)(size * (size + 1) / 2);
}

static void run_once(struct rank *self)
{
    float *data = floats(self->count, (float)(self->rank + 1));
    expect(shoal_all_reduce(self->world, data, data, self->count, SHOAL_F32, SHOAL_SUM, NULL),
           "all_reduce");
    floats_check(data, self->count, total(self->size), "sum");
    free(data);
}

static void shared_read(const float *shared, size_t count)
{
    volatile float last = 0;
    for (size_t i = 0; i < count; i++)
        last = shared[i];
    (void)last;
}

static void compute(const struct rank *self)
{
    int ms = self->apart_ms;
    if (self->late_ms > 0 && file_there(self->late))
        ms += self->late_ms;
    if (ms > 0)
        poll(NULL, 0, ms);
}

static void tell_time(const struct rank *self)
{
    struct timespec now;
    if (self->late_ms == 0)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%lld\n", now.tv_sec * 1000000LL + now.tv_nsec / 1000);
    fflush(stdout);
}

static void run_loop(struct rank *self, bool shared)
{
    size_t bytes = (self->count + 1) * sizeof(float);
    float *send = floats(self->count + 1, (float)(self->rank + 1));
    float *recv = shared ? (float *)(uintptr_t)shoal_shared_alloc(self->world, bytes)
                         : floats(self->count + 1, 0);
    expect(recv ? SHOAL_OK : SHOAL_EMEMORY, "memory for results");
    long last = now_ms();
    for (unsigned long rounds = 0;; rounds++) {
        compute(self);
        /* The last element says that rank 0 has seen the file. */
        send[self->count] = self->rank == 0 && file_there(self->file) ? 1 : 0;
        int result =
            shoal_all_reduce(self->world, send, recv, self->count + 1, SHOAL_F32, SHOAL_SUM, NULL);
        if (result) {
            printf("after %ld ms\n", now_ms() - last);
            shared_read(recv, self->count + 1);
            expect(result, "all_reduce");
        }
        last = now_ms();
        tell_time(self);
        floats_check(recv, self->count, total(self->size), "sum in the loop");
        if (rounds == 0)
            say("running");
        if (recv[self->count] > 0)
            break;
    }
    free(send);
    if (shared)
        expect(shoal_shared_free(self->world, recv), "free");
    else
        free(recv);
}

/* Memory of which nothing can be read or written. */
static float *forbidden(void)
{
    float *memory = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        wrong("mmap");
    return memory;
}

static void run_meeting(struct rank *self, bool taking)
{
    float *nothing = forbidden(), send[4], recv[4];
    for (unsigned long rounds = 0;; rounds++) {
        bool dies = self->rank == self->size - 1 && rounds > 100 && file_there(self->file);
        for (int i = 0; i < 4; i++)
            send[i] = (float)(self->rank + 1);
        expect(shoal_all_reduce(self->world, dies && !taking ? nothing : send,
                                dies && taking ? nothing : recv, 4, SHOAL_F32, SHOAL_SUM, NULL),
               "all_reduce");
        floats_check(recv, 4, total(self->size), "sum of those that met");
        if (rounds == 100)
            say("running");
    }
}

/* Meet as run_meeting does, with data that passes in pieces: the last ones cannot be read. */
static void run_passing(struct rank *self)
{
    const size_t count = 1 << 20, bytes = count * sizeof(float), page = 4096;
    float *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        wrong("mmap");
    for (unsigned long rounds = 0;; rounds++) {
        bool dies = self->rank == self->size - 1 && rounds > 10 && file_there(self->file);
        for (size_t i = 0; i < count; i++)
            data[i] = (float)(self->rank + 1);
        if (dies && mprotect((uint8_t *)data + bytes - page, page, PROT_NONE) < 0)
            wrong("mprotect");
        expect(shoal_all_reduce(self->world, data, data, count, SHOAL_F32, SHOAL_SUM, NULL),
               "all_reduce");
        floats_check(data, count, total(self->size), "sum of what passed");
        if (rounds == 10)
            say("running");
    }
}

static void stop_there(int number)
{
    (void)number;
    raise(SIGSTOP);
}

/* The last rank stops where run_meeting and run_passing would have it die. */
static const char *stops_there(const char *mode)
{
    if (strncmp(mode, "stops ", 6) != 0)
        return mode;
    signal(SIGSEGV, stop_there);
    return mode + 6;
}

/* Go on after a loss. The rank has `rounds` all-reduces; another may have one more, or lack the
 * last. */
static void survive_loss(struct rank *self, unsigned long rounds)
{
    uint64_t kept = 0;
    struct shoal_reconfigure_options options = {.struct_size = sizeof(options),
                                                .timeout_ms = PATIENCE_MS,
                                                .stragglers_ms = 2000,
                                                .least_ranks = self->regrows ? self->size : 0,
                                                .collectives = &kept};
    int result;
    do
        result = shoal_job_reconfigure(self->job, &options);
    while (result == SHOAL_ELOST);
    expect(result, "reconfigure");
    if (kept > rounds || kept + 1 < rounds)
        wrong("the ranks agree on what none can have");
    self->rank = shoal_rank(self->job);
    self->size = shoal_world_size(self->job);
    printf("generation %d: rank %d of %d\n", shoal_generation(self->job), self->rank, self->size);
    fflush(stdout);
}

static void run_survive(struct rank *self)
{
    size_t count = self->count;
    char grow[4096], leave[4096];
    snprintf(grow, sizeof(grow), "%s.grow", self->file);
    snprintf(leave, sizeof(leave), "%s.leave", self->file);
    float *data = shoal_alloc(self->job, (count + 1) * sizeof(*data));
    float *own = floats(count, 0);
    unsigned long rounds = 0;
    expect(data ? SHOAL_OK : SHOAL_EMEMORY, "alloc");
    for (bool ends = false, said = false; !ends;) {
        bool staged = rounds % 2 == 1;
        float *buffer = staged ? own : data;
        for (size_t i = 0; i < count; i++)
            buffer[i] = (float)(self->rank + 1);
        buffer[count - 1] = self->rank == 0 && file_there(self->file) ? 1 : 0;
        buffer[count - 2] = self->rank == 0 && self->size < 3 && file_there(grow) ? 1 : 0;
        int result =
            shoal_all_reduce(self->world, buffer, buffer, count, SHOAL_F32, SHOAL_SUM, NULL);
        bool grows = !result && buffer[count - 2] > 0;
        if (result)
            failure_say(result, "all_reduce");
        rounds += grows;
        if (result || grows) {
            survive_loss(self, rounds);
            rounds = 0;
            said = false;
            continue;
        }
        rounds++;
        floats_check(buffer, count - 2, total(self->size), "sum in the loop");
        if (!said)
            say(shoal_generation(self->job) == 1 ? "running" : "running again");
        said = true;
        ends = buffer[count - 1] > 0;
        if (self->rank == self->size - 1 && shoal_generation(self->job) == 1 && file_there(leave))
            ends = true;
    }
    shoal_free(self->job, data);
    free(own);
}

/* Reduce memory of the arena that only the daemon touches. Go on until FILE is there. */
static void run_sparse(struct rank *self)
{
    float *data = shoal_alloc(self->job, self->count * sizeof(*data));
    expect(data ? SHOAL_OK : SHOAL_EMEMORY, "alloc");
    expect(shoal_all_reduce(self->world, data, data, self->count, SHOAL_F32, SHOAL_SUM, NULL),
           "all_reduce");
    say("running");
    file_wait(self->file);
}

/* Not waited for: the rank is to be killed before. */
static void run_beside_child(struct rank *self, bool bare)
{
    long child = bare ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0) {
        file_wait(self->file);
        _exit(0);
    }
    if (child < 0)
        wrong("no child");
    printf("child %ld\n", child);
    run_loop(self, false);
}

/* A part of every rank, rank by rank, each with its rank's value. */
static void parts_fill(const struct rank *self, float *data)
{
    for (int rank = 0; rank < self->size; rank++)
        for (size_t i = 0; i < self->count; i++)
            data[(size_t)rank * self->count + i] = (float)rank;
}

static void parts_check(const struct rank *self, const float *data, const char *what)
{
    for (int rank = 0; rank < self->size; rank++)
        floats_check(data + (size_t)rank * self->count, self->count, (float)rank, what);
}

static void parts_round(const struct rank *self, float *const send[4], float *const recv[4])
{
    enum { KINDS = 4 };
    shoal_request *requests[KINDS];
    size_t count = self->count;
    shoal_group *world = self->world;
    float *own = send[0] + (size_t)self->rank * count;
    expect(shoal_all_gather(world, own, recv[0], count, SHOAL_F32, &requests[0]), "all_gather");
    expect(shoal_reduce_scatter(world, send[1], recv[1], count, SHOAL_F32, SHOAL_SUM, &requests[1]),
           "reduce_scatter");
    expect(shoal_all_to_all(world, send[2], recv[2], count, SHOAL_F32, &requests[2]), "all_to_all");
    expect(shoal_scatter(world, send[3], recv[3], count, SHOAL_F32, 0, &requests[3]), "scatter");
    for (int i = 0; i < KINDS; i++)
        expect(shoal_wait(requests[i], -1), "wait");
    parts_check(self, recv[0], "all_gather");
    floats_check(recv[1], count, (float)(self->size * self->rank), "reduce_scatter");
    parts_check(self, recv[2], "all_to_all");
    floats_check(recv[3], count, (float)self->rank, "scatter");
}

static void run_parts(struct rank *self)
{
    float *send[4], *recv[4], stop = 0;
    for (int i = 0; i < 4; i++) {
        send[i] = floats((size_t)self->size * self->count, (float)self->rank);
        recv[i] = floats((size_t)self->size * self->count, -1);
    }
    /* all_to_all: what a rank sends is its own number, so that it is what arrives from it. */
    for (int i = 0; i < 4; i++)
        if (i != 2)
            parts_fill(self, send[i]);
    for (unsigned long rounds = 0; stop == 0; rounds++) {
        parts_round(self, send, recv);
        stop = self->rank == 0 && file_there(self->file) ? 1 : 0;
        expect(shoal_broadcast(self->world, &stop, 1, SHOAL_F32, 0, NULL), "broadcast");
        if (rounds == 0)
            say("running");
    }
    for (int i = 0; i < 4; i++) {
        free(send[i]);
        free(recv[i]);
    }
}

static void run_disagreement(struct rank *self, const char *mode)
{
    int odd = self->rank == self->size - 1;
    size_t count = strcmp(mode, "count") == 0 && odd ? 999 : 1000;
    enum shoal_dtype dtype = strcmp(mode, "dtype") == 0 && odd ? SHOAL_I32 : SHOAL_F32;
    enum shoal_op op = strcmp(mode, "op") == 0 && odd ? SHOAL_MAX : SHOAL_SUM;
    float *data = floats(1000, 1), *result = floats(1000, 0);
    int code;
    /* The barriers do not go through the daemon on one node, and the daemon counts them all the
     * same. */
    for (int i = 0; i < 5; i++)
        expect(shoal_barrier(self->world, NULL), "barrier");
    if (strcmp(mode, "identity") == 0)
        shoal_group_set_identity(self->world, odd ? 8 : 7);
    if (strcmp(mode, "kind") == 0 && odd)
        code = shoal_broadcast(self->world, data, count, dtype, 0, NULL);
    else if (strcmp(mode, "root") == 0)
        code = shoal_reduce(self->world, data, result, count, dtype, op, odd, NULL);
    else
        code = shoal_all_reduce(self->world, data, result, count, dtype, op, NULL);
    if (code == SHOAL_OK)
        wrong("ranks that disagree have a result");
    failure_say(code, mode);
    file_wait(self->file); /* a rank that ends is an error, too, and might be heard of first */
    exit(EXIT_FAILED);
}

/* The last rank comes late: to a collective, the opening of a group, or what it sends to rank 0. */
static void run_late(struct rank *self, const char *what)
{
    int ranks[64], last = self->size - 1;
    float sent = 1;
    shoal_group *group;
    run_once(self);
    say("running");
    if (self->rank == last)
        file_wait(self->file);
    for (int i = 0; i < self->size; i++)
        ranks[i] = i;
    if (strcmp(what, "group") == 0)
        expect(shoal_group_open(self->job, ranks, self->size, -1, &group), "group_open");
    else if (strcmp(what, "send") == 0 && self->rank == last)
        expect(shoal_send(self->world, &sent, 1, SHOAL_F32, 0, 5, NULL), "send");
    else if (strcmp(what, "send") == 0 && self->rank == 0)
        expect(shoal_recv(self->world, &sent, 1, SHOAL_F32, last, 5, NULL), "recv");
    else
        run_once(self);
}

/* The last rank goes, in the one way or the other, while the others are in a collective. */
static void run_departure(struct rank *self, int close)
{
    run_once(self);
    if (self->rank < self->size - 1) {
        say("running");
        run_once(self);
        wrong("a rank that has left took part");
    }
    file_wait(self->file);
    if (!close)
        _exit(0);
}

static void run_error(struct rank *self)
{
    run_once(self);
    if (self->rank == self->size - 1)
        expect(shoal_send(self->world, self, 1, SHOAL_U8, self->size + 7, 0, NULL), "send");
    run_once(self);
    wrong("a rank that has ended took part");
}

static void run_subgroups(struct rank *self)
{
    int members[64], count = 0, sum = 0, place = -1;
    for (int rank = self->size - 1; rank >= 0; rank--)
        if (rank % 2 == self->rank % 2) {
            if (rank == self->rank)
                place = count;
            members[count++] = rank;
            sum += rank + 1;
        }
    shoal_group *group, *alone;
    expect(shoal_group_open(self->job, members, count, -1, &group), "group_open");
    if (shoal_group_rank(group) != place || shoal_group_size(group) != count)
        wrong("place in the group");
    float *data = floats(5000, (float)(self->rank + 1));
    expect(shoal_all_reduce(group, data, data, 5000, SHOAL_F32, SHOAL_SUM, NULL), "in a group");
    floats_check(data, 5000, (float)sum, "sum in a group");
    /* The root is a place in the group: its first member has the greatest rank. */
    expect(shoal_broadcast(group, &place, 1, SHOAL_I32, 0, NULL), "broadcast in a group");
    if (place != 0)
        wrong("broadcast in a group");
    int self_only[] = {self->rank};
    expect(shoal_group_open(self->job, self_only, 1, -1, &alone), "group of one");
    expect(shoal_all_reduce(alone, data, data, 5000, SHOAL_F32, SHOAL_SUM, NULL), "alone");
    floats_check(data, 5000, (float)sum, "sum of one");
    expect(shoal_group_close(alone), "group_close");
    expect(shoal_group_close(group), "group_close");
    free(data);
    run_once(self);
}

static void run_crossed(struct rank *self)
{
    enum { ROUNDS = 6, COUNT = 700001 };
    int falling[64];
    for (int i = 0; i < self->size; i++)
        falling[i] = self->size - 1 - i;
    shoal_group *groups[2] = {self->world, NULL};
    expect(shoal_group_open(self->job, falling, self->size, -1, &groups[1]), "group_open");
    shoal_request *requests[2][ROUNDS];
    float *data[2][ROUNDS];
    int first = self->rank % 2;
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < ROUNDS; i++) {
            int g = which ? !first : first;
            data[g][i] = floats(COUNT, (float)(self->rank + 1));
            expect(shoal_all_reduce(groups[g], data[g][i], data[g][i], COUNT, SHOAL_F32, SHOAL_SUM,
                                    &requests[g][i]),
                   "start");
        }
    for (int i = 0; i < ROUNDS; i++)
        for (int g = 0; g < 2; g++) {
            expect(shoal_wait(requests[g][i], -1), "wait");
            floats_check(data[g][i], COUNT, total(self->size), "crossed sum");
            free(data[g][i]);
        }
    expect(shoal_group_close(groups[1]), "group_close");
}

static void count_up(void *argument, int result)
{
    if (result == SHOAL_OK)
        atomic_fetch_add((atomic_int *)argument, 1);
}

static void run_callback(struct rank *self)
{
    enum { REQUESTS = 8, COUNT = 30000 };
    shoal_request *requests[REQUESTS];
    float *data[REQUESTS];
    static atomic_int done;
    int descriptor = shoal_completions_descriptor(self->job);
    for (int i = 0; i < REQUESTS; i++) {
        data[i] = floats(COUNT, (float)(self->rank + 1));
        expect(shoal_all_reduce(self->world, data[i], data[i], COUNT, SHOAL_F32, SHOAL_SUM,
                                &requests[i]),
               "start");
        expect(shoal_request_on_complete(requests[i], count_up, &done), "on_complete");
    }
    int complete = 0;
    for (long until = now_ms() + PATIENCE_MS; complete < REQUESTS;) {
        struct pollfd polled = {.fd = descriptor, .events = POLLIN};
        if (poll(&polled, 1, PATIENCE_MS) != 1 || now_ms() > until)
            wrong("the descriptor does not become readable");
        /* First clear, then look: what completes in between shows again. */
        expect(shoal_completions_clear(self->job), "clear");
        complete = 0;
        for (int i = 0; i < REQUESTS; i++) {
            int result = shoal_test(requests[i]);
            if (result != SHOAL_EAGAIN)
                expect(result, "test");
            complete += result == SHOAL_OK;
        }
    }
    for (long until = now_ms() + PATIENCE_MS; atomic_load(&done) < REQUESTS;) {
        if (now_ms() > until)
            wrong("a callback did not come");
        poll(NULL, 0, 5);
    }
    for (int i = 0; i < REQUESTS; i++) {
        expect(shoal_test(requests[i]), "test");
        floats_check(data[i], COUNT, total(self->size), "sum of a callback");
        expect(shoal_wait(requests[i], 0), "wait");
        free(data[i]);
    }
    if (atomic_load(&done) != REQUESTS)
        wrong("callbacks came more than once");
}

static void run_timeout(struct rank *self)
{
    float *data = floats(1000, (float)(self->rank + 1));
    shoal_request *request;
    if (self->rank == self->size - 1)
        file_wait(self->file);
    expect(shoal_all_reduce(self->world, data, data, 1000, SHOAL_F32, SHOAL_SUM, &request),
           "start");
    if (self->rank < self->size - 1) {
        if (shoal_test(request) != SHOAL_EAGAIN || shoal_wait(request, 20) != SHOAL_ETIMEOUT)
            wrong("complete without the last rank");
        say("timed out");
    }
    expect(shoal_wait(request, -1), "wait");
    floats_check(data, 1000, total(self->size), "sum after a timeout");
    free(data);
}

static void run_mode(struct rank *self, const char *mode)
{
    mode = stops_there(mode);
    if (strcmp(mode, "once") == 0)
        run_once(self);
    else if (strcmp(mode, "loop") == 0)
        run_loop(self, false);
    else if (strcmp(mode, "lag") == 0)
        run_loop(self, false);
    else if (strcmp(mode, "shared") == 0)
        run_loop(self, true);
    else if (strcmp(mode, "coming") == 0 || strcmp(mode, "taking") == 0)
        run_meeting(self, strcmp(mode, "taking") == 0);
    else if (strcmp(mode, "passing") == 0)
        run_passing(self);
    else if (strcmp(mode, "survive") == 0 || strcmp(mode, "newcomer") == 0 || self->regrows)
        run_survive(self);
    else if (strcmp(mode, "forked") == 0 || strcmp(mode, "cloned") == 0)
        run_beside_child(self, strcmp(mode, "cloned") == 0);
    else if (strcmp(mode, "sparse") == 0)
        run_sparse(self);
    else if (strcmp(mode, "parts") == 0)
        run_parts(self);
    else if (strncmp(mode, "late", 4) == 0)
        run_late(self, mode[4] ? mode + 5 : "collective");
    else if (strcmp(mode, "leave") == 0 || strcmp(mode, "exit") == 0)
        run_departure(self, strcmp(mode, "leave") == 0);
    else if (strcmp(mode, "errs") == 0)
        run_error(self);
    else if (strcmp(mode, "subgroups") == 0)
        run_subgroups(self);
    else if (strcmp(mode, "crossed") == 0)
        run_crossed(self);
    else if (strcmp(mode, "callback") == 0)
        run_callback(self);
    else if (strcmp(mode, "timeout") == 0)
        run_timeout(self);
    else
        run_disagreement(self, mode);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        wrong("no mode");
    struct rank self = {.file = argc > 2 ? argv[2] : "", .count = 10007};
    if (argc > 3)
        self.count = strtoul(argv[3], NULL, 10);
    struct shoal_options options = {.struct_size = sizeof(options)};
    options.newcomer = strcmp(argv[1], "newcomer") == 0;
    self.regrows = strcmp(argv[1], "regrow") == 0;
    expect(shoal_open(&options, &self.job), "open");
    self.world = shoal_world(self.job);
    self.rank = shoal_rank(self.job);
    self.size = shoal_world_size(self.job);
    if (argc > 6) {
        self.apart_ms = atoi(argv[6]);
        self.late_ms = atoi(argv[5]);
        snprintf(self.late, sizeof(self.late), "%s.%d", self.file, self.rank);
    } else if (argc > 5)
        self.apart_ms = 5 + (self.rank == atoi(argv[4]) ? atoi(argv[5]) : 0);
    run_mode(&self, argv[1]);
    expect(shoal_close(self.job), "close");
    say("done");
    return 0;
}
