/* The configuration files of embedded daemons. */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config.h"
#include "common/text/json_comments.h"
#include "worker/programs/shoalrun/launcher.h"

#define HEARTBEAT_NODES 32u
#define HEARTBEAT_MS 500u /* the daemon's default, and its peer_ms in heartbeats */
#define PEER_HEARTBEATS 6

#define ARENA_BYTES (UINT64_C(1) << 40) /* more than workers ask for by themselves */

void launch_host_name(const char *host, char name[LAUNCH_JOB_BYTES])
{
    snprintf(name, LAUNCH_JOB_BYTES, "%.63s", *host ? host : "node");
    for (char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._-", *at))
            *at = '-';
}

void launch_config_name(const struct launch_config *config, uint32_t node,
                        char name[LAUNCH_JOB_BYTES])
{
    if (config->hosts)
        snprintf(name, LAUNCH_JOB_BYTES, "%s", config->hosts[node].name);
    else if (config->name && config->worker_nodes + config->cpu_nodes == 1)
        snprintf(name, LAUNCH_JOB_BYTES, "%s", config->name);
    else
        launch_node_name(name, config->worker_nodes, node);
}

static json_t *roster_build(const struct launch_config *config)
{
    uint32_t worker_weight, cpu_weight;
    launch_weights(config->worker_nodes, config->cpu_nodes, &worker_weight, &cpu_weight);
    json_t *servers = json_array();
    for (uint32_t i = 0; servers && i < config->worker_nodes + config->cpu_nodes; i++) {
        char name[LAUNCH_JOB_BYTES];
        launch_config_name(config, i, name);
        const char *host = config->hosts ? config->hosts[i].address : "127.0.0.1";
        char address[LAUNCH_HOST_BYTES + 16];
        snprintf(address, sizeof(address), strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
                 config->ports[i]);
        json_t *server = json_pack("{s:s, s:s, s:i}", "name", name, "address", address, "weight",
                                   (int)(i < config->worker_nodes ? worker_weight : cpu_weight));
        if (json_array_append_new(servers, server)) {
            json_decref(servers);
            return NULL;
        }
    }
    return servers;
}

/* Every daemon sends every other one heartbeats, and here all are on one machine: beyond 32 they
 * are as many in a second as 32 send, however many there are. One that dies closes its connections,
 * so that nobody need wait for a heartbeat to know it. NULL: the defaults are right. */
static json_t *timeouts_build(const struct launch_config *config)
{
    uint32_t nodes = config->worker_nodes + config->cpu_nodes;
    if (nodes <= HEARTBEAT_NODES || config->hosts)
        return NULL;
    int heartbeat_ms = (int)(HEARTBEAT_MS * nodes * nodes / (HEARTBEAT_NODES * HEARTBEAT_NODES));
    return json_pack("{s:i, s:i}", "heartbeat_ms", heartbeat_ms, "peer_ms",
                     heartbeat_ms * PEER_HEARTBEATS);
}

static json_t *config_build(const struct launch_config *config, uint32_t self,
                            const char *socket_path)
{
    char name[LAUNCH_JOB_BYTES];
    launch_config_name(config, self, name);
    json_t *fabric = NULL, *limits = json_pack("{s:I}", "arena_bytes", ARENA_BYTES);
    if (config->provider || config->fabric)
        fabric = json_pack("{s:s*, s:s*, s:i}", "provider", config->provider, "address",
                           config->fabric, "port", (int)config->fabric_port);
    json_t *root = json_pack("{s:s, s:o, s:{s:s}, s:{s:s, s:i}, s:o*, s:o}", "node", name,
                             "servers", roster_build(config), "socket", "path", socket_path,
                             "listen", "address", config->listen ? config->listen : "127.0.0.1",
                             "port", (int)config->ports[self], "fabric", fabric, "limits", limits);
    json_t *timeouts = root ? timeouts_build(config) : NULL;
    if (!root)
        return NULL;
    int wrong = 0;
    if (config->pinned_bytes)
        wrong |= json_object_set_new(limits, "pinned_bytes",
                                     json_integer((json_int_t)config->pinned_bytes));
    if (timeouts)
        wrong |= json_object_set_new(root, "timeouts", timeouts);
    if (wrong) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static int extra_merge(json_t *root, const struct launch_config *config, struct error *error)
{
    if (!config->extra)
        return 0;
    json_error_t position;
    char *bare = json_without_comments(config->extra, strlen(config->extra));
    if (!bare)
        return error_set(error, ERR_MEMORY, "out of memory");
    json_t *extra = json_loads(bare, JSON_REJECT_DUPLICATES, &position);
    free(bare);
    if (!extra)
        return error_set(error, ERR_CONFIG, "%s:%d:%d: %s", config->extra_name, position.line,
                         position.column, position.text);
    int result = 0;
    if (!json_is_object(extra))
        result = error_set(error, ERR_CONFIG, "%s: must be a JSON object", config->extra_name);
    else if (json_object_update_recursive(root, extra))
        result = error_set(error, ERR_MEMORY, "out of memory");
    json_decref(extra);
    return result;
}

/* Whether what a daemon says in this part of its configuration can be heard on this machine alone.
 */
static bool stays_here(const json_t *root, const char *part)
{
    const char *address =
        json_string_value(json_object_get(json_object_get(root, part), "address"));
    return !address || config_is_loopback(address);
}

/* Add the run's secret to what the user has said: without one, whoever reaches the port could pose
 * as a daemon of the run. Daemons with a secret encrypt unless "protect" is "none". */
static int secret_add(json_t *root, const struct launch_config *config, struct error *error)
{
    if (!config->secret_path || json_object_get(root, "secret_file") ||
        json_object_get(root, "certificate_file"))
        return 0;
    if (json_object_set_new(root, "secret_file", json_string(config->secret_path)) ||
        (!json_object_get(root, "protect") && stays_here(root, "listen") &&
         stays_here(root, "fabric") && json_object_set_new(root, "protect", json_string("none"))))
        return error_set(error, ERR_MEMORY, "out of memory");
    return 0;
}

/* All daemons of one machine cannot have one port. The first one's page shows what the others do,
 * too. */
static int metrics_add(json_t *root, const struct launch_config *config, uint32_t self,
                       struct error *error)
{
    if (self > 0 && !config->hosts)
        json_object_del(root, "metrics");
    if (self > 0)
        return 0;
    json_t *said = json_object_get(root, "metrics");
    if (config->page_port == 0 || (said && !json_is_object(said))) /* which the daemon refuses */
        return 0;
    json_t *metrics = json_pack("{s:s, s:i}", "address", "127.0.0.1", "port", config->page_port);
    int result = metrics && said ? json_object_update(metrics, said) : 0;
    if (metrics == NULL || result || json_object_set(root, "metrics", metrics))
        result = error_set(error, ERR_MEMORY, "out of memory");
    json_decref(metrics);
    return result;
}

int launch_config_text(const struct launch_config *config, uint32_t self, const char *socket_path,
                       char **text, struct error *error)
{
    json_t *root = config_build(config, self, socket_path);
    if (!root)
        return error_set(error, ERR_MEMORY, "cannot write the configuration of node %u", self);
    int result = extra_merge(root, config, error);
    if (result == 0)
        result = secret_add(root, config, error);
    if (result == 0)
        result = metrics_add(root, config, self, error);
    if (result == 0) {
        char *dumped = json_dumps(root, JSON_INDENT(2));
        if (dumped)
            *text = dumped;
        else
            result = error_set(error, ERR_MEMORY, "out of memory");
    }
    json_decref(root);
    return result;
}

bool launch_config_recovers(const char *text)
{
    json_t *root = json_loads(text, 0, NULL);
    bool recovers = json_is_true(json_object_get(root, "recovery"));
    json_decref(root);
    return recovers;
}

int launch_status_page(const char *status, char url[LAUNCH_URL_BYTES])
{
    json_t *root = json_loads(status, 0, NULL);
    const char *page = json_string_value(json_object_get(root, "page"));
    const char *type = json_string_value(json_object_get(root, "type"));
    int result = page ? 0 : type && strcmp(type, "status") == 0 ? ERR_INVALID : ERR_DISCONNECTED;
    if (page)
        snprintf(url, LAUNCH_URL_BYTES, "%s", page);
    json_decref(root);
    return result;
}
