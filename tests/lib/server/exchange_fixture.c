#include "tests/lib/server/exchange_fixture.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "common/reduce/reduce.h"

#define PLACE_BYTES 65536u
#define PLACES 8u

uint64_t fixture_receive_token(uint32_t node)
{
    return 0x1000 + node;
}

uint64_t fixture_send_token(uint32_t node)
{
    return 0x2000 + node;
}

/* --- the table -------------------------------------------------------------------------------- */

static void table_send(void *context, struct exchange_send *send)
{
    struct fixture *fixture = context;
    EXPECT(fixture->send_count < FIXTURE_QUEUE);
    send->connection = fixture->completion_count;
    fixture->sends[fixture->send_count++] = send;
}

static void table_reduce(void *context, struct reduce_task *task)
{
    struct fixture *fixture = context;
    EXPECT(fixture->task_count < FIXTURE_QUEUE);
    fixture->tasks[fixture->task_count++] = task;
}

static void table_complete(void *context, struct exchange_worker *worker,
                           const struct arena_completion *completion)
{
    struct fixture *fixture = context;
    EXPECT(fixture->completion_count < FIXTURE_QUEUE);
    fixture->completions[fixture->completion_count++] =
        (struct fixture_completion){.rank = worker->rank, .it = *completion};
}

static int table_post_receive(void *context, uint32_t node, struct buffer *buffer)
{
    struct fixture *fixture = context;
    if (fixture->refuse_receives ||
        (fixture->receives > 0 && fixture->posted_count >= fixture->receives))
        return ERR_LOST;
    EXPECT(node < fixture->options.nodes);
    EXPECT(fixture->options.shared_receives || node != fixture->options.self);
    EXPECT(fixture->posted_count < FIXTURE_QUEUE);
    fixture->posted[fixture->posted_count++] = buffer;
    return 0;
}

static void table_event(void *context, struct engine_event *event)
{
    struct fixture *fixture = context;
    EXPECT(fixture->event_count < FIXTURE_QUEUE);
    fixture->events[fixture->event_count++] = event;
}

static void fixture_unmap(struct fixture *fixture, uint32_t rank)
{
    EXPECT(munmap(fixture->memory[rank], fixture->options.arena_bytes) == 0);
    fixture->memory[rank] = NULL;
}

static void table_release_worker(void *context, struct exchange_worker *worker)
{
    struct fixture *fixture = context;
    EXPECT(fixture->attached[worker->rank]);
    fixture->attached[worker->rank] = false;
    /* Whoever looks at it from now on is caught. */
    fixture_unmap(fixture, worker->rank);
}

static void table_release_segment(void *context, struct exchange_segment *segment)
{
    struct fixture *fixture = context;
    segment->base = NULL; /* the memory is the test's */
    fixture->released_segments++;
}

static void table_peer_silent(void *context, uint32_t node, const char *what)
{
    (void)what;
    struct fixture *fixture = context;
    fixture->silent[node]++;
    exchange_peer_down(fixture->exchange, node);
}

/* Every look at the clock is a nanosecond later, so that stages have a length. */
static uint64_t table_now_ns(void *context)
{
    struct fixture *fixture = context;
    return ++fixture->now_ns;
}

static int table_register(void *context, void *address, size_t bytes, void **registration,
                          struct error *error)
{
    struct fixture *fixture = context;
    (void)address, (void)bytes;
    if (fixture->refuse_slabs)
        return error_set(error, ERR_SYSTEM, "no registration");
    *registration = NULL;
    return 0;
}

static void table_unregister(void *context, void *registration)
{
    (void)context, (void)registration;
}

/* --- beginning and end ------------------------------------------------------------------------ */

int fixture_open_job(struct fixture *fixture, uint64_t job)
{
    const struct fixture_options *options = &fixture->options;
    uint32_t servers[FIXTURE_NODES], weights[FIXTURE_NODES], count = 0;
    for (uint32_t i = 0; i < options->nodes; i++) {
        if (options->weights[i] == 0)
            continue;
        servers[count] = i;
        weights[count++] = options->weights[i];
    }
    struct engine_job roster = {.job = job,
                                .lineage = options->lineage,
                                .generation = options->generation,
                                .name = "train",
                                .user = options->user,
                                .no_recovery = options->no_recovery,
                                .world_size = options->ranks,
                                .rank_nodes = options->rank_nodes,
                                .server_count = count,
                                .server_nodes = servers,
                                .server_weights = weights};
    return exchange_job_open(fixture->exchange, &roster, &fixture->error);
}

int fixture_attach(struct fixture *fixture, uint64_t job, uint32_t rank)
{
    EXPECT(!fixture->attached[rank]);
    struct exchange_worker *worker = &fixture->workers[rank];
    *worker = (struct exchange_worker){.rank = rank};
    uint64_t bytes = fixture->options.arena_bytes;
    fixture->memory[rank] =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(fixture->memory[rank] != MAP_FAILED);
    EXPECT(arena_format(&worker->arena, fixture->memory[rank], bytes, 64, NULL) == 0);
    int result = exchange_attach(fixture->exchange, job, worker, &fixture->error);
    fixture->attached[rank] = result == 0;
    if (result != 0)
        fixture_unmap(fixture, rank);
    return result;
}

struct fixture *fixture_create(const struct fixture_options *options)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    EXPECT(fixture);
    fixture->options = *options;
    struct fixture_options *own = &fixture->options;
    own->chunk_bytes = own->chunk_bytes ? own->chunk_bytes : FIXTURE_CHUNK * sizeof(float);
    own->window = own->window ? own->window : 4;
    own->late_ns = own->late_ns ? own->late_ns : 1000;
    own->buffers = own->buffers ? own->buffers : 1000;
    own->arena_bytes = own->arena_bytes ? own->arena_bytes : ARENA_LEAST_BYTES;
    static const char *const names[FIXTURE_NODES] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    memcpy(fixture->names, names, sizeof(names));
    uint32_t buffer_bytes = WIRE_HEADER_BYTES + own->chunk_bytes;
    struct buffer_pool_io pool_io = {fixture, table_register, table_unregister};
    EXPECT(buffer_pool_create(&fixture->pool, buffer_bytes, own->buffers * buffer_bytes, &pool_io,
                              NULL) == 0);
    struct exchange_options made = {
        .self = own->self,
        .node_count = own->nodes,
        .node_names = fixture->names,
        .chunk_bytes = own->chunk_bytes,
        .least_shard_bytes = 64,
        .window_chunks = own->window,
        .window_bytes = own->window_bytes ? own->window_bytes : UINT32_MAX,
        .late_ns = own->late_ns,
        .silence_ns = own->silence_ns,
        .kept_bytes = own->kept_bytes,
        .keep_steps = own->keep_steps,
        .keep_bytes = own->keep_bytes,
        .shared_receives = own->shared_receives,
        .recovery = own->recovery,
        .pool = fixture->pool,
        .io = {.context = fixture,
               .send = table_send,
               .reduce = table_reduce,
               .complete = table_complete,
               .post_receive = table_post_receive,
               .event = table_event,
               .release_worker = table_release_worker,
               .release_segment = table_release_segment,
               .peer_silent = table_peer_silent,
               .now_ns = table_now_ns},
    };
    EXPECT(exchange_create(&fixture->exchange, &made, NULL) == 0);
    for (uint32_t i = 0; i < own->nodes && !own->leave_down; i++) {
        if (i == own->self)
            continue;
        EXPECT(exchange_peer_session(fixture->exchange, i, false));
        exchange_peer_up(fixture->exchange, i, fixture_receive_token(i), fixture_send_token(i));
    }
    if (own->leave_closed)
        return fixture;
    EXPECT_MSG(fixture_open_job(fixture, FIXTURE_JOB) == 0, "%s", fixture->error.text);
    for (uint32_t rank = 0; rank < own->ranks; rank++) {
        if (own->rank_nodes[rank] == own->self)
            EXPECT(fixture_attach(fixture, FIXTURE_JOB, rank) == 0);
    }
    exchange_check(fixture->exchange);
    return fixture;
}

void fixture_peer_down(struct fixture *fixture, uint32_t node)
{
    exchange_peer_down(fixture->exchange, node);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < fixture->posted_count; i++) {
        struct buffer *buffer = fixture->posted[i];
        if (!fixture->options.shared_receives && buffer->peer == node)
            exchange_receive_returned(fixture->exchange, node, buffer);
        else
            fixture->posted[kept++] = buffer;
    }
    fixture->posted_count = kept;
}

void fixture_destroy(struct fixture *fixture)
{
    struct engine_job_status jobs[16];
    uint32_t count = exchange_job_totals(fixture->exchange, jobs, 16);
    for (uint32_t i = 0; i < count; i++)
        exchange_job_close(fixture->exchange, jobs[i].job);
    exchange_run(fixture->exchange);
    fixture_all_sent(fixture);
    while (fixture->task_count > 0)
        fixture_reduce(fixture, 0);
    fixture_all_sent(fixture);
    for (uint32_t i = 0; i < fixture->options.nodes; i++)
        fixture_peer_down(fixture, i);
    if (fixture->options.shared_receives)
        exchange_abandon_receives(fixture->exchange);
    for (uint32_t i = 0; i < fixture->event_count; i++)
        engine_event_free(fixture->events[i]);
    for (uint32_t i = 0; i < FIXTURE_RANKS; i++)
        EXPECT(!fixture->attached[i]);
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    EXPECT(totals.jobs == 0 && totals.workers == 0 && totals.slots == 0);
    exchange_destroy(fixture->exchange);
    EXPECT(buffer_pool_used_bytes(fixture->pool) == 0);
    EXPECT(buffer_pool_reserved_bytes(fixture->pool) == 0);
    buffer_pool_destroy(fixture->pool);
    free(fixture);
}

/* --- workers ---------------------------------------------------------------------------------- */

uint64_t fixture_offset(const struct fixture *fixture, uint32_t rank, uint32_t n)
{
    return fixture->workers[rank].arena.data_offset + (uint64_t)(n % PLACES) * PLACE_BYTES;
}

float *fixture_data(struct fixture *fixture, uint32_t rank, uint32_t n)
{
    return (float *)(void *)(fixture->workers[rank].arena.base + fixture_offset(fixture, rank, n));
}

void fixture_fill(struct fixture *fixture, uint32_t rank, uint32_t n, uint32_t count, float first)
{
    float *data = fixture_data(fixture, rank, n);
    for (uint32_t i = 0; i < count; i++)
        data[i] = first + (float)i;
}

struct arena_submission fixture_ask(const struct fixture *fixture, uint32_t rank, uint64_t sequence,
                                    uint64_t count)
{
    uint64_t offset = fixture_offset(fixture, rank, (uint32_t)sequence);
    return (struct arena_submission){.type = ARENA_SUBMIT,
                                     .kind = COLLECTIVE_ALL_REDUCE,
                                     .dtype = DTYPE_F32,
                                     .op = REDUCE_SUM,
                                     .request = 100 + sequence,
                                     .sequence = sequence,
                                     .count = count,
                                     .in_offset = offset,
                                     .out_offset = offset};
}

void fixture_run(struct fixture *fixture)
{
    exchange_run(fixture->exchange);
    exchange_check(fixture->exchange);
}

int fixture_submit(struct fixture *fixture, uint32_t rank,
                   const struct arena_submission *submission)
{
    int result = exchange_submit(fixture->exchange, &fixture->workers[rank], submission,
                                 fixture->now_ns, &fixture->error);
    fixture_run(fixture);
    return result;
}

void fixture_submit_sum(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint64_t count)
{
    struct arena_submission ask = fixture_ask(fixture, rank, sequence, count);
    EXPECT_MSG(fixture_submit(fixture, rank, &ask) == 0, "%s", fixture->error.text);
}

int fixture_hand_over(struct fixture *fixture, uint32_t rank, uint64_t sequence, uint32_t chunk,
                      uint64_t offset)
{
    struct arena_submission it = {.type = ARENA_CHUNK,
                                  .request = 100 + sequence,
                                  .sequence = sequence,
                                  .chunk = chunk,
                                  .in_offset = offset};
    return fixture_submit(fixture, rank, &it);
}

/* --- messages --------------------------------------------------------------------------------- */

struct wire_header fixture_header(uint32_t node, uint8_t type, uint64_t sequence, uint32_t chunk,
                                  uint64_t count)
{
    return (struct wire_header){
        .type = type,
        .status = type == WIRE_ERROR ? ERR_MISMATCH : 0,
        .token = fixture_receive_token(node),
        .job = FIXTURE_JOB,
        .generation = type == WIRE_KEEPALIVE || type == WIRE_ALIVE ? 0 : 1,
        .sequence = sequence,
        .chunk = chunk,
        .ask = {
            .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .op = REDUCE_SUM, .count = count}};
}

int fixture_raw_message(struct fixture *fixture, uint32_t node, const uint8_t *message,
                        uint32_t bytes)
{
    uint32_t at = 0;
    while (at < fixture->posted_count && !fixture->options.shared_receives &&
           fixture->posted[at]->peer != node)
        at++;
    EXPECT_MSG(at < fixture->posted_count, "no receive is posted for node %u", node);
    struct buffer *buffer = fixture->posted[at];
    memmove(&fixture->posted[at], &fixture->posted[at + 1],
            (--fixture->posted_count - at) * sizeof(buffer));
    EXPECT(bytes <= buffer->capacity);
    memcpy(buffer->data, message, bytes);
    uint32_t from = 0;
    int result =
        exchange_receive(fixture->exchange, fixture->options.shared_receives ? UINT32_MAX : node,
                         buffer, bytes, fixture->now_ns, &from, &fixture->error);
    if (result == 0)
        EXPECT(from == node);
    fixture_run(fixture);
    return result;
}

int fixture_message(struct fixture *fixture, uint32_t node, struct wire_header header,
                    const void *payload, uint32_t bytes)
{
    uint8_t message[65536];
    EXPECT(WIRE_HEADER_BYTES + bytes <= sizeof(message));
    header.payload_bytes = bytes;
    wire_encode_header(message, &header);
    if (bytes > 0)
        memcpy(message + WIRE_HEADER_BYTES, payload, bytes);
    return fixture_raw_message(fixture, node, message, WIRE_HEADER_BYTES + bytes);
}

static int chunk_of_value(struct fixture *fixture, uint32_t node, const struct wire_header *header,
                          float value)
{
    uint32_t elements = fixture->options.chunk_bytes / (uint32_t)sizeof(float);
    /* One server: chunk c is the c-th; with fewer elements than a chunk holds, all of them. */
    if (header->ask.count < elements)
        elements = (uint32_t)header->ask.count;
    float payload[16384];
    EXPECT(elements <= 16384);
    for (uint32_t i = 0; i < elements; i++)
        payload[i] = value;
    return fixture_message(fixture, node, *header, payload, elements * (uint32_t)sizeof(float));
}

int fixture_contribute(struct fixture *fixture, uint32_t node, uint64_t sequence, uint32_t chunk,
                       uint64_t count, float value)
{
    struct wire_header header = fixture_header(node, WIRE_CONTRIBUTION, sequence, chunk, count);
    return chunk_of_value(fixture, node, &header, value);
}

int fixture_result(struct fixture *fixture, uint32_t node, uint64_t sequence, uint32_t chunk,
                   uint64_t count, float value)
{
    struct wire_header header = fixture_header(node, WIRE_RESULT, sequence, chunk, count);
    return chunk_of_value(fixture, node, &header, value);
}

uint32_t fixture_posted(const struct fixture *fixture, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fixture->posted_count; i++)
        count += fixture->options.shared_receives || fixture->posted[i]->peer == node;
    return count;
}

/* --- what came out ---------------------------------------------------------------------------- */

struct wire_header fixture_sending(const struct fixture *fixture, uint32_t n)
{
    EXPECT_MSG(n < fixture->send_count, "only %u sends wait", fixture->send_count);
    const struct exchange_send *send = fixture->sends[n];
    struct wire_header header;
    /* The length is checked in the same breath. */
    uint8_t message[65536] = {0};
    memcpy(message, send->header, WIRE_HEADER_BYTES);
    struct error error;
    int result =
        wire_decode_header(message, WIRE_HEADER_BYTES + send->payload_bytes, &header, &error);
    EXPECT_MSG(result == 0, "%s", error.text);
    EXPECT(header.token == fixture_send_token(send->node));
    return header;
}

void fixture_sent(struct fixture *fixture, uint32_t n)
{
    EXPECT(n < fixture->send_count);
    struct exchange_send *send = fixture->sends[n];
    memmove(&fixture->sends[n], &fixture->sends[n + 1], (--fixture->send_count - n) * sizeof(send));
    exchange_sent(fixture->exchange, send);
    fixture_run(fixture);
}

void fixture_all_sent(struct fixture *fixture)
{
    while (fixture->send_count > 0)
        fixture_sent(fixture, 0);
}

void fixture_reduce(struct fixture *fixture, uint32_t n)
{
    EXPECT(n < fixture->task_count);
    struct reduce_task *task = fixture->tasks[n];
    memmove(&fixture->tasks[n], &fixture->tasks[n + 1], (--fixture->task_count - n) * sizeof(task));
    reduce_run(reduce_select(REDUCE_ISA_SCALAR), &task->reduction);
    exchange_reduced(fixture->exchange, task);
    fixture_run(fixture);
}

void fixture_all_reduced(struct fixture *fixture)
{
    while (fixture->task_count > 0)
        fixture_reduce(fixture, 0);
}

struct engine_event *fixture_event(struct fixture *fixture, enum engine_event_type type)
{
    EXPECT_MSG(fixture->event_count > 0, "no event of type %d", type);
    struct engine_event *event = fixture->events[0];
    memmove(&fixture->events[0], &fixture->events[1], --fixture->event_count * sizeof(event));
    EXPECT_MSG(event->type == type, "an event of type %d, not %d: %s", event->type, type,
               event->text);
    return event;
}

void fixture_expect_failure(struct fixture *fixture, int code, const char *words)
{
    struct engine_event *event = fixture_event(fixture, ENGINE_GROUP_FAILED);
    EXPECT_MSG(event->code == code && strstr(event->text, words), "%d: %s", event->code,
               event->text);
    EXPECT(event->job == FIXTURE_JOB);
    engine_event_free(event);
}

void fixture_expect_error(const struct fixture *fixture, int result, int code, const char *words)
{
    EXPECT_MSG(result == code, "%d, not %d (%s)", result, code, words);
    EXPECT_MSG(fixture->error.code == code && strstr(fixture->error.text, words), "%d: %s",
               fixture->error.code, fixture->error.text);
}

bool fixture_completed(struct fixture *fixture, uint32_t rank, uint64_t request)
{
    for (uint32_t i = 0; i < fixture->completion_count; i++) {
        const struct fixture_completion *it = &fixture->completions[i];
        if (it->rank != rank || it->it.request != request || it->it.type != ARENA_REQUEST_DONE)
            continue;
        memmove(&fixture->completions[i], &fixture->completions[i + 1],
                (--fixture->completion_count - i) * sizeof(*it));
        return true;
    }
    return false;
}
