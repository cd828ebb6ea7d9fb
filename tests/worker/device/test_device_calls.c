/* How often the device's driver is asked by all that the library does for requests: every call
 * counts. On the stand-in for CUDA's driver, with the library's defaults and chunks of the daemon's
 * default. */
#include "worker/shoal.h"

#include "tests/lib/cuda/cuda_stand_in.h"
#include "tests/lib/server/world.h"
#include "tests/lib/suite.h"
#include "worker/job/job.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK (256u << 10)
#define KIB(n) ((size_t)(n) << 10)
#define MIB(n) ((size_t)(n) << 20)

enum { REQUESTS_MAX = 64, ROUNDS_MAX = 30 };

/* Requests of one size at once, and the most calls for them, of all ranks, and queries among them.
 */
struct row {
    uint32_t servers, requests;
    size_t bytes;
    long calls, queries;
};

static const struct row *row;
static pthread_barrier_t meet;

static struct {
    long calls, queries;
} begun;
static bool met; /* a round has cost no more than the row says */

static void round_begin(void)
{
    const struct stand_in *cuda = stand_in_open();
    begun.calls = cuda->calls(NULL);
    begun.queries = cuda->calls("cuEventQuery");
}

/* The first round makes events. A busy machine adds calls to a round, where threads take over from
 * each other or a ring comes late, and takes none away: one round within the bounds is enough. */
static void round_end(int round)
{
    const struct stand_in *cuda = stand_in_open();
    long calls = cuda->calls(NULL) - begun.calls;
    long queries = cuda->calls("cuEventQuery") - begun.queries;
    met = round > 0 && calls <= row->calls && queries <= row->queries;
    ck_assert_msg(met || round + 1 < ROUNDS_MAX,
                  "%u x %zu, %u servers: %ld calls, %ld at most; %ld queries, %ld at most",
                  row->requests, row->bytes, row->servers, calls, row->calls, queries,
                  row->queries);
}

static void check_all_reduces(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    shoal_request *requests[REQUESTS_MAX];
    uint8_t *memory[REQUESTS_MAX];
    stand_in_open_device(member->job);
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, shoal_device_stream(member->job)));
    for (uint32_t i = 0; i < row->requests; i++)
        ck_assert_ptr_nonnull(memory[i] = shoal_device_alloc(member->job, row->bytes));
    for (int round = 0; !met; round++) {
        round_begin();
        for (uint32_t i = 0; i < row->requests; i++)
            GOOD(shoal_all_reduce(world, memory[i], memory[i], row->bytes / sizeof(float),
                                  SHOAL_F32, SHOAL_SUM, &requests[i]));
        for (uint32_t i = 0; i < row->requests; i++)
            GOOD(shoal_wait(requests[i], -1));
        round_end(round);
    }
    for (uint32_t i = 0; i < row->requests; i++)
        shoal_device_free(member->job, memory[i]);
}

/* A request costs 4 calls (its event is recorded, waited for at a gate and asked for once) and 2
 * for the gate. The driving thread costs 2, perhaps for both threads in turn. Each part costs 4
 * out and 1 in, and the last part 4. */
static const struct row all_reduces[] = {
    {1, 1, KIB(64), 20, 1},      {1, 1, MIB(1), 20, 1},      {1, 1, MIB(16), 40, 1},
    {1, 1, MIB(64), 40, 1},      {1, 1, MIB(256), 200, 40},  {2, 1, KIB(64), 20, 1},
    {2, 1, MIB(1), 20, 1},       {2, 1, MIB(16), 40, 1},     {2, 1, MIB(64), 40, 1},
    {2, 1, MIB(256), 200, 40},   {4, 1, KIB(64), 20, 1},     {4, 1, MIB(16), 40, 1},
    {4, 1, MIB(64), 66, 8}, /* its chunks are smaller, and a part has so many at the most */
    {1, 64, KIB(64), 1000, 200}, {1, 16, MIB(1), 1000, 200}, {1, 8, MIB(16), 1000, 200},
    {2, 4, MIB(64), 1000, 200},
};

START_TEST(test_all_reduces)
{
    row = &all_reduces[_i];
    world_run_large(
        &(struct fake_daemon_options){
            .world_size = 1, .servers = row->servers, .chunk_bytes = CHUNK, .seed = (uint64_t)_i},
        check_all_reduces);
    stand_in_check_nothing_left(true);
}
END_TEST

/* Send from one rank to the other through the arena's heap, and count the calls of both. */
static void check_transfers(struct member *member)
{
    shoal_group *world = shoal_world(member->job);
    int other = 1 - member->rank;
    stand_in_open_device(member->job);
    GOOD(shoal_group_set_stream(world, SHOAL_MEMORY_DEVICE, shoal_device_stream(member->job)));
    uint8_t *memory = shoal_device_alloc(member->job, row->bytes);
    for (int round = 0; !met; round++) {
        pthread_barrier_wait(&meet);
        if (member->rank == 0)
            round_begin();
        pthread_barrier_wait(&meet);
        if (member->rank == 0)
            GOOD(shoal_send(world, memory, row->bytes, SHOAL_U8, other, 0, NULL));
        else
            GOOD(shoal_recv(world, memory, row->bytes, SHOAL_U8, other, 0, NULL));
        pthread_barrier_wait(&meet);
        if (member->rank == 0)
            round_end(round);
        pthread_barrier_wait(&meet);
    }
    shoal_device_free(member->job, memory);
}

static const struct row transfers[] = {
    {1, 1, KIB(64), 36, 2}, {1, 1, MIB(1), 36, 2}, {1, 1, MIB(16), 80, 2}, {1, 1, MIB(64), 80, 2}};

START_TEST(test_transfers)
{
    row = &transfers[_i];
    pthread_barrier_init(&meet, NULL, 2);
    world_run_large(
        &(struct fake_daemon_options){.world_size = 2, .chunk_bytes = CHUNK, .seed = (uint64_t)_i},
        check_transfers);
    stand_in_check_nothing_left(true);
    pthread_barrier_destroy(&meet);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_calls");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 120);
    tcase_add_loop_test(core, test_all_reduces, 0, sizeof(all_reduces) / sizeof(all_reduces[0]));
    tcase_add_loop_test(core, test_transfers, 0, sizeof(transfers) / sizeof(transfers[0]));
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
