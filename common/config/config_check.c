#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/config/config_report.h"
#include "common/format/window.h"
#include "common/format/wire.h"

#define DEFAULT_NODE "localhost"
#define DEFAULT_PORT 7070

bool config_is_loopback(const char *address)
{
    struct in_addr numeric;
    if (inet_pton(AF_INET, address, &numeric) == 1)
        return ntohl(numeric.s_addr) >> 24 == 127;
    return strcasecmp(address, "localhost") == 0 || strcmp(address, "::1") == 0;
}

static bool address_is_any(const char *address)
{
    return strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0;
}

static void address_copy(char to[CONFIG_ADDRESS_BYTES], const char *from)
{
    snprintf(to, CONFIG_ADDRESS_BYTES, "%s", from);
}

static int resolve_roster(struct config *config)
{
    if (config->servers)
        return 0;
    config->servers = calloc(1, sizeof(*config->servers));
    if (!config->servers)
        return ERR_MEMORY;
    struct config_server *server = config->servers;
    config->server_count = 1;
    if (!config->node[0])
        snprintf(config->node, sizeof(config->node), "%s", DEFAULT_NODE);
    memcpy(server->name, config->node, sizeof(server->name));
    address_copy(server->address, strcmp(config->listen_address, "::") == 0 ? "::1"
                                  : address_is_any(config->listen_address)
                                      ? "127.0.0.1"
                                      : config->listen_address);
    server->port = config->listen_port ? config->listen_port : DEFAULT_PORT;
    server->weight = 1;
    return 0;
}

static void resolve_chunk_bytes(struct config *config)
{
    uint32_t owners = 0;
    if (config->chunk_bytes > 0)
        return;
    for (uint32_t i = 0; i < config->server_count; i++)
        owners += config->servers[i].weight > 0;
    config->chunk_bytes = window_chunk_bytes(config->window_chunks, config->server_count, owners);
}

int config_resolve(struct config *config)
{
    int failure = resolve_roster(config);
    if (failure)
        return failure;
    if (!config->node[0] && config->server_count == 1)
        memcpy(config->node, config->servers[0].name, sizeof(config->node));
    config->self = 0;
    for (uint32_t i = config->server_count; i-- > 0;) {
        if (config->node[0] && strcmp(config->servers[i].name, config->node) == 0)
            config->self = i;
    }
    const struct config_server *self = &config->servers[config->self];
    if (!config->listen_port)
        config->listen_port = self->port;
    if (!config->protect[0])
        snprintf(config->protect, sizeof(config->protect), "%s",
                 config->secret_file[0] || config->certificate_file[0] ? "encrypt" : "none");
    resolve_chunk_bytes(config);
    if (!config->fabric_address[0])
        address_copy(config->fabric_address, address_is_any(config->listen_address)
                                                 ? self->address
                                                 : config->listen_address);
    return 0;
}

static void check_node(const struct config *config, struct config_report *report)
{
    if (config_report_is_wrong(report, "/node") || config_report_is_wrong(report, "/servers"))
        return;
    for (uint32_t i = 0; i < config->server_count; i++) {
        if (strcmp(config->servers[i].name, config->node) == 0)
            return;
    }
    char got[CONFIG_NAME_BYTES + 2];
    snprintf(got, sizeof(got), "\"%s\"", config->node);
    config_report_text(report, "/node", config->node[0] ? got : "nothing",
                       "one of the names in /servers, the first of them being \"%s\"",
                       config->servers[0].name);
}

static void check_server_unique(const struct config *config, uint32_t index,
                                struct config_report *report)
{
    const struct config_server *server = &config->servers[index];
    char pointer[64];
    char got[CONFIG_ADDRESS_BYTES + 16];
    bool name_checked = !server->name[0];
    bool address_checked = !server->port;
    for (uint32_t i = 0; i < index && !(name_checked && address_checked); i++) {
        const struct config_server *other = &config->servers[i];
        if (!name_checked && strcmp(other->name, server->name) == 0) {
            name_checked = true;
            snprintf(pointer, sizeof(pointer), "/servers/%" PRIu32 "/name", index);
            snprintf(got, sizeof(got), "\"%s\"", server->name);
            config_report_text(report, pointer, got,
                               "unique, and /servers/%" PRIu32 " has the same name", i);
        }
        if (!address_checked && other->port == server->port &&
            strcasecmp(other->address, server->address) == 0) {
            address_checked = true;
            snprintf(pointer, sizeof(pointer), "/servers/%" PRIu32 "/address", index);
            snprintf(got, sizeof(got), "%s port %u", server->address, (unsigned)server->port);
            config_report_text(report, pointer, got,
                               "unique, and /servers/%" PRIu32 " has the same address and port", i);
        }
    }
}

/* Returns how many servers own shards. */
static uint32_t check_roster(const struct config *config, struct config_report *report)
{
    uint32_t owners = 0;
    bool weight_wrong = config_report_is_wrong(report, "/servers");
    for (uint32_t i = 0; i < config->server_count; i++) {
        const struct config_server *server = &config->servers[i];
        owners += server->weight > 0;
        check_server_unique(config, i, report);
        if (address_is_any(server->address)) {
            char pointer[64];
            char got[CONFIG_ADDRESS_BYTES + 2];
            snprintf(pointer, sizeof(pointer), "/servers/%" PRIu32 "/address", i);
            snprintf(got, sizeof(got), "\"%s\"", server->address);
            config_report_text(report, pointer, got, "an address that other nodes can connect to");
        }
    }
    if (owners == 0 && !weight_wrong)
        config_report_text(report, "/servers", "weight 0 for every server",
                           "a roster in which at least one server has a weight above 0, since "
                           "somebody must own the shards");
    return owners;
}

uint64_t config_keep_bytes(const struct config *config)
{
    if (config->keep_steps == 0)
        return 0;
    return config->keep_bytes > 0 ? config->keep_bytes : config->memory_bytes / 4;
}

uint32_t config_late_ms(const struct config *config)
{
    bool sooner = config->collective_ms > 0 && config->collective_ms < config->late_ms;
    return sooner ? config->collective_ms : config->late_ms;
}

bool config_encrypts(const struct config *config)
{
    return strcmp(config->protect, "encrypt") == 0;
}

static void check_protection(const struct config *config, struct config_report *report)
{
    const struct {
        const char *pointer, *path;
    } files[] = {{"/certificate_file", config->certificate_file},
                 {"/key_file", config->key_file},
                 {"/authority_file", config->authority_file}};
    bool any = false;
    for (int i = 0; i < 3; i++) {
        if (config_report_is_wrong(report, files[i].pointer))
            return;
        any = any || files[i].path[0];
    }
    for (int i = 0; i < 3 && any; i++) {
        if (!files[i].path[0])
            config_report_text(report, files[i].pointer, "\"\"",
                               "given too: certificates need /certificate_file, /key_file and "
                               "/authority_file");
    }
    if (!any && !config->secret_file[0] && config_encrypts(config) &&
        !config_report_is_wrong(report, "/secret_file"))
        config_report_text(report, "/protect", "\"encrypt\"",
                           "\"none\" as long as there is neither a /secret_file nor a "
                           "/certificate_file: there is nothing to encrypt with");
}

static void check_beyond_loopback(const char *pointer, const char *address,
                                  const struct config *config, struct config_report *report)
{
    char got[CONFIG_ADDRESS_BYTES + 2];
    if (config->secret_file[0] || (config->certificate_file[0] && config_encrypts(config)) ||
        config_report_is_wrong(report, "/secret_file") ||
        config_report_is_wrong(report, "/certificate_file") ||
        config_report_is_wrong(report, "/protect") || config_report_is_wrong(report, pointer) ||
        config_is_loopback(address))
        return;
    snprintf(got, sizeof(got), "\"%s\"", address);
    config_report_text(
        report, pointer, got,
        "a loopback address as long as there is no /secret_file, nor certificates with "
        "/protect \"encrypt\": without them anybody who reaches the port could pose as "
        "a daemon of the roster");
}

static void check_addresses(const struct config *config, struct config_report *report)
{
    const struct config_server *self = &config->servers[config->self];
    bool fabric_wrong = config_report_is_wrong(report, "/fabric/address");
    char got[CONFIG_ADDRESS_BYTES + 2];
    check_beyond_loopback("/listen/address", config->listen_address, config, report);
    if (!fabric_wrong && address_is_any(config->fabric_address)) {
        snprintf(got, sizeof(got), "\"%s\"", config->fabric_address);
        config_report_text(report, "/fabric/address", got,
                           "an address of this node that other nodes can connect to");
    } else if (strcasecmp(config->fabric_address, config->listen_address) != 0 &&
               !address_is_any(config->listen_address)) {
        check_beyond_loopback("/fabric/address", config->fabric_address, config, report);
    }
    if (config->server_count > 1 && !config_report_is_wrong(report, "/listen/address") &&
        !config_report_is_wrong(report, "/servers") && !config_report_is_wrong(report, "/node") &&
        config_is_loopback(config->listen_address) && !config_is_loopback(self->address)) {
        snprintf(got, sizeof(got), "\"%s\"", config->listen_address);
        config_report_text(report, "/listen/address", got,
                           "an address that the other nodes reach, since they will try \"%s\" "
                           "(/servers/%" PRIu32 "/address)",
                           self->address, config->self);
    }
    if (config->fabric_port && config->fabric_port == config->listen_port) {
        snprintf(got, sizeof(got), "%u", (unsigned)config->fabric_port);
        config_report_text(report, "/fabric/port", got, "another port than the control port");
    }
    if (config_report_is_wrong(report, "/metrics"))
        return;
    if (config->metrics_address[0] && !config->metrics_port)
        config_report_text(report, "/metrics/port", "0",
                           "above 0, since /metrics/address is given (leave both out for off)");
    if (!config->metrics_address[0] && config->metrics_port)
        config_report_text(report, "/metrics/address", "\"\"",
                           "an address to listen on, since /metrics/port is given (leave both out "
                           "for off)");
    if (config->metrics_port && config->metrics_port == config->listen_port &&
        strcasecmp(config->metrics_address, config->listen_address) == 0) {
        snprintf(got, sizeof(got), "%u", (unsigned)config->metrics_port);
        config_report_text(report, "/metrics/port", got,
                           "another port than the control port of the same address");
    }
}

/* `least`: what one group needs. */
static void check_replay(const struct config *config, uint64_t least, struct config_report *report)
{
    char got[32];
    if (config_report_is_wrong(report, "/replay") ||
        config_report_is_wrong(report, "/limits/memory_bytes") || config->keep_steps == 0)
        return;
    if (!config->recovery && !config_report_is_wrong(report, "/recovery")) {
        snprintf(got, sizeof(got), "%" PRIu32, config->keep_steps);
        config_report_text(report, "/replay/keep_steps", got, "0, or /recovery true");
    }
    uint64_t left = config->memory_bytes > least ? config->memory_bytes - least : 0;
    if (config_keep_bytes(config) <= left || left == 0)
        return;
    snprintf(got, sizeof(got), "%" PRIu64, config_keep_bytes(config));
    config_report_text(
        report, "/replay/keep_bytes", got,
        "at most %" PRIu64 " bytes: of /limits/memory_bytes one group needs %" PRIu64, left, least);
}

static void check_sizes(const struct config *config, uint32_t owners, struct config_report *report)
{
    char got[32];
    if (config_report_is_wrong(report, "/data/chunk_bytes") ||
        config_report_is_wrong(report, "/data/window_chunks"))
        return;
    uint64_t window = (uint64_t)config->chunk_bytes * config->window_chunks;
    if (config->least_shard_bytes > window &&
        !config_report_is_wrong(report, "/data/least_shard_bytes")) {
        snprintf(got, sizeof(got), "%" PRIu32, config->least_shard_bytes);
        config_report_text(
            report, "/data/least_shard_bytes", got,
            "at most /data/chunk_bytes times /data/window_chunks (%" PRIu64 " bytes)", window);
    }
    uint64_t buffers = window_buffers_most(config->window_chunks, config->server_count, owners,
                                           config->servers[config->self].weight > 0);
    if (config->recovery)
        buffers *= 2; /* copies of what others may lack: as many as there are receives */
    uint64_t least = ((uint64_t)config->chunk_bytes + WIRE_HEADER_BYTES) * buffers;
    check_replay(config, least, report);
    if (config->memory_bytes < least && !config_report_is_wrong(report, "/limits/memory_bytes") &&
        !config_report_is_wrong(report, "/servers")) {
        snprintf(got, sizeof(got), "%" PRIu64, config->memory_bytes);
        config_report_text(report, "/limits/memory_bytes", got,
                           "at least %" PRIu64 " bytes, for one group: with %" PRIu32
                           " servers and "
                           "/data/window_chunks %" PRIu32 " a group may need %" PRIu64
                           " buffers of a chunk and its header (%" PRIu32 " + %d bytes)",
                           least, config->server_count, config->window_chunks, buffers,
                           config->chunk_bytes, WIRE_HEADER_BYTES);
    }
}

void config_check(const struct config *config, struct config_report *report)
{
    char got[32];
    uint32_t owners = check_roster(config, report);
    check_node(config, report);
    check_protection(config, report);
    check_addresses(config, report);
    check_sizes(config, owners, report);
    if (config->connections <= config->workers &&
        !config_report_is_wrong(report, "/limits/connections") &&
        !config_report_is_wrong(report, "/limits/workers")) {
        snprintf(got, sizeof(got), "%" PRIu32, config->connections);
        config_report_text(report, "/limits/connections", got,
                           "above /limits/workers (%" PRIu32
                           "), so that shoalctl gets in when all workers are there",
                           config->workers);
    }
    if (config->peer_ms / 2 < config->heartbeat_ms &&
        !config_report_is_wrong(report, "/timeouts/peer_ms") &&
        !config_report_is_wrong(report, "/timeouts/heartbeat_ms")) {
        snprintf(got, sizeof(got), "%" PRIu32, config->peer_ms);
        config_report_text(report, "/timeouts/peer_ms", got,
                           "at least twice /timeouts/heartbeat_ms (%" PRIu32 " ms)",
                           config->heartbeat_ms);
    }
}
