#include "worker/programs/shoalrun/nodes.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/env.h"
#include "common/text/number_text.h"
#include "worker/launch/launched.h"

/* Below those that systems give out by themselves. Each run has three. */
#define PORT_FIRST 20000
#define PORT_RUNS 4000

/* --- the list -------------------------------------------------------------------------------- */

struct list {
    struct launch_host *hosts;
    uint32_t count;
    const char *text; /* the whole, for messages */
    struct error *error;
};

static int list_wrong(const struct list *list, const char *why)
{
    return error_set(list->error, ERR_INVALID, "the list of hosts \"%.200s\" %s", list->text, why);
}

/* Whether a daemon can have it for a name. */
static bool host_is_name(const char *address)
{
    return strlen(address) < LAUNCH_JOB_BYTES && !strchr(address, ':') && !strchr(address, '%');
}

static int list_add(struct list *list, const char *address)
{
    if (!*address)
        return list_wrong(list, "has an empty name");
    if (list->count == LAUNCH_MACHINES_MAX)
        return list_wrong(list, "has more than 1024 hosts");
    for (const char *at = address; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr(".-_:%", *at))
            return list_wrong(list, "has a name with a character that no host has");
    for (uint32_t i = 0; i < list->count; i++)
        if (strcasecmp(list->hosts[i].address, address) == 0)
            return list_wrong(list, "has a host twice");
    struct launch_host *more = realloc(list->hosts, (list->count + 1) * sizeof(*more));
    if (!more)
        return error_set(list->error, ERR_MEMORY, "out of memory");
    struct launch_host *host = &more[list->count];
    list->hosts = more;
    snprintf(host->address, sizeof(host->address), "%s", address);
    if (host_is_name(address))
        snprintf(host->name, sizeof(host->name), "%.63s", address);
    else
        launch_node_name(host->name, LAUNCH_MACHINES_MAX, list->count);
    list->count++;
    return 0;
}

static int list_add_name(struct list *list, const char *done, const char *text, size_t bytes);

/* One "3" or "03-07" of what is in brackets, with all that can come behind them. */
static int list_add_numbers(struct list *list, const char *done, const char *item, size_t bytes,
                            const char *rest, size_t rest_bytes)
{
    char first[12], last[12], built[LAUNCH_HOST_BYTES];
    uint64_t from, to;
    const char *dash = memchr(item, '-', bytes);
    size_t width = dash ? (size_t)(dash - item) : bytes;
    size_t last_width = dash ? bytes - width - 1 : width;
    snprintf(first, sizeof(first), "%.*s", (int)width, item);
    snprintf(last, sizeof(last), "%.*s", (int)last_width, dash ? dash + 1 : item);
    if (width >= sizeof(first) || last_width >= sizeof(last) ||
        number_text_parse(first, 0, UINT32_MAX, &from, NULL) < 0 ||
        number_text_parse(last, from, from + LAUNCH_MACHINES_MAX, &to, NULL) < 0)
        return list_wrong(list, "has wrong numbers in its brackets");
    int code = 0;
    for (uint64_t number = from; code == 0 && number <= to; number++) {
        int length = snprintf(built, sizeof(built), "%s%0*" PRIu64, done, (int)width, number);
        code = length < (int)sizeof(built) ? list_add_name(list, built, rest, rest_bytes)
                                           : list_wrong(list, "has a name of more than 253 bytes");
    }
    return code;
}

/* done: the beginning of the name, without brackets; text: the rest of it. */
static int list_add_name(struct list *list, const char *done, const char *text, size_t bytes)
{
    char built[LAUNCH_HOST_BYTES];
    const char *open = memchr(text, '[', bytes);
    size_t plain = open ? (size_t)(open - text) : bytes;
    if (strlen(done) + plain >= sizeof(built))
        return list_wrong(list, "has a name of more than 253 bytes");
    snprintf(built, sizeof(built), "%s%.*s", done, (int)plain, text);
    if (!open)
        return list_add(list, built);
    const char *at = open + 1, *close = memchr(at, ']', (size_t)(text + bytes - at));
    if (!close || close == at)
        return list_wrong(list, "has wrong brackets");
    int code = 0;
    while (code == 0 && at <= close) {
        const char *comma = memchr(at, ',', (size_t)(close - at));
        const char *end = comma ? comma : close;
        code = list_add_numbers(list, built, at, (size_t)(end - at), close + 1,
                                (size_t)(text + bytes - close - 1));
        at = end + 1;
    }
    return code;
}

static int list_add_all(struct list *list, const char *text)
{
    int code = 0;
    for (bool more = true; code == 0 && more;) {
        size_t bytes = 0;
        for (bool inside = false; text[bytes] && (inside || text[bytes] != ','); bytes++)
            inside = text[bytes] == '[' || (inside && text[bytes] != ']');
        code = list_add_name(list, "", text, bytes);
        more = text[bytes] == ',';
        text += bytes + more;
    }
    return code;
}

/* JSON's array of names, as SageMaker has it, without what is JSON's. */
static char *list_plain(const char *text)
{
    bool json = text[0] == '[' && strchr(text, '"');
    char *plain = calloc(1, strlen(text) + 1);
    for (char *to = plain; plain && *text; text++)
        if (!json || !strchr("[]\" ", *text))
            *to++ = *text;
    return plain;
}

int nodes_expand(const char *text, struct launch_host **hosts, uint32_t *count, struct error *error)
{
    struct list list = {.text = text, .error = error};
    char *plain = list_plain(text);
    if (!plain)
        return error_set(error, ERR_MEMORY, "out of memory");
    int code = list_add_all(&list, plain);
    free(plain);
    if (code < 0) {
        free(list.hosts);
        return code;
    }
    *hosts = list.hosts;
    *count = list.count;
    return 0;
}

/* --- who this is ----------------------------------------------------------------------------- */

static int nodes_number(const char *name, uint64_t most, uint64_t *number, struct error *error)
{
    int code = number_text_parse(env_text(name), 0, most, number, error);
    if (code < 0)
        error_prefix(error, "%s", name);
    return code;
}

/* Find a host by its name, or where one of the two is a name without a domain, by the first part of
 * that. Two hosts that both fit so are none. */
static bool nodes_find_host(struct nodes *nodes, const char *name)
{
    size_t label = strcspn(name, ".");
    uint32_t fitting = 0;
    for (uint32_t i = 0; i < nodes->count; i++) {
        const char *address = nodes->hosts[i].address;
        size_t first = strcspn(address, ".");
        if (strcasecmp(address, name) == 0) {
            nodes->self = i;
            return true;
        }
        if (first == label && strncasecmp(address, name, label) == 0 &&
            (!name[label] || !address[first])) {
            nodes->self = i;
            fitting++;
        }
    }
    return fitting == 1;
}

static int nodes_find_self(struct nodes *nodes, const struct launch_options *options,
                           const struct launched *launched, struct error *error)
{
    char own[LAUNCH_HOST_BYTES] = "";
    uint64_t number = 0;
    gethostname(own, sizeof(own) - 1);
    const char *told = launched->own_host ? env_text(launched->own_host) : NULL;
    const char *name = told ? told : own;
    if (options->node_rank_plus_1) {
        number = options->node_rank_plus_1 - 1;
        if (number >= nodes->count)
            return error_set(error, ERR_INVALID,
                             "--node-rank %" PRIu64 ": there are %" PRIu32 " hosts, counted from 0",
                             number, nodes->count);
    } else if (launched->rank) {
        int code = nodes_number(launched->rank, nodes->count - 1, &number, error);
        if (code < 0)
            return code;
    } else if (nodes_find_host(nodes, name)) {
        return 0;
    } else {
        return error_set(error, ERR_INVALID,
                         "this host, %s, is none of --hosts: --node-rank says which it is, counted "
                         "from 0",
                         name);
    }
    nodes->self = (uint32_t)number;
    return 0;
}

/* Once on each node, and on each node of the list. */
static int nodes_check_launcher(const struct nodes *nodes, const struct launched *launched,
                                struct error *error)
{
    uint32_t local = launched_local_size(launched);
    uint64_t size = nodes->count;
    if (local > 1)
        return error_set(error, ERR_INVALID,
                         "%s has started shoalrun %" PRIu32 " times on this node: start it once, "
                         "and -n says how many ranks it starts (%s)",
                         launched->launcher, local,
                         strcmp(launched->launcher, "srun") == 0 ? "--ntasks-per-node=1"
                                                                 : "--map-by ppr:1:node, -ppn 1");
    int code =
        launched->world_size ? nodes_number(launched->world_size, UINT32_MAX, &size, error) : 0;
    if (code == 0 && !nodes->hosts && size > 1)
        code = error_set(error, ERR_INVALID,
                         "%s has started shoalrun on %" PRIu64 " nodes and does not say which: add "
                         "--hosts HOST,... in the order of its ranks",
                         launched->launcher, size);
    else if (code == 0 && nodes->hosts && size != nodes->count)
        code = error_set(error, ERR_INVALID,
                         "%s has started shoalrun on %" PRIu64 " nodes, and there are %" PRIu32
                         " hosts in the list",
                         launched->launcher, size, nodes->count);
    return code;
}

static int nodes_compare(const void *one, const void *other)
{
    return strcmp(((const struct launch_host *)one)->address,
                  ((const struct launch_host *)other)->address);
}

const char *nodes_job(const struct launch_options *options)
{
    return options->job ? options->job : env_text("SHOAL_RUN") ? NULL : env_text("SHOAL_JOB");
}

/* Set the mark: the launcher's number of the job, else the job's name, else one of the hosts. */
static void nodes_set_mark(struct nodes *nodes, const struct launch_options *options,
                           const struct launched *launched)
{
    uint64_t hash = LAUNCHED_HASH;
    const char *job = nodes_job(options);
    for (uint32_t i = 0; i < nodes->count; i++)
        hash = launched_hash(hash, nodes->hosts[i].address);
    if (launched->job[0])
        snprintf(nodes->mark, sizeof(nodes->mark), "%s", launched->job);
    else if (job)
        snprintf(nodes->mark, sizeof(nodes->mark), "%s", job);
    else
        snprintf(nodes->mark, sizeof(nodes->mark), "shoalrun-%016" PRIx64, hash);
}

static int nodes_set_port(struct nodes *nodes, struct error *error)
{
    long long port = 0;
    uint64_t hash = launched_hash(LAUNCHED_HASH, nodes->mark);
    int code = env_integer("SHOAL_PORT", 1, UINT16_MAX - 2,
                           PORT_FIRST + 3 * (long long)(hash % PORT_RUNS), &port, error);
    nodes->port = (uint16_t)port;
    return code;
}

int nodes_read(struct nodes *nodes, const struct launch_options *options, struct error *error)
{
    struct launched launched;
    *nodes = (struct nodes){.count = 1};
    launched_read_node(&launched);
    const char *list = options->hosts   ? options->hosts
                       : launched.hosts ? env_text(launched.hosts)
                                        : NULL;
    if (options->node_rank_plus_1 && !list)
        return error_set(error, ERR_INVALID, "--node-rank: --hosts is missing");
    int code = 0;
    if (list)
        code = nodes_expand(list, &nodes->hosts, &nodes->count, error);
    if (code == 0)
        code = nodes_check_launcher(nodes, &launched, error);
    if (code == 0 && launched.ranks) {
        uint64_t ranks;
        code = nodes_number(launched.ranks, LAUNCH_RANKS_MAX, &ranks, error);
        nodes->ranks = code == 0 ? (uint32_t)ranks : 0;
    }
    if (code < 0 || nodes->count == 1 || !nodes->hosts)
        return code;
    if (launched.own_host && !options->hosts)
        qsort(nodes->hosts, nodes->count, sizeof(*nodes->hosts), nodes_compare);
    if (options->nodes || options->cpu_nodes)
        return error_set(
            error, ERR_INVALID,
            "--nodes and --cpu-nodes make nodes of this machine, and this run has %" PRIu32
            " machines",
            nodes->count);
    code = nodes_find_self(nodes, options, &launched, error);
    if (code == 0) {
        nodes_set_mark(nodes, options, &launched);
        code = nodes_set_port(nodes, error);
    }
    return code;
}

void nodes_clear(struct nodes *nodes)
{
    free(nodes->hosts);
    *nodes = (struct nodes){.count = 1};
}
