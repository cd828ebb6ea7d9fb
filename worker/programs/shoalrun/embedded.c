#include "worker/programs/shoalrun/embedded.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/env.h"
#include "common/config/config.h"
#include "worker/job/daemon_log.h"
#include "worker/programs/shoalrun/beside.h"
#include "worker/programs/shoalrun/nodes.h"

#define EXTRA_BYTES_MAX (1u << 20)

static int embedded_tcp_listen(const struct embedded *embedded, struct embedded_daemon *daemon,
                               struct error *error)
{
    const char *host = embedded->config.listen ? embedded->config.listen : "127.0.0.1";
    struct sockaddr_storage address;
    socklen_t bytes = nodes_parse_address(host, *daemon->port, &address);
    if (bytes == 0)
        return error_set(error, ERR_INVALID, "\"%s\" is no address to listen on", host);
    /* Connections of a daemon that has ended may not be forgotten yet when the next one gets its
     * port. They allow that if their listener had SO_REUSEADDR; a new port must be nobody else's.
     */
    int again = *daemon->port != 0, always = 1, only = 0;
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    daemon->tcp_socket = fd;
    if (address.ss_family == AF_INET6 && fd >= 0)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &again, sizeof(again)) ||
        bind(fd, (struct sockaddr *)&address, bytes) || listen(fd, SOMAXCONN) ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &always, sizeof(always)) ||
        getsockname(fd, (struct sockaddr *)&address, &bytes))
        return errno == EADDRINUSE && embedded->config.hosts
                   ? error_set(error, ERR_REFUSED,
                               "port %u of this node is taken, by another run of this mark (%s) or "
                               "another program: SHOAL_PORT names another port, the same on all "
                               "nodes",
                               *daemon->port, embedded->config.mark)
                   : error_set_errno(error, errno, "cannot listen on %s, port %u", host,
                                     *daemon->port);
    /* The port is at the same place in both families. */
    *daemon->port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    return 0;
}

static int embedded_unix_listen(struct embedded_daemon *daemon, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, daemon->socket_path, sizeof(address.sun_path));
    daemon->unix_socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (daemon->unix_socket < 0 ||
        bind(daemon->unix_socket, (struct sockaddr *)&address, sizeof(address)) ||
        listen(daemon->unix_socket, SOMAXCONN))
        return error_set_errno(error, errno, "cannot listen on %s", daemon->socket_path);
    return 0;
}

static int embedded_file_read(const char *path, char **text, struct error *error)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return error_set_errno(error, errno, "cannot open %s", path);
    char *content = calloc(1, EXTRA_BYTES_MAX + 1);
    size_t bytes = content ? fread(content, 1, EXTRA_BYTES_MAX, file) : 0;
    int result = 0;
    if (!content)
        result = error_set(error, ERR_MEMORY, "out of memory");
    else if (ferror(file))
        result = error_set_errno(error, errno, "cannot read %s", path);
    else if (bytes == EXTRA_BYTES_MAX)
        result = error_set(error, ERR_CONFIG, "%s: larger than 1 MiB", path);
    fclose(file);
    if (result)
        free(content);
    else
        *text = content;
    return result;
}

void embedded_init(struct embedded *embedded)
{
    *embedded = (struct embedded){.alive_read = -1, .alive_write = -1, .page = -1};
}

int embedded_listen(struct embedded *embedded, const struct folder *folder,
                    const struct launch_config *config, uint32_t first, uint32_t count,
                    struct error *error)
{
    uint32_t all = config->worker_nodes + config->cpu_nodes;
    embedded->folder = folder;
    embedded->config = *config;
    embedded->first = first;
    embedded->daemons = calloc(count, sizeof(*embedded->daemons));
    embedded->ports = calloc(all, sizeof(*embedded->ports));
    if (!embedded->daemons || !embedded->ports)
        return error_set(error, ERR_MEMORY, "out of memory");
    if (config->ports)
        memcpy(embedded->ports, config->ports, all * sizeof(*embedded->ports));
    embedded->config.ports = embedded->ports;
    embedded->count = count;
    for (uint32_t i = 0; i < count; i++)
        embedded->daemons[i].unix_socket = embedded->daemons[i].tcp_socket = -1;
    for (uint32_t i = 0; i < count; i++) {
        struct embedded_daemon *daemon = &embedded->daemons[i];
        char file[LAUNCH_JOB_BYTES];
        launch_node_name(file, config->worker_nodes, first + i);
        launch_config_name(config, first + i, daemon->name);
        daemon->port = &embedded->ports[first + i];
        snprintf(daemon->socket_path, sizeof(daemon->socket_path), "%s/%.10s.sock", folder->path,
                 file);
        snprintf(daemon->config_path, sizeof(daemon->config_path), "%s/%.10s.json", folder->path,
                 file);
        snprintf(daemon->log_path, sizeof(daemon->log_path), "%s/%.10s.log", folder->path, file);
        int result = embedded_tcp_listen(embedded, daemon, error);
        if (result == 0)
            result = embedded_unix_listen(daemon, error);
        if (result)
            return result;
    }
    return 0;
}

/* The user of the ranks says how much memory they may pin: the daemons are that user's. */
static int pinned_read(uint64_t *bytes, struct error *error)
{
    long long pinned_bytes = 0;
    int code =
        env_integer("SHOAL_PINNED_BYTES", 1, SHOAL_PINNED_BYTES_MAX, 0, &pinned_bytes, error);
    if (pinned_bytes > 0 && pinned_bytes < CONFIG_LEAST_PINNED_BYTES)
        pinned_bytes = CONFIG_LEAST_PINNED_BYTES;
    *bytes = (uint64_t)pinned_bytes;
    return code;
}

static int config_write(struct embedded *embedded, const struct launch_config *config, uint32_t i,
                        struct error *error)
{
    const struct embedded_daemon *daemon = &embedded->daemons[i];
    char *text;
    int result = launch_config_text(config, embedded->first + i, daemon->socket_path, &text, error);
    if (result)
        return result;
    result = folder_write(embedded->folder, strrchr(daemon->config_path, '/') + 1, text, error);
    embedded->recovers = launch_config_recovers(text);
    free(text);
    return result;
}

int embedded_configure(struct embedded *embedded, const char *secret, const char *extra_path,
                       struct error *error)
{
    char secret_path[FOLDER_BYTES + 16];
    char *extra = NULL;
    struct launch_config config = embedded->config;
    int result = extra_path ? embedded_file_read(extra_path, &extra, error) : 0;
    if (result == 0)
        result = pinned_read(&config.pinned_bytes, error);
    if (result == 0)
        result = folder_write(embedded->folder, "secret", secret, error);
    snprintf(secret_path, sizeof(secret_path), "%s/secret", embedded->folder->path);
    config.secret_path = secret_path;
    config.extra = extra;
    config.extra_name = extra_path;
    for (uint32_t i = 0; result == 0 && i < embedded->count; i++)
        result = config_write(embedded, &config, i, error);
    free(extra);
    return result;
}

int embedded_open_pipe(struct embedded *embedded, struct error *error)
{
    int alive[2];
    if (pipe2(alive, O_CLOEXEC))
        return error_set_errno(error, errno, "cannot open a pipe");
    embedded->alive_read = alive[0];
    embedded->alive_write = alive[1];
    return 0;
}

static int embedded_daemon_start(struct embedded *embedded, struct embedded_daemon *daemon,
                                 struct supervisor *supervisor, struct child *child, bool verbose,
                                 char *const *environment, struct error *error)
{
    char program[PATH_MAX], listen_text[16], socket_text[16], alive_text[16];
    beside_find("shoald", X_OK, program);
    snprintf(listen_text, sizeof(listen_text), "%d", daemon->tcp_socket);
    snprintf(socket_text, sizeof(socket_text), "%d", daemon->unix_socket);
    snprintf(alive_text, sizeof(alive_text), "%d", embedded->alive_read);
    char name[] = "shoald", option_config[] = "--config", option_listen[] = "--listen-fd",
         option_socket[] = "--socket-fd", option_alive[] = "--exit-with-parent-fd";
    char *argv[] = {name,          option_config, daemon->config_path, option_listen, listen_text,
                    option_socket, socket_text,   option_alive,        alive_text,    NULL};
    int log = -1, input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!verbose)
        log = open(daemon->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int result = 0;
    if (input < 0 || (!verbose && log < 0))
        result = error_set_errno(error, errno, "cannot open the log of %s", daemon->name);
    int lock = embedded->folder->lock;
    int kept[] = {daemon->tcp_socket, daemon->unix_socket, embedded->alive_read, lock};
    struct child_start start = {
        .program = program,
        .argv = argv,
        .environment = environment,
        .input = input,
        .output = verbose ? STDERR_FILENO : log,
        .inherited = kept,
        .inherited_count = lock >= 0 ? 4 : 3,
        .is_own = true,
        .own_group = true,
    };
    if (result == 0)
        result = supervisor_start(supervisor, child, &start, error);
    if (input >= 0)
        close(input);
    if (log >= 0)
        close(log);
    return result;
}

static void sockets_close(struct embedded_daemon *daemon)
{
    if (daemon->tcp_socket >= 0)
        close(daemon->tcp_socket);
    if (daemon->unix_socket >= 0)
        close(daemon->unix_socket);
    daemon->tcp_socket = daemon->unix_socket = -1;
}

int embedded_start(struct embedded *embedded, struct supervisor *supervisor, bool verbose,
                   char *const *environment, struct error *error)
{
    for (uint32_t i = 0; i < embedded->count; i++) {
        struct child *child = &supervisor->children[i];
        child->kind = CHILD_DAEMON;
        child->name = embedded->daemons[i].name;
        int result = embedded_daemon_start(embedded, &embedded->daemons[i], supervisor, child,
                                           verbose, environment, error);
        /* The daemon alone may hold them: once it is gone, connecting must fail. */
        sockets_close(&embedded->daemons[i]);
        if (result)
            return result;
    }
    return 0;
}

int embedded_restart(struct embedded *embedded, uint32_t i, struct supervisor *supervisor,
                     bool verbose, char *const *environment, struct error *error)
{
    struct embedded_daemon *daemon = &embedded->daemons[i];
    unlink(daemon->socket_path);
    int result = embedded_tcp_listen(embedded, daemon, error);
    if (result == 0)
        result = embedded_unix_listen(daemon, error);
    if (result == 0)
        result = embedded_daemon_start(embedded, daemon, supervisor, &supervisor->children[i],
                                       verbose, environment, error);
    sockets_close(daemon);
    return result;
}

void embedded_print_logs(const struct embedded *embedded, const struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < embedded->count; i++) {
        if (supervisor && !supervisor->children[i].failed)
            continue;
        char tail[DAEMON_LOG_TAIL_BYTES + 1], *rest = NULL;
        if (daemon_log_tail(embedded->daemons[i].log_path, tail) == 0)
            continue;
        fprintf(stderr, "shoalrun: the end of the log of %s:\n", embedded->daemons[i].name);
        for (char *line = strtok_r(tail, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            fprintf(stderr, "    %s\n", line);
    }
}

void embedded_clear(struct embedded *embedded)
{
    for (uint32_t i = 0; i < embedded->count; i++)
        sockets_close(&embedded->daemons[i]);
    if (embedded->alive_read >= 0)
        close(embedded->alive_read);
    if (embedded->alive_write >= 0)
        close(embedded->alive_write);
    if (embedded->page >= 0)
        close(embedded->page);
    free(embedded->daemons);
    free(embedded->ports);
    embedded_init(embedded);
}
