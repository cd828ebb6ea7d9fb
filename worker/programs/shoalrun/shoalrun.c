/* shoalrun: starts the ranks of a job on this machine, and daemons where none is running. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/oom_score.h"
#include "worker/programs/shoalrun/embedded.h"
#include "worker/programs/shoalrun/launcher.h"
#include "worker/programs/shoalrun/page.h"
#include "worker/programs/shoalrun/supervisor.h"
#include "worker/programs/step/serve.h"

#define EXIT_USAGE 2
#define ANSWER_S 3 /* how long a daemon's socket may take to accept */

struct run {
    struct launch_options options;
    char job[LAUNCH_JOB_BYTES];
    const char *socket_path; /* of the running daemon, or NULL: embedded */
    struct embedded embedded;
    struct supervisor supervisor;
    struct child *children;
    uint32_t daemon_count;
    char *const *environment; /* this process's */
};

static int daemon_answers(const char *path, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length >= sizeof(address.sun_path))
        return error_set(error, ERR_INVALID, "%s is too long for a socket", path);
    memcpy(address.sun_path, path, length + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_set_errno(error, errno, "cannot open a socket");
    /* That of a daemon that is stopped makes connect wait once its backlog is full. */
    struct timeval limit = {.tv_sec = ANSWER_S};
    int result = 0;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)))
        result = error_set_errno(error, errno, "cannot set up a socket");
    else if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
        result = errno == EAGAIN
                     ? error_set(error, ERR_TIMEOUT, "the daemon at %s does not answer", path)
                     : error_set_errno(error, errno, "no daemon answers at %s", path);
    close(fd);
    return result;
}

static int daemon_choose(struct run *run, char *const *environment, struct error *error)
{
    const char *path;
    enum launch_mode mode =
        launch_mode(&run->options, launch_variable(environment, "SHOAL_SOCKET"), &path);
    if (mode == LAUNCH_EMBEDDED)
        return 0;
    int result = daemon_answers(path, error);
    if (result && mode == LAUNCH_GIVEN)
        return result;
    run->socket_path = result ? NULL : path;
    return 0;
}

/* A pipe for the output of one worker; the writing end is returned. */
static int output_open(struct child *child, int *writer, struct error *error)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return error_set_errno(error, errno, "cannot open a pipe");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    child->output = ends[0];
    *writer = ends[1];
    return 0;
}

static int shoalrun_worker_start(struct run *run, uint32_t rank, char *const *environment,
                                 int null_input, struct error *error)
{
    struct launch_worker worker = launch_worker(&run->options, rank);
    struct child *child = &run->children[run->daemon_count + rank];
    const char *socket_path = run->socket_path;
    child->kind = CHILD_WORKER;
    child->rank = rank;
    child->name = "this node";
    if (!socket_path) {
        socket_path = run->embedded.daemons[worker.node].socket_path;
        child->name = run->embedded.daemons[worker.node].name;
    }
    char **own = launch_worker_environment(environment, &worker, run->job, socket_path,
                                           run->options.in_place_of);
    if (!own)
        return error_set(error, ERR_MEMORY, "out of memory");
    int writer = -1, result = 0;
    if (run->options.tag_output)
        result = output_open(child, &writer, error);
    struct child_start start = {
        .program = run->options.command[0],
        .argv = run->options.command,
        .environment = own,
        .input = rank == 0 ? -1 : null_input, /* the terminal is rank 0's */
        .output = writer,
        .oom_score = OOM_SCORE_RANK, /* sooner than the daemon, which has all arenas mapped */
        /* A group that the terminal does not know could not read from it. */
        .own_group = rank != 0 || !isatty(STDIN_FILENO),
    };
    if (result == 0)
        result = supervisor_start(&run->supervisor, child, &start, error);
    if (writer >= 0)
        close(writer);
    free(own);
    return result;
}

static int workers_start(struct run *run, char *const *environment, struct error *error)
{
    int null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_input < 0)
        return error_set_errno(error, errno, "cannot open /dev/null");
    int result = 0;
    for (uint32_t rank = 0; result == 0 && rank < launch_world_size(&run->options); rank++)
        result = shoalrun_worker_start(run, rank, environment, null_input, error);
    close(null_input);
    return result;
}

static int daemons_start(struct run *run, char *const *environment, struct error *error)
{
    char **own = launch_daemon_environment(environment);
    if (!own)
        return error_set(error, ERR_MEMORY, "out of memory");
    int result = embedded_start(&run->embedded, &run->supervisor, run->options.verbose, own, error);
    free(own);
    return result;
}

static int daemon_start_again(void *context, uint32_t index, struct error *error)
{
    struct run *run = context;
    char **own = launch_daemon_environment(run->environment);
    if (!own)
        return error_set(error, ERR_MEMORY, "out of memory");
    int result =
        embedded_restart(&run->embedded, index, &run->supervisor, run->options.verbose, own, error);
    free(own);
    return result;
}

/* Everything between the blocking of signals and their release. */
static int run_supervised(struct run *run, char *const *environment, struct error *error)
{
    const char *parent = launch_variable(environment, "TMPDIR");
    int result = 0;
    if (!run->socket_path) {
        result = embedded_prepare(&run->embedded, &run->options,
                                  parent && *parent ? parent : "/tmp", error);
        if (result == 0)
            result = daemons_start(run, environment, error);
        if (run->embedded.recovers)
            run->supervisor.restart = daemon_start_again;
        run->supervisor.restart_context = run;
    }
    if (result == 0 && run->options.page) {
        result = page_announce(
            run->socket_path ? run->socket_path : run->embedded.daemons[0].socket_path, error);
        if (result)
            embedded_print_logs(&run->embedded); /* they say why a daemon does not answer */
    }
    if (result == 0)
        result = workers_start(run, environment, error);
    if (result == 0) {
        supervisor_wait_workers(&run->supervisor);
        supervisor_stop_daemons(&run->supervisor);
        if (run->supervisor.exit_code)
            embedded_print_logs(&run->embedded);
    }
    return result;
}

static int run_job(struct run *run, char *const *environment, struct error *error)
{
    run->environment = environment;
    run->daemon_count =
        run->socket_path ? 0
                         : (run->options.nodes ? run->options.nodes : 1) + run->options.cpu_nodes;
    uint32_t count = run->daemon_count + launch_world_size(&run->options);
    run->children = calloc(count, sizeof(*run->children));
    if (!run->children)
        return error_set(error, ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < count; i++)
        run->children[i].output = -1;
    int result = supervisor_init(&run->supervisor, run->children, count, run->options.timeout_s,
                                 run->options.grace_s, error);
    if (result == 0) {
        result = run_supervised(run, environment, error);
        supervisor_clear(&run->supervisor);
        embedded_clear(&run->embedded);
    }
    free(run->children);
    return result;
}

static void job_name(struct run *run)
{
    uint64_t random = 0;
    if (run->options.job)
        snprintf(run->job, sizeof(run->job), "%s", run->options.job);
    else if (getrandom(&random, sizeof(random), 0) >= 0)
        launch_job_name(run->job, (uint32_t)getpid(), random);
}

int main(int argc, char **argv, char **environment)
{
    struct run run = {.embedded = {.alive_read = -1, .alive_write = -1, .page = -1, .lock = -1}};
    struct error error = {0};
    if (launch_options_parse(argc, argv, &run.options, &error)) {
        fprintf(stderr, "shoalrun: %s\nTry 'shoalrun --help'.\n", error.text);
        return EXIT_USAGE;
    }
    if (run.options.help || run.options.version) {
        fputs(run.options.help ? launch_usage() : "shoalrun " SHOAL_VERSION "\n", stdout);
        return EXIT_SUCCESS;
    }
    if (run.options.step_folder) {
        char program[PATH_MAX];
        embedded_program(program);
        if (step_serve(run.options.step_folder, program, &error) == 0)
            return EXIT_SUCCESS;
        fprintf(stderr, "shoalrun: %s\n", error.text);
        return EXIT_FAILURE;
    }
    job_name(&run);
    if (daemon_choose(&run, environment, &error) || run_job(&run, environment, &error)) {
        fprintf(stderr, "shoalrun: %s\n", error.text);
        return EXIT_FAILURE;
    }
    return run.supervisor.exit_code;
}
