/* A rank that uses the library for JAX as the trampoline in jaxlib does: by dlopen and dlsym.
 *
 *   well LIBRARY   each function, and reductions of each type and operation
 *   keys LIBRARY   all ranks give one key, as several devices of a process do
 *   some LIBRARY   three of four ranks split off a communicator, and the first one of its own
 *   lost LIBRARY   rank 1 kills itself, and the others go on calling
 *   left LIBRARY   rank 1 ends in order, before the others
 *
 * Exit codes: 0 as expected, 7 not (the text is on stdout).
 */
#include <complex.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/mpi/abi.h"

#define EXIT_FAILED 7
#define COUNT 1000

static void *library;

static void expect(bool good, const char *what, int line)
{
    if (good)
        return;
    printf("line %d: %s\n", line, what);
    exit(EXIT_FAILED);
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

static void *find(const char *name)
{
    void *found = dlsym(library, name);
    expect(found, name, __LINE__);
    return found;
}
#define F(name) ((__typeof__(&MPIABI_##name))find("MPIABI_" #name))
#define HANDLE(name) (*(const uintptr_t *)find("MPIABI_" name))

static const char *text_of(int error)
{
    static char text[1024];
    int length = -1;
    EXPECT(F(Error_string)(error, text, &length) == 0 && length == (int)strlen(text));
    return text;
}

static void expect_well(int error, int line)
{
    expect(error == 0, error ? text_of(error) : "", line);
}
#define WELL(call) expect_well(call, __LINE__)

struct place {
    MPIABI_Comm comm;
    int rank, size;
};

static struct place split(int color, int key)
{
    struct place place;
    WELL(F(Comm_split)(HANDLE("COMM_WORLD"), color, key, &place.comm));
    WELL(F(Comm_rank)(place.comm, &place.rank));
    WELL(F(Comm_size)(place.comm, &place.size));
    return place;
}

/* --- reductions --------------------------------------------------------------------------------
 */

/* Element i of rank r is r + 1 + i % 3, of a complex number with (i + r) % 2 as its other half. All
 * are exact. */
#define TYPE(name, type)                                                                           \
    static void name(struct place place, const char *handle, const char *operation)                \
    {                                                                                              \
        type own[4 * COUNT] = {0}, all[4 * COUNT] = {0}, wanted[4 * COUNT] = {0};                  \
        size_t bytes = sizeof(type) * COUNT;                                                       \
        int counts[4] = {COUNT, COUNT, COUNT, COUNT}, size = place.size, rank = place.rank;        \
        uintptr_t of = HANDLE_OF(handle), op = HANDLE_OF(operation);                               \
        for (int i = 0; i < size * COUNT; i++) {                                                   \
            own[i] = VALUE(type, rank, i);                                                         \
            wanted[i] = VALUE(type, 0, i);                                                         \
            for (int r = 1; r < size; r++) {                                                       \
                type next = VALUE(type, r, i);                                                     \
                wanted[i] = strcmp(operation, "SUM") == 0   ? (type)(wanted[i] + next)             \
                            : strcmp(operation, "MIN") == 0 ? wanted[i] /* grows with the rank */  \
                            : strcmp(operation, "MAX") == 0 ? next                                 \
                                                            : (type)(wanted[i] * next);            \
            }                                                                                      \
        }                                                                                          \
        WELL(F(Allreduce)(own, all, COUNT, of, op, place.comm));                                   \
        expect(memcmp(all, wanted, bytes) == 0, handle, __LINE__);                                 \
        memcpy(all, own, bytes);                                                                   \
        WELL(F(Allreduce)(F_IN_PLACE, all, COUNT, of, op, place.comm));                            \
        expect(memcmp(all, wanted, bytes) == 0, handle, __LINE__);                                 \
        WELL(F(Reduce_scatter)(own, all, counts, of, op, place.comm));                             \
        expect(memcmp(all, wanted + rank * COUNT, bytes) == 0, handle, __LINE__);                  \
        memcpy(all, own, size *bytes);                                                             \
        WELL(F(Reduce_scatter)(F_IN_PLACE, all, counts, of, op, place.comm));                      \
        expect(memcmp(all, wanted + rank * COUNT, bytes) == 0, handle, __LINE__);                  \
        WELL(F(Allgather)(own, COUNT, of, all, COUNT, of, place.comm));                            \
        for (int i = 0; i < size * COUNT; i++)                                                     \
            expect(all[i] == VALUE(type, i / COUNT, i % COUNT), handle, __LINE__);                 \
        memset(all, 0, sizeof(all));                                                               \
        memcpy(all + rank * COUNT, own, bytes);                                                    \
        WELL(F(Allgather)(F_IN_PLACE, 0, 0, all, COUNT, of, place.comm));                          \
        for (int i = 0; i < size * COUNT; i++)                                                     \
            expect(all[i] == VALUE(type, i / COUNT, i % COUNT), handle, __LINE__);                 \
    }
#define VALUE(type, rank, i)                                                                       \
    ((type)((rank) + 1 + (i) % 3 + ((type)0.5 != 0 && (type)I != 0 ? ((i) + (rank)) % 2 * I : 0)))
#define F_IN_PLACE (*(void *const *)find("MPIABI_IN_PLACE"))
#define HANDLE_OF(word) handle_of(word)

static uintptr_t handle_of(const char *word)
{
    char name[64];
    snprintf(name, sizeof(name), "MPIABI_%s", word);
    return *(const uintptr_t *)find(name);
}

TYPE(of_i8, int8_t)
TYPE(of_u8, uint8_t)
TYPE(of_i16, int16_t)
TYPE(of_u16, uint16_t)
TYPE(of_i32, int32_t)
TYPE(of_u32, uint32_t)
TYPE(of_i64, int64_t)
TYPE(of_u64, uint64_t)
TYPE(of_f32, float)
TYPE(of_f64, double)
TYPE(of_c64, float complex)
TYPE(of_c128, double complex)

static const struct {
    const char *name;
    void (*check)(struct place place, const char *handle, const char *operation);
    bool is_complex;
} types[] = {
    {"INT8_T", of_i8, false},    {"UINT8_T", of_u8, false},   {"INT16_T", of_i16, false},
    {"UINT16_T", of_u16, false}, {"INT32_T", of_i32, false},  {"UINT32_T", of_u32, false},
    {"INT64_T", of_i64, false},  {"UINT64_T", of_u64, false}, {"FLOAT", of_f32, false},
    {"DOUBLE", of_f64, false},   {"C_COMPLEX", of_c64, true}, {"C_DOUBLE_COMPLEX", of_c128, true},
};

static void reductions(struct place place)
{
    static const char *const operations[] = {"SUM", "PROD", "MIN", "MAX"};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        for (int j = 0; j < (types[i].is_complex ? 2 : 4); j++)
            types[i].check(place, types[i].name, operations[j]);
}

/* --- sends -------------------------------------------------------------------------------------
 */

static void transfers(struct place place)
{
    char own[COUNT], before[COUNT], after[COUNT];
    memset(own, place.rank + 1, COUNT);
    int next = (place.rank + 1) % place.size, last = (place.rank + place.size - 1) % place.size;
    MPIABI_Request requests[2];
    WELL(F(Irecv)(before, COUNT, HANDLE("BYTE"), last, 0, place.comm, &requests[0]));
    WELL(F(Isend)(own, COUNT, HANDLE("BYTE"), next, 0, place.comm, &requests[1]));
    for (int i = 0; i < 2; i++) {
        WELL(F(Wait)(&requests[i], NULL));
        EXPECT(requests[i] == HANDLE("REQUEST_NULL"));
        EXPECT(F(Wait)(&requests[i], NULL) != 0);
    }
    WELL(F(Sendrecv)(own, COUNT, HANDLE("BYTE"), last, 0, after, COUNT, HANDLE("BYTE"), next, 0,
                     place.comm, NULL));
    for (int i = 0; i < COUNT; i++)
        EXPECT(before[i] == last + 1 && after[i] == next + 1);
}

/* --- what is refused, and leaves the job as it is ----------------------------------------------
 */

static void refused(struct place place)
{
    float data[4] = {0};
    int unequal[] = {1, 2, 1, 2};
    MPIABI_Comm refused_comm = 0;
    uintptr_t f32 = HANDLE("FLOAT"), sum = HANDLE("SUM");
    struct {
        int error;
        const char *text;
    } cases[] = {
        {F(Allreduce)(data, data, -1, f32, sum, place.comm), "a count is negative"},
        {F(Allreduce)(data, data, 1, HANDLE("LONG_DOUBLE"), sum, place.comm), "not one of XLA's"},
        {F(Allreduce)(data, data, 1, f32, HANDLE("MINLOC"), place.comm), "no such reduction"},
        {F(Allreduce)(data, data, 1, HANDLE("C_COMPLEX"), HANDLE("MAX"), place.comm),
         "no such reduction"},
        {F(Allreduce)(data, data, 1, f32, sum, HANDLE("COMM_NULL")), "no communicator"},
        {F(Allgather)(data, 1, f32, data, 2, f32, place.comm), "differ in type or count"},
        {F(Reduce_scatter)(data, data, unequal, f32, sum, place.comm), "all the same"},
        {F(Isend)(data, -1, f32, 0, 0, place.comm, &(MPIABI_Request){0}), "a count is negative"},
        {F(Comm_split)(place.comm, 0, 0, &refused_comm), "not the one that is wanted"},
    };
    WELL(F(Comm_free)(&refused_comm));
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        expect(strstr(text_of(cases[i].error), cases[i].text), text_of(cases[i].error), __LINE__);
}

/* --- jobs --------------------------------------------------------------------------------------
 */

static struct place begin(void)
{
    int provided = 0, is_main = 0;
    struct place world = {.comm = HANDLE("COMM_WORLD")};
    EXPECT(strstr(text_of(F(Comm_rank)(world.comm, &world.rank)), "has not been called"));
    WELL(F(Init_thread)(NULL, NULL, 1, &provided));
    EXPECT(provided == *(const int *)find("MPIABI_THREAD_MULTIPLE"));
    WELL(F(Is_thread_main)(&is_main));
    EXPECT(is_main == 1);
    WELL(F(Comm_rank)(world.comm, &world.rank));
    WELL(F(Comm_size)(world.comm, &world.size));
    return world;
}

static void well(void)
{
    struct place world = begin();
    /* All of them, in the other order; and each second one. */
    struct place all = split(7, world.size - 1 - world.rank);
    EXPECT(all.size == world.size && all.rank == world.size - 1 - world.rank);
    reductions(all);
    transfers(all);
    refused(all);
    struct place half = split(world.rank % 2, world.rank / 2);
    EXPECT(half.size == world.size / 2 && half.rank == world.rank / 2);
    reductions(half);
    MPIABI_Comm none = 1;
    WELL(F(Comm_split)(HANDLE("COMM_WORLD"), *(const int *)find("MPIABI_UNDEFINED"), 0, &none));
    EXPECT(none == HANDLE("COMM_NULL"));
    WELL(F(Comm_free)(&half.comm));
    EXPECT(half.comm == HANDLE("COMM_NULL"));
    EXPECT(F(Comm_free)(&half.comm) != 0);
    reductions(all);
    WELL(F(Finalize)());
    int number = 0;
    EXPECT(strstr(
        text_of(F(Allreduce)(&number, &number, 1, HANDLE("INT32_T"), HANDLE("SUM"), all.comm)),
        "MPI_Finalize has been called"));
    EXPECT(strstr(text_of(F(Init_thread)(NULL, NULL, 1, &number)), "MPI_Finalize has been called"));
    WELL(F(Comm_free)(&all.comm));
}

static void keys(void)
{
    begin();
    MPIABI_Comm comm = 0;
    int error = F(Comm_split)(HANDLE("COMM_WORLD"), 5, 0, &comm);
    EXPECT(strstr(text_of(error), "device 5 first in their list are not each there once"));
    int number = 0, rank = 0;
    error = F(Allreduce)(&number, &number, 1, HANDLE("INT32_T"), HANDLE("SUM"), comm);
    EXPECT(strstr(text_of(error), "device 5 first in their list"));
    /* XLA has no counts then: it takes them of the communicator's size. */
    error = F(Reduce_scatter)(&number, &number, NULL, HANDLE("INT32_T"), HANDLE("SUM"), comm);
    EXPECT(strstr(text_of(error), "device 5 first in their list"));
    WELL(F(Comm_rank)(comm, &rank));
    WELL(F(Comm_free)(&comm));
}

/* Three of four run a program on a mesh of their own, and the last a program of its own. */
static void some(void)
{
    struct place world = begin();
    MPIABI_Comm comm = 0;
    int error = world.rank == 0 ? F(Comm_split)(HANDLE("COMM_WORLD"), 0, 0, &comm)
                                : F(Comm_split)(HANDLE("COMM_WORLD"), 1, world.rank - 1, &comm);
    EXPECT(strstr(text_of(error), "not as many as those of other lists"));
    WELL(F(Comm_free)(&comm));
}

static void lost(void)
{
    struct place world = begin();
    struct place all = split(0, world.rank);
    int number = 1;
    if (world.rank == 1)
        raise(SIGKILL);
    for (int i = 0; i < 3; i++) {
        int error = F(Allreduce)(&number, &number, 1, HANDLE("INT32_T"), HANDLE("SUM"), all.comm);
        expect(strstr(text_of(error), "rank 1 "), text_of(error), __LINE__);
    }
    MPIABI_Comm comm = 0;
    EXPECT(strstr(text_of(F(Comm_split)(HANDLE("COMM_WORLD"), 0, world.rank, &comm)), "rank 1 "));
    WELL(F(Comm_free)(&comm));
    WELL(F(Comm_free)(&all.comm));
    fputs("flushed", stdout);
    F(Finalize)();
    EXPECT(!"MPI_Finalize must end the process");
}

static void left(void)
{
    struct place world = begin();
    struct place all = split(0, world.rank);
    int number = 1;
    for (int i = 0; i < 3 && world.rank != 1; i++) {
        int error = F(Allreduce)(&number, &number, 1, HANDLE("INT32_T"), HANDLE("SUM"), all.comm);
        expect(strstr(text_of(error), " has left job "), text_of(error), __LINE__);
    }
    WELL(F(Comm_free)(&all.comm));
    WELL(F(Finalize)());
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } ways[] = {{"well", well}, {"keys", keys}, {"some", some}, {"lost", lost}, {"left", left}};
    EXPECT(argc == 3);
    library = dlopen(argv[2], RTLD_LAZY | RTLD_LOCAL);
    expect(library, library ? "" : dlerror(), __LINE__);
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
        if (strcmp(argv[1], ways[i].name) == 0)
            ways[i].run();
    return 0;
}
