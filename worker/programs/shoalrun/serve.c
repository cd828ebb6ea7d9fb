#include "worker/programs/shoalrun/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text/number_text.h"
#include "worker/programs/shoalrun/embedded.h"
#include "worker/programs/shoalrun/nodes.h"
#include "worker/programs/shoalrun/run_secret.h"

struct served {
    const struct launch_options *options;
    uint32_t nodes, node;
    struct launch_host *hosts; /* [nodes] */
    struct folder folder;
    int ranks_read, ranks_write; /* of the pipe `alive` */
    struct embedded embedded;
    struct supervisor supervisor;
    struct child child;
    char secret[RUN_SECRET_BYTES];
};

/* Rank 0 may be bound to a core of its own; the daemon is all ranks'. The kernel leaves what the
 * node's control group allows. */
static void serve_unbind(void)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof(all));
    sched_setaffinity(0, sizeof(all), &all);
}

static int serve_open_pipes(struct served *served, struct error *error)
{
    char path[FOLDER_BYTES + 8];
    snprintf(path, sizeof(path), "%s/alive", served->folder.path);
    if (mkfifo(path, 0600))
        return error_set_errno(error, errno, "cannot make %s", path);
    /* Both ends are open from now on: no end is seen before a rank has come. */
    served->ranks_write = open(path, O_RDWR | O_CLOEXEC);
    served->ranks_read = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (served->ranks_write < 0 || served->ranks_read < 0)
        return error_set_errno(error, errno, "cannot open %s", path);
    return embedded_open_pipe(&served->embedded, error);
}

static int serve_listen(struct served *served, char *const *environment, struct error *error)
{
    served->hosts = calloc(served->nodes, sizeof(*served->hosts));
    if (!served->hosts)
        return error_set(error, ERR_MEMORY, "out of memory");
    for (uint32_t i = 0; i < served->nodes; i++)
        launch_node_name(served->hosts[i].name, served->nodes, i);
    struct launch_config config = {
        .worker_nodes = served->nodes, .hosts = served->hosts, .listen = served->options->serve};
    int code = folder_make(&served->folder, launch_variable(environment, "TMPDIR"), error);
    if (code == 0)
        code = embedded_listen(&served->embedded, &served->folder, &config, served->node, 1, error);
    return code ? code : serve_open_pipes(served, error);
}

/* --- what it is told ------------------------------------------------------------------------- */

/* 1, or 0: the input has ended. */
static int serve_hear(char *line, int bytes, struct error *error)
{
    if (!fgets(line, bytes, stdin))
        return 0;
    size_t length = strcspn(line, "\n");
    if (!line[length])
        return error_set(error, ERR_PROTOCOL, "a line of the input is too long");
    line[length] = 0;
    return 1;
}

static int serve_hear_node(struct served *served, uint32_t node, struct error *error)
{
    char line[LAUNCH_HOST_BYTES + 16 + LAUNCH_JOB_BYTES];
    uint64_t port;
    struct launch_host *host = &served->hosts[node];
    int code = serve_hear(line, sizeof(line), error);
    if (code <= 0)
        return code;
    char *rest = NULL, *address = strtok_r(line, " ", &rest), *number = strtok_r(NULL, " ", &rest);
    if (!address || !number || strlen(address) >= sizeof(host->address) || !*rest ||
        strlen(rest) >= sizeof(host->name) ||
        number_text_parse(number, 1, UINT16_MAX, &port, NULL) < 0)
        return error_set(error, ERR_PROTOCOL, "line %u of the input is no host, port and name",
                         node + 2);
    snprintf(host->address, sizeof(host->address), "%s", address);
    snprintf(host->name, sizeof(host->name), "%s", rest);
    if (node == served->node)
        snprintf(served->embedded.daemons[0].name, sizeof(served->embedded.daemons[0].name), "%s",
                 rest);
    served->embedded.ports[node] = (uint16_t)port;
    return 1;
}

static int serve_hear_all(struct served *served, struct error *error)
{
    int code = serve_hear(served->secret, sizeof(served->secret), error);
    for (uint32_t i = 0; code > 0 && i < served->nodes; i++)
        code = serve_hear_node(served, i, error);
    const char *interface = strchr(served->options->serve, '%');
    if (code > 0 && interface)
        nodes_set_interface(served->hosts, served->nodes, interface + 1);
    return code;
}

/* --- the daemon ------------------------------------------------------------------------------ */

static int serve_start(struct served *served, char *const *environment, struct error *error)
{
    char **own = launch_daemon_environment(environment);
    int code = own ? supervisor_init(&served->supervisor, &served->child, 1, 0, 1, error)
                   : error_set(error, ERR_MEMORY, "out of memory");
    if (code == 0)
        code = embedded_configure(&served->embedded, served->secret, NULL, error);
    if (code == 0)
        code = embedded_start(&served->embedded, &served->supervisor, false, own, error);
    free(own);
    return code;
}

/* Whoever has started us may wait for the end of what we have of its output. */
static void serve_leave(void)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = STDIN_FILENO; nothing >= 0 && fd <= STDERR_FILENO; fd++)
        dup2(nothing, fd);
    if (nothing > STDERR_FILENO)
        close(nothing);
}

/* The daemon stays for as long as ranks are here, or on another node; the log, as long as ranks may
 * read it. */
static void serve_attend(struct served *served)
{
    struct pollfd ranks = {.fd = served->ranks_read};
    close(served->ranks_write);
    supervisor_wait_daemons(&served->supervisor, served->ranks_read);
    supervisor_retire_daemons(&served->supervisor);
    supervisor_stop_daemons(&served->supervisor);
    while (poll(&ranks, 1, -1) < 0 && errno == EINTR)
        ;
}

static void serve_left_behind(struct served *served, char *const *environment)
{
    struct error error = {0};
    signal(SIGPIPE, SIG_IGN); /* whoever listens may be gone, and what is here is to be removed */
    setsid();
    serve_unbind();
    int code = serve_listen(served, environment, &error);
    if (code == 0) {
        printf("%u\n%s\n", *served->embedded.daemons[0].port, served->folder.path);
        fflush(stdout);
        code = serve_hear_all(served, &error);
    }
    bool begun = code > 0;
    if (begun)
        code = serve_start(served, environment, &error);
    if (code < 0)
        printf("error %d %s\n", code, error.text);
    else if (begun)
        printf("started\n");
    fflush(stdout);
    serve_leave();
    if (begun && code == 0)
        serve_attend(served);
    if (served->supervisor.count)
        supervisor_clear(&served->supervisor);
    embedded_clear(&served->embedded);
    folder_remove(&served->folder);
    free(served->hosts);
}

int serve(const struct launch_options *options, char *const *environment)
{
    struct served served = {.options = options, .folder = {.lock = -1}, .child = {.output = -1}};
    served.nodes = options->nodes ? options->nodes : 1;
    served.node = options->node_rank_plus_1 ? options->node_rank_plus_1 - 1 : 0;
    embedded_init(&served.embedded);
    if (served.node >= served.nodes) {
        fprintf(stderr, "shoalrun: --node-rank must be less than --nodes\n");
        return ERR_INVALID;
    }
    pid_t pid = fork();
    if (pid == 0) {
        serve_left_behind(&served, environment);
        exit(EXIT_SUCCESS);
    }
    if (pid < 0)
        fprintf(stderr, "shoalrun: cannot leave a process behind: %s\n", strerror(errno));
    return pid < 0 ? ERR_SYSTEM : 0;
}
