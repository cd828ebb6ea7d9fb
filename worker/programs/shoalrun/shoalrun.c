/* shoalrun: starts the ranks of a job on this machine, and daemons where none is running. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/base/oom_score.h"
#include "common/format/message.h"
#include "worker/job/client.h"
#include "worker/programs/shoalrun/beside.h"
#include "worker/programs/shoalrun/embedded.h"
#include "worker/programs/shoalrun/launcher.h"
#include "worker/programs/shoalrun/nodes.h"
#include "worker/programs/shoalrun/page.h"
#include "worker/programs/shoalrun/run_secret.h"
#include "worker/programs/shoalrun/serve.h"
#include "worker/programs/shoalrun/supervisor.h"

#define EXIT_USAGE 2
#define ANSWER_S 3 /* how long a daemon's socket may take to accept */

struct run {
    struct launch_options options;
    struct nodes nodes;
    char job[LAUNCH_JOB_BYTES], mark[LAUNCH_JOB_BYTES];
    const char *socket_path; /* of the running daemon, or NULL: embedded */
    struct folder folder;
    struct embedded embedded;
    struct supervisor supervisor;
    struct child *children;
    uint32_t daemon_count;
    char *const *environment; /* this process's */
    char jax_library[PATH_MAX];
};

static bool run_is_for_jax(const struct run *run)
{
    return run->options.in_place_of && strcmp(run->options.in_place_of, "jax") == 0;
}

static int daemon_answers(const char *path, struct error *error)
{
    struct client client;
    int result = client_connect(&client, path, clock_now_ns() + ANSWER_S * NS_PER_S, error);
    if (result == 0)
        client_close(&client);
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

static int shoalrun_worker_start(struct run *run, uint32_t index, char *const *environment,
                                 int null_input, struct error *error)
{
    struct launch_worker worker = launch_worker(&run->options, index);
    struct child *child = &run->children[run->daemon_count + index];
    const char *socket_path = run->socket_path;
    child->kind = CHILD_WORKER;
    child->rank = worker.rank;
    child->name = "this node";
    if (!socket_path) {
        socket_path = run->embedded.daemons[worker.node].socket_path;
        child->name = run->embedded.daemons[worker.node].name;
    }
    struct launch_told told = {
        .job = run->job,
        .socket_path = socket_path,
        .folder = run->folder.path,
        .mark = run->mark,
        .in_place_of = run->options.in_place_of,
        .jax_library = run_is_for_jax(run) ? run->jax_library : NULL,
        .master = run->nodes.count > 1 ? run->nodes.hosts[0].address : NULL,
        .master_port = (uint16_t)(run->nodes.port + 1),
    };
    char **own = launch_worker_environment(environment, &worker, &told);
    if (!own)
        return error_set(error, ERR_MEMORY, "out of memory");
    int writer = -1, result = 0;
    if (run->options.tag_output)
        result = output_open(child, &writer, error);
    struct child_start start = {
        .program = run->options.command[0],
        .argv = run->options.command,
        .environment = own,
        .input = index == 0 ? -1 : null_input, /* the terminal is this one's */
        .output = writer,
        .oom_score = OOM_SCORE_RANK, /* sooner than the daemon, which has all arenas mapped */
        /* A group that the terminal does not know could not read from it. */
        .own_group = index != 0 || !isatty(STDIN_FILENO),
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
    for (uint32_t i = 0; result == 0 && i < launch_local_count(&run->options); i++)
        result = shoalrun_worker_start(run, i, environment, null_input, error);
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

/* One page shows all nodes: the first one's. */
static bool page_is_ours(const struct run *run)
{
    return run->options.page && run->nodes.self == 0;
}

/* The sockets and the files of the daemons that this machine gets. */
static int daemons_prepare(struct run *run, struct error *error)
{
    const struct launch_options *options = &run->options;
    const struct nodes *nodes = &run->nodes;
    bool several = nodes->count > 1;
    uint16_t ports[LAUNCH_MACHINES_MAX];
    char secret[RUN_SECRET_BYTES], name[LAUNCH_JOB_BYTES], host[LAUNCH_HOST_BYTES] = "";
    gethostname(host, sizeof(host) - 1);
    launch_host_name(host, name);
    struct launch_config config = {
        .name = name,
        .worker_nodes = several ? nodes->count : (options->nodes ? options->nodes : 1),
        .cpu_nodes = options->cpu_nodes,
        .provider = options->provider,
    };
    if (several) {
        for (uint32_t i = 0; i < nodes->count; i++)
            ports[i] = nodes->port;
        config.hosts = nodes->hosts;
        config.ports = ports;
        config.listen = nodes->listen;
        config.fabric = nodes->address;
        config.fabric_port = (uint16_t)(nodes->port + 2);
        config.mark = nodes->mark;
    }
    int result =
        page_is_ours(run) ? page_reserve(&run->embedded.page, &config.page_port, error) : 0;
    if (result == 0)
        result = embedded_listen(&run->embedded, &run->folder, &config, several ? nodes->self : 0,
                                 run->daemon_count, error);
    if (result == 0)
        result = several ? run_secret_of_nodes(nodes->mark, secret, error)
                         : run_secret_make(secret, error);
    if (result == 0)
        result = embedded_configure(&run->embedded, secret, options->config_path, error);
    return result ? result : embedded_open_pipe(&run->embedded, error);
}

/* Everything between the blocking of signals and their release. */
static int run_supervised(struct run *run, char *const *environment, struct error *error)
{
    int result = folder_make(&run->folder, launch_variable(environment, "TMPDIR"), error);
    if (result == 0 && !run->socket_path) {
        result = daemons_prepare(run, error);
        if (result == 0)
            result = daemons_start(run, environment, error);
        if (run->embedded.recovers)
            run->supervisor.restart = daemon_start_again;
        run->supervisor.restart_context = run;
    }
    if (result == 0 && page_is_ours(run)) {
        result = page_announce(
            run->socket_path ? run->socket_path : run->embedded.daemons[0].socket_path, error);
        if (result)
            embedded_print_logs(&run->embedded, NULL); /* they say why a daemon does not answer */
    }
    if (result == 0)
        result = workers_start(run, environment, error);
    if (result == 0) {
        supervisor_wait_workers(&run->supervisor);
        if (run->nodes.count > 1 && run->supervisor.exit_code == 0)
            supervisor_retire_daemons(&run->supervisor);
        supervisor_stop_daemons(&run->supervisor);
        embedded_print_logs(&run->embedded, &run->supervisor);
    }
    return result;
}

static int run_job(struct run *run, char *const *environment, struct error *error)
{
    run->environment = environment;
    run->daemon_count =
        run->socket_path ? 0
                         : (run->options.nodes ? run->options.nodes : 1) + run->options.cpu_nodes;
    uint32_t count = run->daemon_count + launch_local_count(&run->options);
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
        folder_remove(&run->folder);
    }
    free(run->children);
    return result;
}

/* The job's name, and the mark by which two runs of one name are told apart. */
static int run_name(struct run *run, struct error *error)
{
    uint64_t random = 0;
    const char *name = nodes_job(&run->options);
    if (name && strlen(name) >= sizeof(run->job))
        return error_set(error, ERR_INVALID, "SHOAL_JOB: must have 1 to %zu bytes",
                         sizeof(run->job) - 1);
    if (run->nodes.count > 1)
        snprintf(run->mark, sizeof(run->mark), "%s", run->nodes.mark);
    else if (getrandom(&random, sizeof(random), 0) == sizeof(random))
        launch_job_name(run->mark, (uint32_t)getpid(), random);
    else
        return error_set_errno(error, errno, "cannot get random bytes");
    snprintf(run->job, sizeof(run->job), "%s", name ? name : run->mark);
    return 0;
}

/* Find the nodes of the run, and what follows from them. */
static int nodes_choose(struct run *run, struct error *error)
{
    struct launch_options *options = &run->options;
    int result = nodes_read(&run->nodes, options, error);
    if (result)
        return result;
    options->machines = run->nodes.count;
    options->machine = run->nodes.self;
    if (!options->ranks_per_node)
        options->ranks_per_node = run->nodes.ranks ? run->nodes.ranks : 1;
    if ((uint64_t)options->machines * launch_local_count(options) > MESSAGE_RANKS_MAX)
        return error_set(error, ERR_INVALID, "%u ranks on each of %u nodes are more than %d",
                         launch_local_count(options), options->machines, MESSAGE_RANKS_MAX);
    return 0;
}

static int run_all(struct run *run, char *const *environment, struct error *error)
{
    int result = daemon_choose(run, environment, error);
    if (result == 0 && !run->socket_path && run->nodes.count > 1)
        result = nodes_find_address(&run->nodes, error);
    return result ? result : run_job(run, environment, error);
}

/* A descriptor of ours in the place of a closed one would get what is meant for a terminal. */
static void standard_streams_open(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

int main(int argc, char **argv, char **environment)
{
    struct run run = {.nodes = {.count = 1}, .folder = {.lock = -1}};
    struct error error = {0};
    embedded_init(&run.embedded);
    standard_streams_open();
    int result = launch_options_parse(argc, argv, &run.options, &error);
    if (result == 0 && (run.options.help || run.options.version)) {
        fputs(run.options.help ? launch_usage() : "shoalrun " SHOAL_VERSION "\n", stdout);
        return EXIT_SUCCESS;
    }
    if (result == 0 && (run.options.print || run_is_for_jax(&run)))
        result = beside_find_jax_library(run.jax_library, &error);
    if (result == 0 && run.options.print) {
        puts(run.jax_library);
        return EXIT_SUCCESS;
    }
    if (result == 0 && run.options.serve)
        return serve(&run.options, environment) ? EXIT_FAILURE : EXIT_SUCCESS;
    if (result == 0)
        result = nodes_choose(&run, &error);
    if (result == 0)
        result = run_name(&run, &error);
    if (result) {
        nodes_clear(&run.nodes);
        fprintf(stderr, "shoalrun: %s\nTry 'shoalrun --help'.\n", error.text);
        return EXIT_USAGE;
    }
    result = run_all(&run, environment, &error);
    nodes_clear(&run.nodes);
    if (result) {
        fprintf(stderr, "shoalrun: %s\n", error.text);
        return EXIT_FAILURE;
    }
    return run.supervisor.exit_code;
}
