/* shoald, the daemon of a node. */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/auth/credentials.h"
#include "common/base/env.h"
#include "common/base/oom_score.h"
#include "common/base/sd_notify.h"
#include "common/base/unmapped.h"
#include "common/config/config.h"
#include "common/log/log.h"
#include "common/log/log_ring.h"
#include "common/memory/topology.h"
#include "common/text/number_text.h"
#include "common/transport/transport.h"
#include "server/control/control.h"
#include "server/engine/engine.h"
#include "server/sandbox/sandbox.h"

/* The daemon's own descriptors, and those for another daemon: generous. A daemon of one run has few
 * strangers, and a port for metrics only with its live page. */
#define OWN_DESCRIPTORS 128u
#define OWN_DESCRIPTORS_OF_RUN 36u
#define PAGE_DESCRIPTORS 17u
#define PEER_DESCRIPTORS 8u
/* The daemon lowers its default of workers to no fewer than these. */
#define LEAST_WORKERS 16u
#define LEAST_WORKERS_OF_RUN 2u

/* The manual of shoald names them. */
enum exit_code { EXIT_FINE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_CONFIG = 3 };

static const char usage[] =
    "usage: shoald [OPTION]...\n"
    "The daemon of a node: sums the buffers of its ranks, and moves them between\n"
    "nodes.\n"
    "\n"
    "Options:\n"
    "  -c, --config FILE         read the configuration (JSON) from FILE; without it\n"
    "                            every key has its default\n"
    "  --check-config FILE       say all that is wrong with a configuration, and end\n"
    "  --print-config            print the configuration in effect, and end\n"
    "  -h, --help                print this text, and end\n"
    "  --version                 print the version, and end\n"
    "\n"
    "For a launcher that starts the daemon with a job:\n"
    "  --listen-fd N             TCP socket, bound, in place of listen.address\n"
    "  --socket-fd N             Unix socket, bound, in place of socket.path\n"
    "  --exit-with-parent-fd N   end soon after the other end of this pipe is closed\n"
    "\n"
    "Signals:\n"
    "  SIGTERM, SIGINT           drain: take no new jobs, let running collectives\n"
    "                            finish (timeouts.drain_ms), end; a second signal\n"
    "                            ends the daemon at once\n"
    "  SIGHUP                    read secret_file, certificate_file, key_file and\n"
    "                            authority_file anew, for new connections\n"
    "  SIGUSR1                   drain when the other daemons have got SIGUSR1, too,\n"
    "                            drain, or are lost\n"
    "\n"
    "Exit status:\n"
    "  0    drained, or the question was answered\n"
    "  1    could not start, or was ended at once\n"
    "  2    wrong options\n"
    "  3    wrong configuration\n"
    "\n"
    "Read on: shoald(8), shoald.json(5), shoalctl(1).\n";

struct options {
    const char *config_path;
    bool check, print;
    int listen_fd, socket_fd, parent_fd;
};

struct daemon {
    struct options options;
    struct config config;
    bool config_loaded;
    struct log log;
    struct log_ring warnings;
    struct credentials credentials;
    struct topology *topology;
    char topology_text[512];
    int signal_fd;
    bool sockets_given; /* to a control thread */
    struct engine *engine;
    struct control *control;
    const char *notify_socket;
    uint32_t watchdog_ms;
};

/* --- options */

static int daemon_option_descriptor(const char *name, const char *text, int *fd)
{
    uint64_t number;
    if (number_text_parse(text, 0, INT_MAX, &number, NULL) < 0 || fcntl((int)number, F_GETFD) < 0) {
        fprintf(stderr, "shoald: --%s %s: not an open descriptor\n", name, text);
        return -1;
    }
    *fd = (int)number;
    return 0;
}

/* -1 to go on, else the exit code. */
static int daemon_parse_options(struct options *options, int argc, char **argv)
{
    static const struct option known[] = {
        {"config", required_argument, NULL, 'c'},
        {"check-config", required_argument, NULL, 'k'},
        {"print-config", no_argument, NULL, 'p'},
        {"listen-fd", required_argument, NULL, 'l'},
        {"socket-fd", required_argument, NULL, 's'},
        {"exit-with-parent-fd", required_argument, NULL, 'x'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    *options = (struct options){.listen_fd = -1, .socket_fd = -1, .parent_fd = -1};
    int option, result = 0;
    while ((option = getopt_long(argc, argv, "c:h", known, NULL)) != -1 && result == 0) {
        switch (option) {
        case 'c':
            options->config_path = optarg;
            break;
        case 'k':
            options->config_path = optarg;
            options->check = true;
            break;
        case 'p':
            options->print = true;
            break;
        case 'l':
            result = daemon_option_descriptor("listen-fd", optarg, &options->listen_fd);
            break;
        case 's':
            result = daemon_option_descriptor("socket-fd", optarg, &options->socket_fd);
            break;
        case 'x':
            result = daemon_option_descriptor("exit-with-parent-fd", optarg, &options->parent_fd);
            break;
        case 'v':
            printf("shoald %s\n", SHOAL_VERSION);
            return EXIT_FINE;
        case 'h':
            fputs(usage, stdout);
            return EXIT_FINE;
        default:
            result = -1;
            break;
        }
    }
    if (result == 0 && optind < argc) {
        fprintf(stderr, "shoald: '%s' is not an option\n", argv[optind]);
        result = -1;
    }
    if (result == 0)
        return -1;
    fputs("Try 'shoald --help'.\n", stderr);
    return EXIT_USAGE;
}

/* -1 to go on, else the exit code. */
static int daemon_load_config(struct daemon *daemon)
{
    const struct options *options = &daemon->options;
    struct config_problems problems = {0};
    int result;
    if (options->config_path)
        result = config_load(&daemon->config, options->config_path, &problems);
    else
        result = config_parse(&daemon->config, "{}", "defaults", &problems);
    daemon->config_loaded = true;
    for (uint32_t i = 0; i < problems.count; i++)
        fprintf(stderr, "%s\n", problems.lines[i]);
    config_problems_clear(&problems);
    if (result < 0)
        return EXIT_CONFIG;
    if (options->print) {
        char *text = config_print(&daemon->config);
        int written = text ? puts(text) : EOF;
        free(text);
        return written == EOF || fflush(stdout) == EOF ? EXIT_FAILED : EXIT_FINE;
    }
    return options->check ? EXIT_FINE : -1;
}

/* --- the start, in this order; daemon_stop goes back */

/* A line of libevent's own. It brings no context, so that the daemon's log is not at hand. */
static void daemon_log_libevent(int severity, const char *text)
{
    static const enum log_level levels[] = {[EVENT_LOG_DEBUG] = LOG_LEVEL_DEBUG,
                                            [EVENT_LOG_MSG] = LOG_LEVEL_INFO,
                                            [EVENT_LOG_WARN] = LOG_LEVEL_WARNING,
                                            [EVENT_LOG_ERR] = LOG_LEVEL_ERROR};
    bool known = severity >= EVENT_LOG_DEBUG && severity <= EVENT_LOG_ERR;
    struct log log;
    log_init(&log, "shoald", LOG_LEVEL_INFO, STDERR_FILENO, env_text("JOURNAL_STREAM") != NULL);
    log_write(&log, known ? levels[severity] : LOG_LEVEL_WARNING, "libevent: %s", text);
    log_close(&log);
}

static int daemon_start_log(struct daemon *daemon, struct error *error)
{
    (void)error;
    event_set_log_callback(daemon_log_libevent);
    bool journal = env_text("JOURNAL_STREAM") != NULL;
    log_init(&daemon->log, "shoald", daemon->config.log_level, STDERR_FILENO, journal);
    daemon->log.ring = &daemon->warnings;
    if (daemon->config.server_count > 1)
        snprintf(daemon->log.program, sizeof(daemon->log.program), "shoald[%.22s]",
                 daemon->config.node);
    return 0;
}

/* Signals come as data to the control thread: blocked here, before there are other threads. */
static int daemon_start_signals(struct daemon *daemon, struct error *error)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGUSR1);
    signal(SIGPIPE, SIG_IGN);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0)
        return error_set(error, ERR_SYSTEM, "signals cannot be blocked");
    daemon->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (daemon->signal_fd < 0)
        return error_set_errno(error, errno, "signalfd");
    return 0;
}

/* Whether the daemon has come with the ranks of a run, whose user alone reaches its socket. */
static bool daemon_is_of_run(const struct daemon *daemon)
{
    return daemon->options.parent_fd >= 0;
}

static uint64_t daemon_descriptors_needed(const struct daemon *daemon)
{
    bool of_run = daemon_is_of_run(daemon);
    uint32_t page = daemon->config.metrics_port ? PAGE_DESCRIPTORS : 0;
    return (of_run ? OWN_DESCRIPTORS_OF_RUN + page : OWN_DESCRIPTORS) +
           (uint64_t)PEER_DESCRIPTORS * daemon->config.server_count +
           control_descriptors_needed(&daemon->config, of_run);
}

/* Nobody has asked for as many workers as the defaults allow. A machine that gives a process few
 * descriptors has room for some all the same. */
static void daemon_fit_limits(struct daemon *daemon, uint64_t descriptors)
{
    struct config *config = &daemon->config, defaults;
    config_defaults(&defaults);
    uint32_t least = daemon_is_of_run(daemon) ? LEAST_WORKERS_OF_RUN : LEAST_WORKERS;
    bool asked = config->workers != defaults.workers || config->connections != defaults.connections;
    config_clear(&defaults);
    if (asked || daemon_descriptors_needed(daemon) <= descriptors)
        return;
    while (config->workers > least && daemon_descriptors_needed(daemon) > descriptors) {
        config->workers /= 2;
        config->connections /= 2;
    }
    log_warning(
        &daemon->log,
        "limits.workers is %u here, and limits.connections %u: this process may have %" PRIu64
        " descriptors (ulimit -Hn, LimitNOFILE)",
        config->workers, config->connections, descriptors);
}

/* Raise the soft limit of descriptors to the hard one: a shell or a service manager often sets it
 * lower than a node with many ranks needs. */
static int daemon_start_descriptors(struct daemon *daemon, struct error *error)
{
    const struct config *config = &daemon->config;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return error_set_errno(error, errno, "RLIMIT_NOFILE");
    rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        limit.rlim_cur = soft;
    daemon_fit_limits(daemon, limit.rlim_cur);
    uint64_t needed = daemon_descriptors_needed(daemon);
    if (needed > limit.rlim_cur)
        return error_set(error, ERR_CONFIG,
                         "limits.connections %u with limits.workers %u takes %" PRIu64
                         " descriptors, and this process may have %" PRIu64
                         ": lower them, or raise its hard limit (ulimit -Hn, LimitNOFILE)",
                         config->connections, config->workers, needed, (uint64_t)limit.rlim_cur);
    return 0;
}

/* Tell the kernel to spare the daemon. The daemon maps the arenas of all ranks, and so would be the
 * first that the kernel takes when memory runs out; with it all jobs of the node would go. A score
 * that somebody has lowered is left as it is. */
static int daemon_start_oom_score(struct daemon *daemon, struct error *error)
{
    int score;
    (void)error;
    struct error reason;
    /* A rank that starts it may have raised its own, which it has inherited. */
    if (oom_score_read(&score, &reason) == 0 && score >= 0 &&
        oom_score_write(OOM_SCORE_LAST, &reason) < 0 && oom_score_write(0, &reason) < 0)
        log_debug(&daemon->log, "the kernel may take the daemon when memory runs out: %s",
                  reason.text);
    return 0;
}

static int daemon_start_manager(struct daemon *daemon, struct error *error)
{
    daemon->notify_socket = env_text("NOTIFY_SOCKET");
    return sd_notify_watchdog_parse(env_text("WATCHDOG_USEC"), env_text("WATCHDOG_PID"), getpid(),
                                    &daemon->watchdog_ms, error);
}

static int daemon_start_credentials(struct daemon *daemon, struct error *error)
{
    int result = auth_init(error);
    if (result < 0)
        return result;
    return credentials_load(&daemon->credentials, &daemon->config, error);
}

static int daemon_start_machine(struct daemon *daemon, struct error *error)
{
    int result = topology_open(&daemon->topology, NULL, error);
    if (result == 0)
        topology_describe(daemon->topology, daemon->topology_text, sizeof(daemon->topology_text));
    return result;
}

static int daemon_start_engine(struct daemon *daemon, struct error *error)
{
    return engine_start(&daemon->engine, &daemon->config, daemon->topology, &daemon->log, error);
}

static void daemon_notice(void *context, enum control_notice notice)
{
    static const char *const states[] = {
        [CONTROL_READY] = "READY=1\nSTATUS=listening",
        [CONTROL_ALIVE] = "WATCHDOG=1",
        [CONTROL_DRAINING] = "STOPPING=1\nSTATUS=running collectives may finish",
    };
    struct daemon *daemon = context;
    if (!daemon->notify_socket || (notice == CONTROL_ALIVE && daemon->watchdog_ms == 0))
        return;
    struct error error = {0};
    if (sd_notify_send(daemon->notify_socket, states[notice], &error) < 0)
        log_warning(&daemon->log, "the service manager cannot be told: %s", error.text);
}

/* Hand the daemon's sockets and signals over to a control thread. */
static struct control_options daemon_control_options(struct daemon *daemon)
{
    struct control_options options = {
        .config = &daemon->config,
        .log = &daemon->log,
        .credentials = &daemon->credentials,
        .topology = daemon->topology_text,
        .of_run = daemon_is_of_run(daemon),
        .listen_fd = daemon->options.listen_fd,
        .socket_fd = daemon->options.socket_fd,
        .parent_fd = daemon->options.parent_fd,
        .signal_fd = daemon->signal_fd,
    };
    daemon->signal_fd = -1;
    daemon->sockets_given = true;
    unmapped_read(&options.unmapped);
    return options;
}

static int daemon_start_control(struct daemon *daemon, struct error *error)
{
    struct control_options options = daemon_control_options(daemon);
    options.engine = control_engine_of(daemon->engine);
    options.instruction_set = engine_instruction_set(daemon->engine);
    options.alive_ms = daemon->watchdog_ms;
    options.notice = daemon_notice;
    options.notice_context = daemon;
    if (options.unmapped.any)
        log_warning(&daemon->log,
                    "not all users have a number in the user namespace of this daemon: whoever is "
                    "user %" PRIu32 " here may be anybody, and is refused",
                    options.unmapped.uid);
    return control_create(&daemon->control, &options, error);
}

/* All threads are there, and the socket has its mode. */
static int daemon_start_sandbox(struct daemon *daemon, struct error *error)
{
    if (sandbox_enter(error) < 0)
        log_warning(&daemon->log, "this daemon keeps all system calls: %s", error->text);
    return 0;
}

/* Tell the ranks of this node, and the other daemons, why this one cannot start. Without its
 * credentials and its sockets it can tell nobody. */
static void daemon_tell_failure(struct daemon *daemon, const struct error *failure)
{
    struct error error = {0};
    if (daemon->config.server_count < 2 || daemon->sockets_given)
        return;
    if (daemon->signal_fd < 0 && daemon_start_signals(daemon, &error) < 0)
        return;
    credentials_clear(&daemon->credentials);
    if (daemon_start_credentials(daemon, &error) < 0)
        return;
    struct control_options options = daemon_control_options(daemon);
    options.engine = control_engine_none();
    options.instruction_set = "none";
    options.failure = failure->text;
    if (control_create(&daemon->control, &options, &error) < 0)
        return;
    daemon_start_sandbox(daemon, &error);
    control_run(daemon->control);
}

static int (*const starts[])(struct daemon *daemon, struct error *error) = {
    daemon_start_log,     daemon_start_descriptors, daemon_start_oom_score, daemon_start_signals,
    daemon_start_manager, daemon_start_credentials, daemon_start_machine,   daemon_start_engine,
    daemon_start_control, daemon_start_sandbox,
};

static void daemon_stop(struct daemon *daemon)
{
    control_free(daemon->control);
    if (daemon->engine)
        engine_stop(daemon->engine);
    if (daemon->topology)
        topology_close(daemon->topology);
    credentials_clear(&daemon->credentials);
    if (daemon->signal_fd >= 0)
        close(daemon->signal_fd);
    if (daemon->config_loaded)
        config_clear(&daemon->config);
    log_close(&daemon->log);
    log_ring_destroy(&daemon->warnings);
}

static int daemon_run(struct daemon *daemon)
{
    struct error error = {0};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (starts[i](daemon, &error) < 0) {
            log_error(&daemon->log, "%s", error.text);
            daemon_tell_failure(daemon, &error);
            return error.code == ERR_CONFIG ? EXIT_CONFIG : EXIT_FAILED;
        }
    }
    const struct transport_info *info = engine_transport_info(daemon->engine);
    const struct credentials *credentials = &daemon->credentials;
    const char *wire = daemon->config.server_count < 2 ? ""
                       : !credentials->encrypt         ? ", in the clear between them"
                       : credentials->certificates     ? ", encrypted by certificates"
                                                       : ", encrypted by a secret";
    log_info(&daemon->log, "shoald %s on node %s: provider %s (%s, %s), %s, %s, %u servers%s",
             SHOAL_VERSION, daemon->config.node, info->provider, info->endpoint, info->version,
             engine_instruction_set(daemon->engine), daemon->topology_text,
             daemon->config.server_count, wire);
    int result = control_run(daemon->control);
    log_info(&daemon->log, "ended");
    return result < 0 ? EXIT_FAILED : EXIT_FINE;
}

int main(int argc, char **argv)
{
    transport_prepare_environment();
    topology_prepare_environment();
    struct daemon daemon = {.signal_fd = -1};
    log_ring_init(&daemon.warnings);
    int code = daemon_parse_options(&daemon.options, argc, argv);
    if (code < 0)
        code = daemon_load_config(&daemon);
    if (code < 0)
        code = daemon_run(&daemon);
    daemon_stop(&daemon);
    return code;
}
