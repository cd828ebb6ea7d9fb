/* Starting and stopping the data path, and what the control thread calls. */
#include "server/engine/engine.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "server/engine/engine_private.h"

/* How long engine_stop lets operations come back before it closes the fabric under them. */
#define STOP_NS (2 * NS_PER_S)

/* Memory that the requests of one user may take: this part of the limit, or this many bytes where
 * that is more. A request takes some hundred bytes, and a hundred more for each rank of its group
 * here. */
#define KEPT_PART 16
#define KEPT_LEAST_BYTES (16u << 20)

/* --- starting --------------------------------------------------------------------------------- */

static const struct reduce_kernels *engine_kernels(const struct config *config, struct log *log,
                                                   const char **name, struct error *error)
{
    enum reduce_isa isa = reduce_isa_best();
    if (strcmp(config->isa, "auto") != 0 && reduce_isa_parse(config->isa, &isa) != 0) {
        error_set(error, ERR_CONFIG, "data.instruction_set: \"%s\" is not known", config->isa);
        return NULL;
    }
    const struct reduce_kernels *kernels = reduce_isa_supported(isa) ? reduce_select(isa) : NULL;
    if (!kernels) {
        error_set(error, ERR_UNSUPPORTED, "data.instruction_set: this machine has no %s",
                  reduce_isa_name(isa));
        return NULL;
    }
    *name = reduce_isa_name(isa);
    log_info(log, "reduction: %s, %u threads", *name, config->reduce_threads);
    return kernels;
}

static int engine_open_transport(struct engine *engine, struct error *error)
{
    const struct config *config = engine->config;
    /* Windows bound what is under way: contributions and results of every group. */
    uint32_t operations = 4 * config->window_chunks;
    struct transport_options options = {
        .provider = config->provider,
        .interface_address =
            config->fabric_address[0] ? config->fabric_address : config->listen_address,
        .interface_port = config->fabric_port,
        .message_bytes = WIRE_HEADER_BYTES + config->chunk_bytes + engine->seal_bytes,
        .peers = engine->node_count,
        .sends_per_peer = operations,
        .receives_per_peer = operations,
        .log = engine->log,
    };
    int result = transport_open(&engine->transport, &options, error);
    if (result == 0)
        result =
            transport_address(engine->transport, engine->address, &engine->address_bytes, error);
    if (result != 0)
        return result;
    const struct transport_info *info = transport_info(engine->transport);
    log_info(engine->log, "fabric: %s (%s), %s, at %s", info->provider, info->endpoint,
             info->version, info->local);
    return 0;
}

static int engine_watch(struct engine *engine, int descriptor, uint32_t events, struct error *error)
{
    struct epoll_event event = {.events = events, .data.ptr = engine};
    if (epoll_ctl(engine->poll_descriptor, EPOLL_CTL_ADD, descriptor, &event) != 0)
        return error_set_errno(error, errno, "cannot watch descriptor %d", descriptor);
    return 0;
}

static int engine_open_descriptors(struct engine *engine, struct error *error)
{
    engine->poll_descriptor = epoll_create1(EPOLL_CLOEXEC);
    engine->reduce_descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->poll_descriptor < 0 || engine->reduce_descriptor < 0)
        return error_set_errno(error, errno, "cannot make the engine's descriptors");
    int result = engine_queue_init(&engine->commands, error);
    if (result == 0)
        result = engine_queue_init(&engine->events, error);
    if (result == 0)
        result = engine_watch(engine, engine->commands.descriptor, EPOLLIN, error);
    if (result == 0)
        result = engine_watch(engine, engine->reduce_descriptor, EPOLLIN | EPOLLET, error);
    int fabric = transport_descriptor(engine->transport);
    if (result == 0 && fabric >= 0)
        result = engine_watch(engine, fabric, EPOLLIN, error);
    return result;
}

static int engine_create_exchange(struct engine *engine, struct error *error)
{
    const struct config *config = engine->config;
    struct buffer_pool_io pool_io = engine_pool_io(engine);
    uint32_t buffer_bytes = WIRE_HEADER_BYTES + config->chunk_bytes + engine->seal_bytes;
    const struct transport_info *info = transport_info(engine->transport);
    if (config->recovery && (!info->per_peer_receives || !info->ordered))
        return error_set(error, ERR_UNSUPPORTED,
                         "recovery needs a provider with connections, which %s is not",
                         info->provider);
    int result =
        buffer_pool_create(&engine->pool, buffer_bytes, config->memory_bytes, &pool_io, error);
    if (result != 0)
        return result;
    struct exchange_options options = {
        .self = config->self,
        .node_count = engine->node_count,
        .node_names = engine->node_names,
        .chunk_bytes = config->chunk_bytes,
        .least_shard_bytes = config->least_shard_bytes,
        .window_chunks = config->window_chunks,
        .window_bytes = config->window_bytes,
        .late_ns = config_late_ms(config) * NS_PER_MS,
        .silence_ns = engine_silence_ns(engine),
        .kept_bytes = config->memory_bytes / KEPT_PART > KEPT_LEAST_BYTES
                          ? config->memory_bytes / KEPT_PART
                          : KEPT_LEAST_BYTES,
        .own_user = geteuid(),
        .shared_receives = !info->per_peer_receives,
        .recovery = config->recovery,
        .keep_steps = config->keep_steps,
        .keep_bytes = config_keep_bytes(config),
        .pool = engine->pool,
        .io = engine_exchange_io(engine),
    };
    return exchange_create(&engine->exchange, &options, error);
}

static int engine_start_thread(struct engine *engine, struct error *error)
{
    /* Signals are for the control thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&engine->thread, NULL, engine_main, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return error_set_errno(error, failed, "cannot start the engine's thread");
    engine->thread_started = true;
    return 0;
}

static int engine_allocate(struct engine *engine, struct error *error)
{
    engine->peers = calloc(engine->node_count, sizeof(*engine->peers));
    engine->node_names = calloc(engine->node_count, sizeof(*engine->node_names));
    engine->moving = calloc(BITS_WORDS(engine->node_count), sizeof(*engine->moving));
    if (!engine->peers || !engine->node_names || !engine->moving)
        return error_set(error, ERR_MEMORY, "no memory for %u peers", engine->node_count);
    for (uint32_t i = 0; i < engine->node_count; i++) {
        engine->peers[i].backlog_end = &engine->peers[i].backlog;
        engine->node_names[i] = engine->config->servers[i].name;
    }
    return 0;
}

int engine_start(struct engine **engine, const struct config *config,
                 const struct topology *topology, struct log *log, struct error *error)
{
    const char *instruction_set = NULL;
    const struct reduce_kernels *kernels = engine_kernels(config, log, &instruction_set, error);
    if (!kernels)
        return error ? error->code : ERR_UNSUPPORTED;
    struct engine *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set(error, ERR_MEMORY, "no memory for the engine");
    made->config = config;
    made->log = log;
    made->instruction_set = instruction_set;
    made->node_count = config->server_count;
    made->stop_ns = STOP_NS;
    made->poll_descriptor = -1;
    made->reduce_descriptor = -1;
    made->commands.descriptor = -1;
    made->events.descriptor = -1;
    made->seal_bytes = config_encrypts(config) ? SEAL_TRAILER_BYTES : 0;
    pthread_mutex_init(&made->status_lock, NULL);
    engine_protect_init(made);
    int result = engine_allocate(made, error);
    if (result == 0)
        result = engine_open_transport(made, error);
    if (result == 0)
        result = engine_open_descriptors(made, error);
    if (result == 0)
        result = engine_create_exchange(made, error);
    if (result == 0)
        result =
            reducer_start(&made->reducer, kernels, config->reduce_threads, made->reduce_descriptor,
                          config->bind_threads ? topology : NULL, error);
    if (result == 0) {
        engine_update_status(made, clock_now_ns());
        result = engine_release_start(made, error);
        if (result == 0)
            result = engine_start_thread(made, error);
    }
    if (result != 0) {
        engine_stop(made);
        return result;
    }
    *engine = made;
    return 0;
}

/* --- stopping --------------------------------------------------------------------------------- */

/* Let tasks, sends and receives come back, so that nobody holds memory that is about to go. */
static void engine_quiesce(struct engine *engine)
{
    for (uint32_t i = 0; i < engine->node_count; i++) {
        if (i == engine->config->self)
            continue;
        transport_disconnect(engine->transport, i);
        engine_drop_peer(engine, i, false);
    }
    uint64_t deadline_ns = clock_now_ns() + engine->stop_ns;
    while (clock_now_ns() < deadline_ns) {
        bool any = engine_take_reduced(engine);
        engine_return_lost(engine);
        any |= engine_poll_transport(engine, clock_now_ns());
        exchange_run(engine->exchange);
        struct exchange_totals totals;
        exchange_totals(engine->exchange, &totals);
        if (totals.jobs == 0 && engine->sends_posted == 0 &&
            (engine->receives_posted == 0 || !transport_info(engine->transport)->per_peer_receives))
            return;
        if (!any) {
            struct epoll_event event;
            epoll_wait(engine->poll_descriptor, &event, 1, 1);
        }
    }
    log_warning(engine->log, "fabric: %llu receives and %llu sends did not come back",
                (unsigned long long)engine->receives_posted,
                (unsigned long long)engine->sends_posted);
}

static void engine_free(struct engine *engine)
{
    struct engine_event *event;
    engine_release_stop(engine);
    while (engine->events.descriptor >= 0 &&
           (event = engine_queue_take_event(&engine->events)) != NULL)
        engine_event_free(event);
    engine_queue_clear(&engine->events);
    engine_queue_clear(&engine->commands);
    if (engine->poll_descriptor >= 0)
        close(engine->poll_descriptor);
    if (engine->reduce_descriptor >= 0)
        close(engine->reduce_descriptor);
    engine_status_clear(&engine->status);
    engine_protect_clear(engine);
    pthread_mutex_destroy(&engine->status_lock);
    free(engine->moving);
    free(engine->peers);
    free(engine->node_names);
    free(engine);
}

void engine_stop(struct engine *engine)
{
    if (!engine)
        return;
    if (engine->thread_started) {
        engine_command(engine, &(struct engine_command){.kind = COMMAND_STOP});
        pthread_join(engine->thread, NULL);
        while (engine_take_commands(engine))
            continue;
        exchange_close_jobs(engine->exchange);
        engine_quiesce(engine);
        /* A reduction that is not done by then is waited for: its memory is about to go. */
        reducer_finish(engine->reducer);
        while (engine_take_reduced(engine))
            continue;
        engine_return_lost(engine);
    }
    reducer_stop(engine->reducer);
    /* Shared receives come back only with the fabric's end; sends that do not come back are a
     * provider's fault, and their memory is left to the end of the process. */
    if (engine->sends_posted == 0) {
        transport_stop(engine->transport);
        if (engine->exchange)
            exchange_abandon_receives(engine->exchange);
        exchange_destroy(engine->exchange);
        engine_protect_release(engine);
        buffer_pool_destroy(engine->pool);
        transport_close(engine->transport);
    }
    engine_free(engine);
}

/* --- what the control thread calls ------------------------------------------------------------ */

int engine_event_descriptor(const struct engine *engine)
{
    return engine->events.descriptor;
}

struct engine_event *engine_next_event(struct engine *engine)
{
    return engine_queue_take_event(&engine->events);
}

const struct transport_info *engine_transport_info(const struct engine *engine)
{
    return transport_info(engine->transport);
}

const char *engine_instruction_set(const struct engine *engine)
{
    return engine->instruction_set;
}

void engine_fabric_address(const struct engine *engine, uint8_t address[TRANSPORT_ADDRESS_BYTES],
                           uint32_t *bytes)
{
    memcpy(address, engine->address, engine->address_bytes);
    *bytes = engine->address_bytes;
}

void engine_command(struct engine *engine, const struct engine_command *command)
{
    if (engine_queue_put_command(&engine->commands, command))
        return;
    /* The engine's answer, in its place. */
    bool of_job = command->kind == COMMAND_JOB_OPEN;
    struct engine_event *event =
        engine_event_create(of_job ? ENGINE_JOB_OPENED : ENGINE_GROUP_OPENED);
    event->job = command->job;
    event->group = command->group;
    event->code = ERR_MEMORY;
    snprintf(event->text, sizeof(event->text), "no memory for the list of its ranks");
    engine_queue_put_event(&engine->events, event);
}

uint64_t engine_turns(struct engine *engine)
{
    engine_queue_wake(&engine->commands);
    return atomic_load_explicit(&engine->turns, memory_order_relaxed);
}
