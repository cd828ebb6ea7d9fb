#include "common/format/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define HEADER_BYTES 4096u
#define RING_ENTRIES_LEAST 16u
#define SEALS_OF_WORKER (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* No fences here: sanitizers do not understand them. Where the sleeping protocol needs the order
 * "my index is out before I look at your word", both accesses are sequentially consistent, on both
 * sides; that is the store-buffer pattern, in which at least one side then sees the other. */

static struct arena_header *header_of(const struct arena *arena)
{
    return (struct arena_header *)arena->base;
}

static bool ring_entries_valid(uint32_t entries)
{
    return entries >= RING_ENTRIES_LEAST && entries <= ARENA_RING_ENTRIES_MAX &&
           (entries & (entries - 1)) == 0;
}

int arena_format(struct arena *arena, void *base, uint64_t total_bytes, uint32_t submission_entries,
                 struct error *error)
{
    if (!ring_entries_valid(submission_entries) || !ring_entries_valid(2 * submission_entries))
        return error_set(error, ERR_INVALID,
                         "%" PRIu32 " submission entries: not a power of two from %u to %u",
                         submission_entries, RING_ENTRIES_LEAST, ARENA_RING_ENTRIES_MAX / 2);
    uint64_t submission_bytes = submission_entries * sizeof(struct arena_submission);
    uint64_t completion_bytes = 2ull * submission_entries * sizeof(struct arena_completion);
    uint64_t data_offset = HEADER_BYTES + submission_bytes + completion_bytes;
    data_offset = (data_offset + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES;
    if (total_bytes < ARENA_LEAST_BYTES || total_bytes <= data_offset)
        return error_set(error, ERR_INVALID,
                         "an arena of %" PRIu64 " bytes is too small: at least %u, and more than "
                         "the %" PRIu64 " of its rings",
                         total_bytes, ARENA_LEAST_BYTES, data_offset);

    struct arena_header *header = base;
    header->magic = ARENA_MAGIC;
    header->version = ARENA_VERSION;
    header->submission_entries = submission_entries;
    header->completion_entries = 2 * submission_entries;
    header->zero = 0;
    header->total_bytes = total_bytes;
    header->submission_offset = HEADER_BYTES;
    header->completion_offset = HEADER_BYTES + submission_bytes;
    header->data_offset = data_offset;
    atomic_init(&header->submission_tail, 0);
    atomic_init(&header->submission_head, 0);
    atomic_init(&header->completion_tail, 0);
    atomic_init(&header->completion_head, 0);
    atomic_init(&header->daemon_sleeping, 0);
    atomic_init(&header->worker_sleeping, 0);
    atomic_init(&header->tracing, 0);
    return arena_attach_memory(arena, base, total_bytes, error);
}

int arena_create(struct arena *arena, uint64_t total_bytes, uint32_t submission_entries, int *fd,
                 struct error *error)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (total_bytes > (uint64_t)INT64_MAX - page)
        return error_set(error, ERR_INVALID, "an arena of %" PRIu64 " bytes is too large",
                         total_bytes);
    total_bytes = (total_bytes + page - 1) / page * page;
    int memory = memfd_create("shoal-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0)
        return error_set_errno(error, errno, "cannot create the arena (memfd_create)");
    void *base = MAP_FAILED;
    int code;
    if (ftruncate(memory, (off_t)total_bytes) < 0) {
        code = error_set_errno(error, errno, "cannot size the arena to %" PRIu64 " bytes",
                               total_bytes);
        goto failed;
    }
    base = mmap(NULL, total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (base == MAP_FAILED) {
        code = error_set(error, ERR_MEMORY, "cannot map an arena of %" PRIu64 " bytes: %s",
                         total_bytes, strerror(errno));
        goto failed;
    }
    struct arena made;
    code = arena_format(&made, base, total_bytes, submission_entries, error);
    if (code < 0)
        goto failed;
    if (fcntl(memory, F_ADD_SEALS, SEALS_OF_WORKER) < 0) {
        code = error_set_errno(error, errno, "cannot seal the arena");
        goto failed;
    }
    *arena = made;
    *fd = memory;
    return 0;

failed:
    if (base != MAP_FAILED)
        munmap(base, total_bytes);
    close(memory);
    return code;
}

int arena_attach(struct arena *arena, int fd, uint64_t limit_bytes, struct error *error)
{
    struct stat status;
    /* First: of anything but memory, fstat could have to wait for a file system's answer. */
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 && errno == EBADF)
        return error_set_errno(error, errno, "cannot look at the arena's descriptor");
    if (seals < 0)
        return error_set(error, ERR_PROTOCOL, "the arena is not sealed memory (memfd)");
    if (fstat(fd, &status) < 0)
        return error_set_errno(error, errno, "cannot look at the arena's descriptor");
    if (!(seals & F_SEAL_SHRINK) || (seals & F_SEAL_WRITE))
        return error_set(error, ERR_PROTOCOL,
                         "the arena has seals 0x%x: it must be sealed against shrinking, and not "
                         "against writing",
                         (unsigned)seals);
    struct statfs filesystem;
    if (fstatfs(fd, &filesystem) < 0)
        return error_set_errno(error, errno, "cannot look at the arena's file system");
    /* The kernel may have no page for it at the first touch, and kills who touches it. */
    if (filesystem.f_type == HUGETLBFS_MAGIC)
        return error_set(error, ERR_PROTOCOL,
                         "the arena is made of reserved huge pages (MFD_HUGETLB), which may be "
                         "missing when they are touched: it must be an ordinary memfd");
    if (status.st_size < (off_t)ARENA_LEAST_BYTES)
        return error_set(error, ERR_PROTOCOL, "an arena of %jd bytes is too small: at least %u",
                         (intmax_t)status.st_size, ARENA_LEAST_BYTES);
    uint64_t total_bytes = (uint64_t)status.st_size;
    if (total_bytes > limit_bytes)
        return error_set(error, ERR_MEMORY,
                         "an arena of %" PRIu64 " bytes is over the daemon's limit of %" PRIu64
                         " (limits.arena_bytes); SHOAL_ARENA_BYTES or the option asks for less",
                         total_bytes, limit_bytes);
    void *base = mmap(NULL, total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return error_set_errno(error, errno, "cannot map an arena of %" PRIu64 " bytes",
                               total_bytes);
    int code = arena_attach_memory(arena, base, total_bytes, error);
    if (code < 0)
        munmap(base, total_bytes);
    return code;
}

/* The header's constant part, read once: the worker could change it under our eyes. */
struct geometry {
    uint64_t magic, total_bytes, submission_offset, completion_offset, data_offset;
    uint32_t version, submission_entries, completion_entries, zero;
};

static struct geometry geometry_read(const struct arena_header *shared)
{
    const volatile struct arena_header *header = shared;
    return (struct geometry){
        .magic = header->magic,
        .total_bytes = header->total_bytes,
        .submission_offset = header->submission_offset,
        .completion_offset = header->completion_offset,
        .data_offset = header->data_offset,
        .version = header->version,
        .submission_entries = header->submission_entries,
        .completion_entries = header->completion_entries,
        .zero = header->zero,
    };
}

/* Header, rings and data must follow each other without overlap, aligned, inside the memory. */
static bool geometry_offsets_valid(const struct geometry *geometry, uint64_t total_bytes)
{
    uint64_t submission_bytes = geometry->submission_entries * sizeof(struct arena_submission);
    uint64_t completion_bytes = geometry->completion_entries * sizeof(struct arena_completion);
    if (geometry->submission_offset > total_bytes || geometry->completion_offset > total_bytes)
        return false;
    return geometry->submission_offset % ARENA_ALIGNMENT == 0 &&
           geometry->completion_offset % ARENA_ALIGNMENT == 0 &&
           geometry->data_offset % ARENA_ALIGNMENT == 0 &&
           geometry->submission_offset >= sizeof(struct arena_header) &&
           geometry->completion_offset >= geometry->submission_offset + submission_bytes &&
           geometry->data_offset >= geometry->completion_offset + completion_bytes &&
           geometry->data_offset < total_bytes;
}

int arena_attach_memory(struct arena *arena, void *base, uint64_t total_bytes, struct error *error)
{
    if (total_bytes < ARENA_LEAST_BYTES)
        return error_set(error, ERR_PROTOCOL,
                         "an arena of %" PRIu64 " bytes is too small: at least %u", total_bytes,
                         ARENA_LEAST_BYTES);
    struct geometry geometry = geometry_read(base);
    if (geometry.magic != ARENA_MAGIC)
        return error_set(error, ERR_PROTOCOL, "the arena's magic is 0x%" PRIx64 ", not 0x%llx",
                         geometry.magic, ARENA_MAGIC);
    if (geometry.version != ARENA_VERSION)
        return error_set(error, ERR_PROTOCOL, "the arena's version is %" PRIu32 ", not %u",
                         geometry.version, ARENA_VERSION);
    if (geometry.total_bytes != total_bytes)
        return error_set(error, ERR_PROTOCOL,
                         "the arena says it has %" PRIu64 " bytes, and has %" PRIu64,
                         geometry.total_bytes, total_bytes);
    if (!ring_entries_valid(geometry.submission_entries) ||
        !ring_entries_valid(geometry.completion_entries) ||
        geometry.completion_entries < 2 * geometry.submission_entries)
        return error_set(error, ERR_PROTOCOL,
                         "the arena's rings have %" PRIu32 " and %" PRIu32
                         " entries: powers of two from %u to %u, the second twice the first",
                         geometry.submission_entries, geometry.completion_entries,
                         RING_ENTRIES_LEAST, ARENA_RING_ENTRIES_MAX);
    if (geometry.zero != 0 || !geometry_offsets_valid(&geometry, total_bytes))
        return error_set(error, ERR_PROTOCOL,
                         "the arena's parts overlap or lie outside: submissions at %" PRIu64
                         ", completions at %" PRIu64 ", data at %" PRIu64 " of %" PRIu64 " bytes",
                         geometry.submission_offset, geometry.completion_offset,
                         geometry.data_offset, total_bytes);
    *arena = (struct arena){
        .base = base,
        .total_bytes = total_bytes,
        .data_offset = geometry.data_offset,
        .submission_mask = geometry.submission_entries - 1,
        .completion_mask = geometry.completion_entries - 1,
        .submissions =
            (struct arena_submission *)(void *)((uint8_t *)base + geometry.submission_offset),
        .completions =
            (struct arena_completion *)(void *)((uint8_t *)base + geometry.completion_offset),
    };
    return 0;
}

void arena_unmap(struct arena *arena)
{
    if (arena->base)
        munmap(arena->base, arena->total_bytes);
    *arena = (struct arena){0};
}

void arena_make_private(const struct arena *arena, int fd, bool is_mapped)
{
    int there = is_mapped ? MAP_FIXED : MAP_FIXED_NOREPLACE;
    void *base = mmap(arena->base, arena->total_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_NORESERVE | there, fd, 0);
    (void)base;
}

uint32_t arena_submission_room(const struct arena *arena)
{
    uint32_t head = atomic_load_explicit(&header_of(arena)->submission_head, memory_order_acquire);
    uint32_t used = arena->submission_index - head;
    uint32_t entries = arena->submission_mask + 1;
    return used <= entries ? entries - used : 0;
}

bool arena_push_submission(struct arena *arena, const struct arena_submission *submission)
{
    if (arena_submission_room(arena) == 0)
        return false;
    arena->submissions[arena->submission_index & arena->submission_mask] = *submission;
    arena->submission_index++;
    atomic_store_explicit(&header_of(arena)->submission_tail, arena->submission_index,
                          memory_order_release);
    return true;
}

int arena_pop_submission(struct arena *arena, struct arena_submission *submission)
{
    struct arena_header *header = header_of(arena);
    uint32_t tail = atomic_load_explicit(&header->submission_tail, memory_order_acquire);
    uint32_t waiting = tail - arena->submission_index;
    if (waiting == 0)
        return 0;
    if (waiting > arena->submission_mask + 1)
        return ERR_PROTOCOL;
    memcpy(submission, &arena->submissions[arena->submission_index & arena->submission_mask],
           sizeof(*submission));
    arena->submission_index++;
    atomic_store_explicit(&header->submission_head, arena->submission_index, memory_order_release);
    return 1;
}

uint32_t arena_submissions_waiting(const struct arena *arena)
{
    uint32_t tail = atomic_load_explicit(&header_of(arena)->submission_tail, memory_order_acquire);
    uint32_t waiting = tail - arena->submission_index;
    return waiting <= arena->submission_mask ? waiting : arena->submission_mask + 1;
}

bool arena_has_room_for_news(const struct arena *arena)
{
    uint32_t head = atomic_load_explicit(&header_of(arena)->completion_head, memory_order_acquire);
    return arena->completion_index - head <= arena->completion_mask / 2;
}

bool arena_push_completion(struct arena *arena, const struct arena_completion *completion)
{
    struct arena_header *header = header_of(arena);
    uint32_t head = atomic_load_explicit(&header->completion_head, memory_order_acquire);
    if (arena->completion_index - head > arena->completion_mask)
        return false;
    arena->completions[arena->completion_index & arena->completion_mask] = *completion;
    arena->completion_index++;
    atomic_store_explicit(&header->completion_tail, arena->completion_index, memory_order_release);
    return true;
}

bool arena_pop_completion(struct arena *arena, struct arena_completion *completion)
{
    struct arena_header *header = header_of(arena);
    uint32_t tail = atomic_load_explicit(&header->completion_tail, memory_order_acquire);
    if (tail == arena->completion_index)
        return false;
    *completion = arena->completions[arena->completion_index & arena->completion_mask];
    arena->completion_index++;
    atomic_store_explicit(&header->completion_head, arena->completion_index, memory_order_release);
    return true;
}

/* Announce sleep unless the other side's tail has moved past `index`. */
static bool prepare_sleep(_Atomic uint32_t *sleeping, const _Atomic uint32_t *tail, uint32_t index)
{
    atomic_store_explicit(sleeping, 1, memory_order_seq_cst);
    if (atomic_load_explicit(tail, memory_order_seq_cst) == index)
        return false;
    atomic_store_explicit(sleeping, 0, memory_order_seq_cst);
    return true;
}

/* The tail is stored again, sequentially consistent this time: once a batch, not once an entry. */
static bool needs_doorbell(_Atomic uint32_t *sleeping, _Atomic uint32_t *tail, uint32_t index)
{
    atomic_store_explicit(tail, index, memory_order_seq_cst);
    if (atomic_load_explicit(sleeping, memory_order_seq_cst) == 0)
        return false;
    return atomic_exchange_explicit(sleeping, 0, memory_order_seq_cst) != 0;
}

bool arena_daemon_prepare_sleep(struct arena *arena)
{
    struct arena_header *header = header_of(arena);
    return prepare_sleep(&header->daemon_sleeping, &header->submission_tail,
                         arena->submission_index);
}

void arena_daemon_cancel_sleep(struct arena *arena)
{
    atomic_store_explicit(&header_of(arena)->daemon_sleeping, 0, memory_order_seq_cst);
}

bool arena_worker_prepare_sleep(struct arena *arena)
{
    struct arena_header *header = header_of(arena);
    return prepare_sleep(&header->worker_sleeping, &header->completion_tail,
                         arena->completion_index);
}

void arena_worker_cancel_sleep(struct arena *arena)
{
    atomic_store_explicit(&header_of(arena)->worker_sleeping, 0, memory_order_seq_cst);
}

bool arena_daemon_needs_doorbell(struct arena *arena)
{
    struct arena_header *header = header_of(arena);
    return needs_doorbell(&header->daemon_sleeping, &header->submission_tail,
                          arena->submission_index);
}

bool arena_worker_needs_doorbell(struct arena *arena)
{
    struct arena_header *header = header_of(arena);
    return needs_doorbell(&header->worker_sleeping, &header->completion_tail,
                          arena->completion_index);
}

void arena_set_tracing(struct arena *arena, bool tracing)
{
    atomic_store_explicit(&header_of(arena)->tracing, tracing, memory_order_relaxed);
}

bool arena_tracing(const struct arena *arena)
{
    return atomic_load_explicit(&header_of(arena)->tracing, memory_order_relaxed) != 0;
}

bool arena_range_valid(const struct arena *arena, uint64_t offset, uint64_t bytes)
{
    return offset % ARENA_ALIGNMENT == 0 && offset >= arena->data_offset &&
           offset <= arena->total_bytes && bytes <= arena->total_bytes - offset;
}
