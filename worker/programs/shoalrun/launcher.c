#include "worker/programs/shoalrun/launcher.h"

#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/env.h"
#include "common/text/number_text.h"

const char *launch_usage(void)
{
    return "usage: shoalrun [OPTION]... [-n RANKS] [--] COMMAND [ARGUMENT]...\n"
           "Start the ranks of a job on this machine, and the daemons that they need when\n"
           "none is running. For several machines it is started once on each, as by\n"
           "  srun --ntasks-per-node=1 shoalrun -n RANKS -- COMMAND\n"
           "\n"
           "Options:\n"
           "  -n RANKS                  ranks on each node (default: as many as it has GPUs\n"
           "                            for the job, by Slurm or SageMaker, else 1)\n"
           "  --hosts LIST              the machines of the job, where the launcher does not\n"
           "                            say which; gpu[01-16] stands for 16\n"
           "  --node-rank N             which of them this is, counted from 0\n"
           "  --nodes N                 start N daemons, as N nodes of this machine\n"
           "  --cpu-nodes K             and K daemons without ranks, which own shards\n"
           "  --job NAME                name of the job (default: SHOAL_JOB, else one that\n"
           "                            no other run of this machine has)\n"
           "  --as BACKEND              gloo: shoal makes the groups that a program asks of\n"
           "                            this backend of PyTorch (SHOAL_AS); jax: it does the\n"
           "                            collectives of JAX on CPUs\n"
           "  --provider NAME           libfabric provider of the started daemons\n"
           "  --config FILE             JSON with further keys for the started daemons\n"
           "  --socket PATH             use the daemon that listens there, start none\n"
           "  --page                    print the address of a live page for a browser\n"
           "  --timeout SECONDS         end the job after this time\n"
           "  --grace SECONDS           from a rank's failure to SIGTERM of the others, and\n"
           "                            from there to SIGKILL (default 10)\n"
           "  --tag-output              put the rank before every line of output\n"
           "  --verbose                 show the logs of the started daemons\n"
           "  --serve ADDRESS           only serve a daemon, for ranks that others have\n"
           "                            started; the Python package asks for it\n"
           "  --print WHAT              jax: print the path of the library that JAX loads\n"
           "                            (MPITRAMPOLINE_LIB), and end\n"
           "  -h, --help                print this text, and end\n"
           "  --version                 print the version, and end\n"
           "\n"
           "Without --nodes, --cpu-nodes, --provider and --config the daemon at SHOAL_SOCKET\n"
           "is used, or the one at " SHOAL_DEFAULT_SOCKET " if it answers, else one is\n"
           "started.\n"
           "\n"
           "Exit status:\n"
           "  0      all ranks ended with 0\n"
           "  1      nothing could be started, or a started daemon failed\n"
           "  2      wrong options\n"
           "  124    the time of --timeout has passed\n"
           "  else   that of the first rank that failed; 128 + N when signal N ended it\n"
           "\n"
           "Read on: shoalrun(1), shoalperf(1), shoal(3).\n";
}

static int parse_count(const char *option, const char *text, uint32_t least, uint32_t most,
                       uint32_t *value, struct error *error)
{
    uint64_t number;
    int result = number_text_parse(text, least, most, &number, error);
    if (result)
        error_prefix(error, "%s", option);
    else
        *value = (uint32_t)number;
    return result;
}

enum {
    OPTION_NODES = 256,
    OPTION_CPU_NODES,
    OPTION_JOB,
    OPTION_AS,
    OPTION_PROVIDER,
    OPTION_CONFIG,
    OPTION_SOCKET,
    OPTION_PAGE,
    OPTION_TIMEOUT,
    OPTION_GRACE,
    OPTION_VERBOSE,
    OPTION_TAG_OUTPUT,
    OPTION_HOSTS,
    OPTION_NODE_RANK,
    OPTION_SERVE,
    OPTION_PRINT,
    OPTION_VERSION,
};

static const struct option launcher_long_options[] = {
    {"nodes", required_argument, NULL, OPTION_NODES},
    {"cpu-nodes", required_argument, NULL, OPTION_CPU_NODES},
    {"job", required_argument, NULL, OPTION_JOB},
    {"as", required_argument, NULL, OPTION_AS},
    {"provider", required_argument, NULL, OPTION_PROVIDER},
    {"config", required_argument, NULL, OPTION_CONFIG},
    {"socket", required_argument, NULL, OPTION_SOCKET},
    {"page", no_argument, NULL, OPTION_PAGE},
    {"timeout", required_argument, NULL, OPTION_TIMEOUT},
    {"grace", required_argument, NULL, OPTION_GRACE},
    {"verbose", no_argument, NULL, OPTION_VERBOSE},
    {"tag-output", no_argument, NULL, OPTION_TAG_OUTPUT},
    {"hosts", required_argument, NULL, OPTION_HOSTS},
    {"node-rank", required_argument, NULL, OPTION_NODE_RANK},
    {"serve", required_argument, NULL, OPTION_SERVE},
    {"print", required_argument, NULL, OPTION_PRINT},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

static int launcher_take_option(struct launch_options *options, int option, char *const *argv,
                                struct error *error)
{
    switch (option) {
    case 'n':
        return parse_count("-n", optarg, 1, LAUNCH_RANKS_MAX, &options->ranks_per_node, error);
    case OPTION_NODES:
        return parse_count("--nodes", optarg, 1, LAUNCH_MACHINES_MAX, &options->nodes, error);
    case OPTION_CPU_NODES:
        return parse_count("--cpu-nodes", optarg, 0, LAUNCH_NODES_MAX, &options->cpu_nodes, error);
    case OPTION_NODE_RANK: {
        int result = parse_count("--node-rank", optarg, 0, LAUNCH_MACHINES_MAX - 1,
                                 &options->node_rank_plus_1, error);
        options->node_rank_plus_1 += result == 0;
        return result;
    }
    case OPTION_TIMEOUT:
        return parse_count("--timeout", optarg, 1, INT_MAX / 1000, &options->timeout_s, error);
    case OPTION_GRACE:
        return parse_count("--grace", optarg, 0, 3600, &options->grace_s, error);
    case OPTION_JOB:
        if (!*optarg || strlen(optarg) >= LAUNCH_JOB_BYTES)
            return error_set(error, ERR_INVALID, "--job: must have 1 to %d bytes",
                             LAUNCH_JOB_BYTES - 1);
        options->job = optarg;
        return 0;
    case OPTION_AS:
        if (strcmp(optarg, "gloo") != 0 && strcmp(optarg, "jax") != 0)
            return error_set(error, ERR_INVALID, "--as: '%s' is not allowed, only gloo and jax",
                             optarg);
        options->in_place_of = optarg;
        return 0;
    case OPTION_PROVIDER:
        options->provider = optarg;
        return 0;
    case OPTION_CONFIG:
        options->config_path = optarg;
        return 0;
    case OPTION_SOCKET:
        options->socket_path = optarg;
        return 0;
    case OPTION_PAGE:
        options->page = true;
        return 0;
    case OPTION_VERBOSE:
        options->verbose = true;
        return 0;
    case OPTION_TAG_OUTPUT:
        options->tag_output = true;
        return 0;
    case OPTION_HOSTS:
        options->hosts = optarg;
        return 0;
    case OPTION_SERVE:
        options->serve = optarg;
        return 0;
    case OPTION_PRINT:
        if (strcmp(optarg, "jax") != 0)
            return error_set(error, ERR_INVALID, "--print: '%s' is not allowed, only jax", optarg);
        options->print = true;
        return 0;
    case 'h':
        options->help = true;
        return 0;
    case OPTION_VERSION:
        options->version = true;
        return 0;
    case ':':
        return error_set(error, ERR_INVALID, "%s needs a value", argv[optind - 1]);
    default:
        return error_set(error, ERR_INVALID, "unknown option %s", argv[optind - 1]);
    }
}

static int launcher_options_check(const struct launch_options *options, struct error *error)
{
    if (!options->command[0])
        return error_set(error, ERR_INVALID, "the command to run is missing");
    if (options->hosts && (options->nodes || options->cpu_nodes))
        return error_set(error, ERR_INVALID,
                         "--hosts names machines; --nodes and --cpu-nodes make nodes of this one");
    if (options->socket_path && (options->nodes || options->cpu_nodes || options->provider ||
                                 options->config_path || options->verbose))
        return error_set(error, ERR_INVALID,
                         "--socket uses a running daemon; --nodes, --cpu-nodes, --provider, "
                         "--config and --verbose are for daemons that shoalrun starts");
    if (!options->serve && options->nodes + options->cpu_nodes > LAUNCH_NODES_MAX)
        return error_set(error, ERR_INVALID, "--nodes and --cpu-nodes: %u daemons, at most %d",
                         options->nodes + options->cpu_nodes, LAUNCH_NODES_MAX);
    uint64_t ranks = (uint64_t)options->ranks_per_node * (options->nodes ? options->nodes : 1);
    if (ranks > LAUNCH_RANKS_MAX)
        return error_set(error, ERR_INVALID, "%" PRIu64 " ranks, at most %d", ranks,
                         LAUNCH_RANKS_MAX);
    return 0;
}

int launch_options_parse(int argc, char **argv, struct launch_options *options, struct error *error)
{
    struct launch_options parsed = {.grace_s = 10};
    optind = 0; /* glibc: start over */
    opterr = 0;
    int option;
    while ((option = getopt_long(argc, argv, "+:hn:", launcher_long_options, NULL)) != -1) {
        int result = launcher_take_option(&parsed, option, argv, error);
        if (result)
            return result;
    }
    parsed.command = argv + optind;
    if (!parsed.help && !parsed.version && !parsed.print && !parsed.serve) {
        int result = launcher_options_check(&parsed, error);
        if (result)
            return result;
    }
    *options = parsed;
    return 0;
}

enum launch_mode launch_mode(const struct launch_options *options, const char *socket_variable,
                             const char **socket_path)
{
    *socket_path = NULL;
    if (options->socket_path) {
        *socket_path = options->socket_path;
        return LAUNCH_GIVEN;
    }
    if (options->nodes || options->cpu_nodes || options->provider || options->config_path)
        return LAUNCH_EMBEDDED;
    if (socket_variable && *socket_variable) {
        *socket_path = socket_variable;
        return LAUNCH_GIVEN;
    }
    *socket_path = SHOAL_DEFAULT_SOCKET;
    return LAUNCH_IF_ANSWERS;
}

uint32_t launch_local_count(const struct launch_options *options)
{
    return (options->nodes ? options->nodes : 1) * options->ranks_per_node;
}

uint32_t launch_world_size(const struct launch_options *options)
{
    return (options->machines ? options->machines : 1) * launch_local_count(options);
}

struct launch_worker launch_worker(const struct launch_options *options, uint32_t index)
{
    return (struct launch_worker){
        .rank = options->machine * launch_local_count(options) + index,
        .world_size = launch_world_size(options),
        .local_rank = index % options->ranks_per_node,
        .local_world_size = options->ranks_per_node,
        .node = index / options->ranks_per_node,
    };
}

const char *launch_variable(char *const *environment, const char *name)
{
    size_t length = strlen(name);
    for (; *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return *environment + length + 1;
    return NULL;
}

struct variable {
    const char *name;
    char value[PATH_MAX];
};

static bool is_overridden(const char *entry, const struct variable *added, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(added[i].name);
        if (strncmp(entry, added[i].name, length) == 0 && entry[length] == '=')
            return true;
    }
    return false;
}

/* The list, then the added strings, in one allocation; inherited strings stay where they are. */
static char **environment_with(char *const *inherited, const struct variable *added, size_t count)
{
    size_t entries = count + 1, bytes = 0;
    for (size_t i = 0; inherited[i]; i++)
        entries++;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(added[i].name) + strlen(added[i].value) + 2;
    char **list = malloc(entries * sizeof(*list) + bytes);
    if (!list)
        return NULL;
    char *text = (char *)(list + entries);
    size_t used = 0;
    for (size_t i = 0; inherited[i]; i++)
        if (!is_overridden(inherited[i], added, count))
            list[used++] = inherited[i];
    for (size_t i = 0; i < count; i++) {
        list[used++] = text;
        text += sprintf(text, "%s=%s", added[i].name, added[i].value) + 1;
    }
    list[used] = NULL;
    return list;
}

char **launch_worker_environment(char *const *inherited, const struct launch_worker *worker,
                                 const struct launch_told *told)
{
    struct variable added[12] = {
        {.name = "RANK"},       {.name = "WORLD_SIZE"},
        {.name = "LOCAL_RANK"}, {.name = "LOCAL_WORLD_SIZE"},
        {.name = "SHOAL_JOB"},  {.name = "SHOAL_SOCKET"},
        {.name = "SHOAL_RUN"},  {.name = "SHOAL_MARK"},
    };
    const uint32_t numbers[] = {worker->rank, worker->world_size, worker->local_rank,
                                worker->local_world_size};
    const char *texts[] = {told->job, told->socket_path, told->folder, told->mark};
    size_t count = 8;
    for (size_t i = 0; i < 4; i++)
        snprintf(added[i].value, sizeof(added[i].value), "%u", numbers[i]);
    for (size_t i = 0; i < 4; i++)
        snprintf(added[4 + i].value, sizeof(added[4 + i].value), "%s", texts[i]);
    if (told->jax_library) {
        added[count].name = "JAX_CPU_COLLECTIVES_IMPLEMENTATION";
        snprintf(added[count++].value, PATH_MAX, "mpi");
        added[count].name = "MPITRAMPOLINE_LIB";
        snprintf(added[count++].value, PATH_MAX, "%s", told->jax_library);
    } else if (told->in_place_of) {
        added[count].name = "SHOAL_AS";
        snprintf(added[count++].value, PATH_MAX, "%s", told->in_place_of);
    }
    if (told->master && !launch_variable(inherited, "MASTER_ADDR")) {
        added[count].name = "MASTER_ADDR";
        snprintf(added[count++].value, PATH_MAX, "%s", told->master);
    }
    if (told->master && !launch_variable(inherited, "MASTER_PORT")) {
        added[count].name = "MASTER_PORT";
        snprintf(added[count++].value, PATH_MAX, "%u", told->master_port);
    }
    return environment_with(inherited, added, count);
}

char **launch_daemon_environment(char *const *inherited)
{
    static const struct variable added[] = {
        {.name = "IPATH_NO_BACKTRACE", .value = "1"},
        {.name = "HFI_NO_BACKTRACE", .value = "1"},
    };
    return environment_with(inherited, added, 2);
}

void launch_job_name(char name[LAUNCH_JOB_BYTES], uint32_t pid, uint64_t random)
{
    snprintf(name, LAUNCH_JOB_BYTES, "shoalrun-%u-%016" PRIx64, pid, random);
}

static uint32_t greatest_common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void launch_weights(uint32_t worker_nodes, uint32_t cpu_nodes, uint32_t *worker_weight,
                    uint32_t *cpu_weight)
{
    *worker_weight = *cpu_weight = 1;
    if (cpu_nodes == 0 || worker_nodes < 2)
        return;
    if (cpu_nodes >= worker_nodes) {
        *worker_weight = 0;
        return;
    }
    uint32_t worker = worker_nodes - cpu_nodes, cpu = 2 * (worker_nodes - 1);
    uint32_t divisor = greatest_common_divisor(worker, cpu);
    *worker_weight = worker / divisor;
    *cpu_weight = cpu / divisor;
}

void launch_node_name(char name[LAUNCH_JOB_BYTES], uint32_t worker_nodes, uint32_t node)
{
    if (node < worker_nodes)
        snprintf(name, LAUNCH_JOB_BYTES, "node%u", node);
    else
        snprintf(name, LAUNCH_JOB_BYTES, "cpu%u", node - worker_nodes);
}
