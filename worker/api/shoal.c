/* Opening and closing a job, its memory, and words. */
#include "worker/shoal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/reduce/dtype.h"
#include "common/text/json_text.h"
#include "worker/api/fusion_handle.h"
#include "worker/api/reconfigure.h"
#include "worker/drive/drive.h"
#include "worker/drive/drive_device.h"
#include "worker/job/error_text.h"
#include "worker/job/forking.h"
#include "worker/job/job.h"
#include "worker/launch/launched.h"

#define DEFAULT_JOB "default"
#define DEFAULT_TIMEOUT_MS 300000
#define DEFAULT_ARENA_BYTES (256ull << 20)
#define LARGEST_ARENA_BYTES (1ull << 46)

/* --- settings ------------------------------------------------------------------------------ */

static int copy_text(char *to, size_t capacity, const char *what, const char *given,
                     const char *variable, const char *fallback, struct error *error)
{
    const char *text = given ? given : env_text(variable);
    if (!text)
        text = fallback;
    size_t length = strlen(text);
    if (length == 0 || length >= capacity)
        return error_set(error, ERR_INVALID, "%s has %zu bytes, must have 1 to %zu: \"%.200s\"",
                         what, length, capacity - 1, text);
    memcpy(to, text, length + 1);
    return 0;
}

/* given: 0 when it is to come from the environment. */
static int read_integer(long long given, const char *what, const char *variable, long long least,
                        long long most, long long fallback, long long *value, struct error *error)
{
    if (given == 0)
        return env_integer(variable, least, most, fallback, value, error);
    if (given < least || given > most)
        return error_set(error, ERR_INVALID, "options.%s: got %lld, must be %lld to %lld", what,
                         given, least, most);
    *value = given;
    return 0;
}

static int shoal_read_rank(int plus_1, const char *what, const char *variable, int world_size,
                           int *rank, struct error *error)
{
    long long value = -1;
    if (plus_1 < 0 || plus_1 > world_size)
        return error_set(error, ERR_INVALID,
                         "options.%s: got %d, must be 0 (unknown) or 1 to the world size %d", what,
                         plus_1, world_size);
    if (plus_1 > 0) {
        *rank = plus_1 - 1;
        return 0;
    }
    int code = env_integer(variable, 0, world_size - 1, -1, &value, error);
    if (code == 0)
        *rank = (int)value;
    return code;
}

/* Return the name of the variable to read: shoal's own if it is set, else that of a launcher's own
 * library, if there is one. */
static const char *shoal_variable(const char *own, const char *launchers)
{
    return launchers && !env_text(own) ? launchers : own;
}

/* Two runs of one name are told apart. A job that has another name is not the run's. */
static uint32_t read_mark(const char *name, const char *launched_job)
{
    const char *job = env_text("SHOAL_JOB"), *mark = env_text("SHOAL_MARK");
    return job && strcmp(job, name) == 0 ? launched_mark(mark ? mark : launched_job) : 0;
}

/* Neither the program nor a launcher says how many ranks there are, or which one this is: it is the
 * only one, of a job that no other process means. */
static bool shoal_is_alone(const struct shoal_options *options, struct launched *launched)
{
    uint64_t mark;
    if (options->world_size != 0 || options->rank_plus_1 != 0 || launched->world_size ||
        env_text("WORLD_SIZE") || env_text("RANK"))
        return false;
    if (getrandom(&mark, sizeof(mark), 0) != sizeof(mark))
        mark = clock_now_ns();
    snprintf(launched->job, sizeof(launched->job), "alone-%ld-%016" PRIx64, (long)getpid(), mark);
    return true;
}

static int read_settings(const struct shoal_options *given, struct job_settings *settings,
                         struct error *error)
{
    struct shoal_options options = {0};
    int code = options_read(&options, sizeof(options), given,
                            offsetof(struct shoal_options, job) + sizeof(options.job),
                            "shoal_options", error);
    long long world_size = 0, timeout_ms = 0, arena_bytes = 0;
    struct launched launched = {0};
    settings->newcomer = options.newcomer != 0;
    settings->recovery = settings->newcomer ? 0 : options.recovery;
    if (code == 0 && (options.recovery < -1 || options.recovery > 1))
        code = error_set(error, ERR_INVALID, "options.recovery: got %d, must be -1, 0 or 1",
                         options.recovery);
    if (settings->newcomer) /* what the environment says is of the job's first generation */
        options.world_size = MESSAGE_RANKS_MAX;
    if (code == 0 && options.world_size == 0 && !env_text("WORLD_SIZE"))
        launched_read(&launched);
    bool alone = code == 0 && shoal_is_alone(&options, &launched);
    if (code == 0)
        code = copy_text(settings->name, sizeof(settings->name), "the job's name", options.job,
                         "SHOAL_JOB", launched.job[0] ? launched.job : DEFAULT_JOB, error);
    /* On its way to the daemon its bytes would become '?', as those of another job. */
    if (code == 0 && !json_text_is_utf8(settings->name))
        code = error_set(error, ERR_INVALID, "the job's name is not UTF-8: \"%s\"", settings->name);
    if (code == 0)
        code = copy_text(settings->socket_path, sizeof(settings->socket_path), "the socket's path",
                         options.socket_path, "SHOAL_SOCKET", SHOAL_DEFAULT_SOCKET, error);
    settings->mark = read_mark(settings->name, launched.job);
    if (code == 0)
        code = read_integer(options.world_size, "world_size",
                            shoal_variable("WORLD_SIZE", launched.world_size), 1, MESSAGE_RANKS_MAX,
                            0, &world_size, error);
    if (code == 0 && alone)
        world_size = 1;
    if (code == 0 && world_size == 0)
        code = error_set(error, ERR_INVALID,
                         "a rank is given and the world size is not known: set options.world_size "
                         "or WORLD_SIZE");
    if (code == 0)
        code = read_integer(options.timeout_ms, "timeout_ms", "SHOAL_TIMEOUT_MS", 1,
                            MESSAGE_TIMEOUT_MAX_MS, DEFAULT_TIMEOUT_MS, &timeout_ms, error);
    if (code == 0 && options.arena_bytes > LARGEST_ARENA_BYTES)
        code = error_set(error, ERR_INVALID,
                         "options.arena_bytes: got %" PRIu64 ", must be at most %llu",
                         options.arena_bytes, LARGEST_ARENA_BYTES);
    if (code == 0)
        code = read_integer((long long)options.arena_bytes, "arena_bytes", "SHOAL_ARENA_BYTES",
                            ARENA_LEAST_BYTES, LARGEST_ARENA_BYTES, DEFAULT_ARENA_BYTES,
                            &arena_bytes, error);
    if (code == 0)
        code = shoal_read_rank(options.rank_plus_1, "rank_plus_1",
                               shoal_variable("RANK", launched.rank), (int)world_size,
                               &settings->rank, error);
    if (code == 0)
        code = shoal_read_rank(options.local_rank_plus_1, "local_rank_plus_1",
                               shoal_variable("LOCAL_RANK", launched.local_rank), (int)world_size,
                               &settings->local_rank, error);
    if (settings->newcomer)
        settings->rank = options.rank_plus_1 - 1;
    settings->socket_given = options.socket_path || env_text("SHOAL_SOCKET");
    settings->world_size = (int)world_size;
    settings->timeout_ms = (int)timeout_ms;
    settings->deadline_ns = clock_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    settings->arena_bytes = (uint64_t)arena_bytes;
    return code;
}

/* --- open and close ------------------------------------------------------------------------ */

/* Add to the error the line that starts a daemon and this program. It applies where a launcher that
 * knows nothing of shoal has started the process on a node without a daemon. */
static int say_line(const struct job_settings *settings, int code, struct error *error)
{
    char line[LAUNCHED_LINE_BYTES];
    struct client probe;
    if (code != ERR_DISCONNECTED || settings->socket_given || !launched_line(line))
        return code;
    if (client_connect(&probe, settings->socket_path, settings->deadline_ns, NULL) == 0) {
        client_close(&probe); /* the daemon is there, and has ended the connection */
        return code;
    }
    return error_set(error, code, "no daemon answers at %s; start this program with one: %s",
                     settings->socket_path, line);
}

int shoal_open(const struct shoal_options *options, shoal_job **job)
{
    struct error error;
    if (!job) {
        error_set(&error, ERR_INVALID, "shoal_open: job is NULL");
        return error_text_keep(&error);
    }
    struct job_settings settings;
    struct shoal_job *made = NULL;
    int code = read_settings(options, &settings, &error);
    if (code == 0)
        code = say_line(&settings, job_create(&made, &settings, &error), &error);
    if (code == 0) {
        code = drive_start(made, &error);
        if (code < 0) {
            job_say_ending(made, error.text);
            job_destroy(made);
        }
    }
    if (code == 0 && settings.newcomer) {
        code = reconfigure_agree(made, settings.timeout_ms, &error);
        if (code < 0)
            shoal_close(made);
    }
    if (code < 0)
        return error_text_keep(&error);
    *job = made;
    return SHOAL_OK;
}

/* Say goodbye and wait for the answer, for a bounded time. */
static void shoal_leave(struct shoal_job *job)
{
    if (job->daemon_gone || job->abrupt || job->ending)
        return;
    struct message leave = {.type = MESSAGE_LEAVE};
    uint64_t deadline_ns = clock_now_ns() + JOB_LEAVE_MS * NS_PER_MS;
    /* Nobody else is in a call any more. */
    if (client_send(&job->client, &leave, NULL, 0, deadline_ns, NULL) < 0)
        return;
    struct message answer;
    bool left = false;
    while (!left && client_wait(&job->client, &answer, deadline_ns, NULL) == 0) {
        left = answer.type == MESSAGE_LEFT;
        message_clear(&answer);
    }
}

int shoal_close(shoal_job *job)
{
    if (!job)
        return SHOAL_OK;
    struct error error;
    if (job_check(job, &error) < 0)
        return error_text_keep(&error);
    error_set(&error, ERR_STATE, "the job was closed before the collective was complete");
    drive_stop(job, &error);
    pthread_mutex_lock(&job->lock);
    drive_device_stop(job);
    pthread_mutex_unlock(&job->lock);
    fusion_free_all(job);
    shoal_leave(job);
    job_destroy(job);
    return SHOAL_OK;
}

int shoal_set_ending(shoal_job *job, const char *why)
{
    struct error error;
    int code = why && why[0] ? job_check(job, &error)
                             : error_set(&error, ERR_INVALID, "shoal_set_ending: no reason");
    if (code == 0 && !json_text_is_utf8(why))
        code = error_set(&error, ERR_INVALID, "shoal_set_ending: the reason is not UTF-8");
    if (code < 0)
        return error_text_keep(&error);
    job_say_ending(job, why);
    pthread_mutex_lock(&job->lock);
    job->ending = true;
    pthread_mutex_unlock(&job->lock);
    return SHOAL_OK;
}

static int shoal_check_given(const struct shoal_job *job)
{
    struct error error;
    if (job)
        return SHOAL_OK;
    error_set(&error, ERR_INVALID, "the job is NULL");
    return error_text_keep(&error);
}

int shoal_rank(const shoal_job *job)
{
    int code = shoal_check_given(job);
    return code < 0 ? code : job->rank;
}

int shoal_world_size(const shoal_job *job)
{
    int code = shoal_check_given(job);
    return code < 0 ? code : job->world_size;
}

int shoal_local_rank(const shoal_job *job)
{
    int code = shoal_check_given(job);
    return code < 0 ? code : job->local_rank;
}

int shoal_local_size(const shoal_job *job)
{
    int code = shoal_check_given(job);
    return code < 0 ? code : job->local_size;
}

int shoal_node_count(const shoal_job *job)
{
    int code = shoal_check_given(job);
    return code < 0 ? code : job->node_count;
}

/* --- words --------------------------------------------------------------------------------- */

const char *shoal_error_text(void)
{
    return error_text_last()->text;
}

const char *shoal_result_name(int result)
{
    return error_name(result);
}

const char *shoal_version(void)
{
    return SHOAL_VERSION;
}

size_t shoal_dtype_bytes(enum shoal_dtype dtype)
{
    return dtype_bytes((unsigned)dtype);
}
