#include "tests/lib/cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/suite.h"
#include "worker/programs/shoalrun/launcher.h"

static void cluster_die(const char *what)
{
    perror(what);
    abort();
}

/* Linux gives connections none of these by its defaults: the port that a killed daemon leaves is
 * free until it is started again. */
#define PORT_LEAST 10000
#define PORT_COUNT 22000

/* -1: another has it. */
static int cluster_port_listen(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), again = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &again, sizeof(again)))
        cluster_die("tcp socket");
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 64) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Whichever is free. */
static int cluster_tcp_listen(uint16_t *port)
{
    uint16_t first;
    int fd = -1;
    if (getrandom(&first, sizeof(first), 0) != sizeof(first))
        cluster_die("random port");
    for (uint32_t i = 0; i < PORT_COUNT && fd < 0; i++) {
        *port = (uint16_t)(PORT_LEAST + (first + i) % PORT_COUNT);
        fd = cluster_port_listen(*port);
    }
    if (fd < 0)
        cluster_die("tcp socket");
    return fd;
}

static int cluster_unix_listen(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 64))
        cluster_die(path);
    return fd;
}

static void cluster_file_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    if (!file || fputs(text, file) < 0 || fclose(file))
        cluster_die(path);
}

/* With the configuration that is written. */
static void cluster_daemon_run(struct cluster *cluster, uint32_t node, int tcp, int local)
{
    struct cluster_node *self = &cluster->nodes[node];
    char path[256], log_path[256], tcp_text[16], local_text[16];
    snprintf(path, sizeof(path), "%s/%s.json", cluster->directory, self->name);
    snprintf(tcp_text, sizeof(tcp_text), "%d", tcp);
    snprintf(local_text, sizeof(local_text), "%d", local);
    const char *argv[] = {CLUSTER_BIN "shoald", "--config", path, "--listen-fd", tcp_text,
                          "--socket-fd",        local_text, NULL};
    const char *environment[] = {"IPATH_NO_BACKTRACE=1", "HFI_NO_BACKTRACE=1", NULL};
    int kept[] = {tcp, local};
    snprintf(log_path, sizeof(log_path), "%s/%s.log", cluster->directory, self->name);
    struct process_start start = {.argv = argv,
                                  .environment = environment,
                                  .errors_path = log_path,
                                  .inherited = kept,
                                  .inherited_count = 2};
    self->daemon = process_start(&start);
}

static void cluster_daemon_start(struct cluster *cluster, uint32_t node,
                                 const struct launch_config *config, int tcp, int local)
{
    struct cluster_node *self = &cluster->nodes[node];
    char path[256], *text;
    struct error error;
    if (launch_config_text(config, node, self->socket_path, &text, &error)) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    snprintf(path, sizeof(path), "%s/%s.json", cluster->directory, self->name);
    cluster_file_write(path, text);
    free(text);
    cluster_daemon_run(cluster, node, tcp, local);
}

/* A machine that is short of processors may hold a daemon up for seconds: that is not what a test
 * that does not ask for it is about. */
static char *extra_of_tests(const char *extra)
{
    json_t *all = json_pack("{s:{s:i}}", "timeouts", "peer_ms", CLUSTER_PEER_MS);
    json_t *given = extra ? json_loads(extra, 0, NULL) : json_object();
    if (!all || !given || json_object_update_recursive(all, given) != 0)
        cluster_die("configuration");
    char *text = json_dumps(all, 0);
    json_decref(given);
    json_decref(all);
    return text;
}

struct cluster *cluster_start(uint32_t nodes, const char *extra)
{
    return cluster_start_with_servers(nodes, 0, extra);
}

struct cluster *cluster_start_with_servers(uint32_t worker_nodes, uint32_t cpu_nodes,
                                           const char *extra)
{
    uint32_t nodes = worker_nodes + cpu_nodes;
    struct cluster *cluster = calloc(1, sizeof(*cluster));
    char *text = extra_of_tests(extra);
    if (!cluster || !text || nodes > CLUSTER_NODES_MAX)
        cluster_die("cluster");
    cluster->directory = suite_make_directory();
    cluster->count = nodes;
    int tcp[CLUSTER_NODES_MAX], local[CLUSTER_NODES_MAX];
    uint16_t ports[CLUSTER_NODES_MAX] = {0};
    for (uint32_t i = 0; i < nodes; i++) {
        struct cluster_node *node = &cluster->nodes[i];
        launch_node_name(node->name, worker_nodes, i);
        snprintf(node->socket_path, sizeof(node->socket_path), "%.80s/%.20s.sock",
                 cluster->directory, node->name);
        tcp[i] = cluster_tcp_listen(&ports[i]);
        node->port = ports[i];
        local[i] = cluster_unix_listen(node->socket_path);
    }
    struct launch_config config = {.worker_nodes = worker_nodes,
                                   .cpu_nodes = cpu_nodes,
                                   .ports = ports,
                                   .extra = text,
                                   .extra_name = "extra"};
    for (uint32_t i = 0; i < nodes; i++)
        cluster_daemon_start(cluster, i, &config, tcp[i], local[i]);
    for (uint32_t i = 0; i < nodes; i++) {
        close(tcp[i]);
        close(local[i]);
    }
    free(text);
    return cluster;
}

void cluster_kill(struct cluster *cluster, uint32_t node)
{
    struct cluster_node *self = &cluster->nodes[node];
    process_signal(self->daemon, SIGKILL);
    process_wait(self->daemon, CLUSTER_PATIENCE_MS);
    unlink(self->socket_path);
}

void cluster_restart(struct cluster *cluster, uint32_t node)
{
    struct cluster_node *self = &cluster->nodes[node];
    char log_path[256], old_path[256];
    snprintf(log_path, sizeof(log_path), "%s/%s.log", cluster->directory, self->name);
    snprintf(old_path, sizeof(old_path), "%s/%s.log.before", cluster->directory, self->name);
    if (rename(log_path, old_path))
        cluster_die(log_path);
    process_free(self->daemon);
    int tcp = cluster_port_listen(self->port), local = cluster_unix_listen(self->socket_path);
    if (tcp < 0)
        cluster_die("the port of a daemon that is started again");
    cluster_daemon_run(cluster, node, tcp, local);
    close(tcp);
    close(local);
}

int cluster_stop(struct cluster *cluster)
{
    int wrong = 0;
    for (uint32_t i = 0; i < cluster->count; i++)
        process_signal(cluster->nodes[i].daemon, SIGTERM);
    for (uint32_t i = 0; i < cluster->count; i++) {
        int code = process_wait(cluster->nodes[i].daemon, CLUSTER_PATIENCE_MS);
        if (code != 0) {
            printf("%s: exit code %d; its log:\n%s", cluster->nodes[i].name, code,
                   cluster_log(cluster, i));
            fflush(stdout);
            wrong++;
        }
    }
    return wrong;
}

void cluster_free(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++)
        process_free(cluster->nodes[i].daemon);
    suite_remove_directory(cluster->directory);
    free(cluster);
}

const char *cluster_log(struct cluster *cluster, uint32_t node)
{
    return process_errors(cluster->nodes[node].daemon);
}

bool cluster_wait_log(struct cluster *cluster, uint32_t node, const char *text, int timeout_ms)
{
    if (process_wait_text(cluster->nodes[node].daemon, text, timeout_ms))
        return true;
    printf("%s has not logged \"%s\":\n%s", cluster->nodes[node].name, text,
           cluster_log(cluster, node));
    fflush(stdout);
    return false;
}

struct process *cluster_shoalctl(struct cluster *cluster, uint32_t node, const char *const *words)
{
    const char *argv[16] = {CLUSTER_BIN "shoalctl", "--socket", cluster->nodes[node].socket_path};
    for (uint32_t i = 0; i < 12 && words[i]; i++)
        argv[3 + i] = words[i];
    return process_run(argv);
}

json_t *cluster_status(struct cluster *cluster, uint32_t node)
{
    const char *words[] = {"status", "--json", NULL};
    struct process *process = cluster_shoalctl(cluster, node, words);
    json_t *status = NULL;
    if (process_wait(process, CLUSTER_PATIENCE_MS) == 0)
        status = json_loads(process_output(process), 0, NULL);
    process_free(process);
    return status;
}

bool cluster_wait_status(struct cluster *cluster, uint32_t node,
                         bool (*accept)(const json_t *status), int timeout_ms)
{
    int64_t until = process_now_ms() + timeout_ms;
    for (;;) {
        json_t *status = cluster_status(cluster, node);
        bool accepted = status && accept(status);
        bool over = process_now_ms() >= until;
        if (!accepted && over) {
            printf("the status of %s is not as waited for:\n", cluster->nodes[node].name);
            json_dumpf(status, stdout, JSON_INDENT(2));
            printf("\n");
            fflush(stdout); /* a test that fails leaves without */
        }
        json_decref(status);
        if (accepted || over)
            return accepted;
    }
}

uint16_t cluster_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    return ntohs(address.sin_port);
}

char *cluster_http(uint16_t port, const char *request)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = CLUSTER_PATIENCE_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), (int)strlen(request));
    size_t room = 1 << 20, used = 0;
    char *answer = calloc(1, room);
    ssize_t count;
    while ((count = recv(fd, answer + used, room - 1 - used, 0)) > 0)
        used += (size_t)count;
    ck_assert_int_eq(count, 0);
    close(fd);
    return answer;
}

struct process *cluster_worker(struct cluster *cluster, uint32_t node, const char *job,
                               uint32_t rank, uint32_t world_size, const char *const *argv)
{
    char variables[5][192];
    snprintf(variables[0], sizeof(variables[0]), "RANK=%u", rank);
    snprintf(variables[1], sizeof(variables[1]), "WORLD_SIZE=%u", world_size);
    snprintf(variables[2], sizeof(variables[2]), "SHOAL_JOB=%s", job);
    snprintf(variables[3], sizeof(variables[3]), "SHOAL_SOCKET=%s",
             cluster->nodes[node].socket_path);
    snprintf(variables[4], sizeof(variables[4]), "SHOAL_TIMEOUT_MS=%d", CLUSTER_PATIENCE_MS);
    const char *environment[] = {variables[0], variables[1], variables[2],
                                 variables[3], variables[4], NULL};
    struct process_start start = {.argv = argv, .environment = environment};
    return process_start(&start);
}

void cluster_job(struct cluster *cluster, const char *job, uint32_t ranks_per_node,
                 const char *const *argv, struct process **workers)
{
    uint32_t world_size = cluster->count * ranks_per_node;
    for (uint32_t rank = 0; rank < world_size; rank++)
        workers[rank] = cluster_worker(cluster, rank / ranks_per_node, job, rank, world_size, argv);
}

int cluster_job_end(struct process **workers, uint32_t count)
{
    int wrong = 0;
    for (uint32_t rank = 0; rank < count; rank++) {
        int code = process_wait(workers[rank], CLUSTER_PATIENCE_MS);
        if (code != 0) {
            printf("rank %u: exit code %d\n%s%s", rank, code, process_output(workers[rank]),
                   process_errors(workers[rank]));
            fflush(stdout);
            wrong++;
        }
        process_free(workers[rank]);
        workers[rank] = NULL;
    }
    return wrong;
}

void cluster_worker_says(struct process *worker, const char *text)
{
    ck_assert_msg(process_wait_text(worker, text, CLUSTER_PATIENCE_MS),
                  "no \"%s\" in: %.900s %.500s", text, process_output(worker),
                  process_errors(worker));
}

void cluster_process_kill(struct process *process)
{
    process_signal(process, SIGKILL);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 128 + SIGKILL);
}
