#include "common/config/config_table.h"

#include "common/base/env.h"
#include "common/config/provider.h"

#define FIELD(member)                                                                              \
    .offset = offsetof(struct config, member), .width = sizeof(((struct config *)0)->member)
#define SERVER_FIELD(member)                                                                       \
    .offset = offsetof(struct config_server, member),                                              \
    .width = sizeof(((struct config_server *)0)->member)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define TIB (1024 * GIB)
#define PIB (1024 * TIB)
#define DAY_MS 86400000ull

/* Patterns in what POSIX ERE and ECMA 262 have in common: one text for the check and the schema.
 * A host's last label holds a letter, which keeps a mistyped IPv4 address from passing as a name.
 */
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 "(" OCTET "\\.){3}" OCTET
#define IPV6 "[0-9A-Fa-f:]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[0-9A-Za-z_.-]+)?"
#define LINK_LOCAL "a link-local one with its interface, as in fe80::1%eth0"
#define HOST "([A-Za-z0-9_-]+\\.)*[A-Za-z0-9_-]*[A-Za-z][A-Za-z0-9_-]*"
#define PORT                                                                                       \
    "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"

#define NAME_PATTERN "^[A-Za-z0-9._-]+$"
#define NAME_SHAPE "of letters, digits, '.', '_' and '-'"
#define PATH_PATTERN "^/[ -~]*$"
#define PATH_SHAPE "that is an absolute path in ASCII"

#define NAME_MOST (CONFIG_NAME_BYTES - 1)
#define ADDRESS_MOST (CONFIG_ADDRESS_BYTES - 1)
#define PATH_MOST (CONFIG_PATH_BYTES - 1)
/* The longest path that sockaddr_un has room for, in bytes. */
#define SOCKET_PATH_MOST 107
/* An endpoint has room for the longest host, ":" and five digits. The parser checks the host's own
 * length. */
#define ENDPOINT_MOST (ADDRESS_MOST + 6)

static const char *const instruction_sets[] = {"auto", "scalar", "avx2", "avx512", NULL};
static const char *const protections[] = {"none", "encrypt", NULL};
static const char *const levels[] = {"error", "warning", "info", "debug", NULL};

static const struct config_key top_keys[] = {
    {.name = "recovery",
     .type = CONFIG_BOOLEAN,
     FIELD(recovery),
     .default_number = 0,
     .text = "A connection between two daemons that breaks while both live is made anew, within "
             "`timeouts.peer_ms`, and goes on where it was: jobs lose time. It takes up to twice "
             "the buffers, and a provider with connections (tcp, verbs). All daemons of the roster "
             "must have the same. False: jobs over that connection end with an error."},
    {.name = "node",
     .type = CONFIG_TEXT,
     FIELD(node),
     .least = 1,
     .most = NAME_MOST,
     .pattern = NAME_PATTERN,
     .shape = NAME_SHAPE,
     .default_note = "the only server's name, or \"localhost\" without a roster",
     .text = "This daemon's name in the roster. Required when the roster has several entries."},
    {.name = "secret_file",
     .type = CONFIG_TEXT,
     FIELD(secret_file),
     .least = 0,
     .most = PATH_MOST,
     .pattern = "^(/[ -~]*)?$",
     .shape = PATH_SHAPE ", or empty",
     .default_text = "",
     .text =
         "File with the secret that the daemons of the roster share, one line made by `shoalctl "
         "secret`; a second line is accepted too, while the secret is changed. Without one "
         "nothing but loopback addresses can be listened on."},
    {.name = "protect",
     .type = CONFIG_CHOICE,
     FIELD(protect),
     .choices = protections,
     .default_note = "\"encrypt\" with a `secret_file` or a `certificate_file`, else \"none\"",
     .text =
         "\"encrypt\": what goes between daemons is encrypted, with TLS 1.3 and AES-256-GCM, by "
         "the secret or by certificates. \"none\": it goes in the clear. All daemons of the "
         "roster must have the same."},
    {.name = "certificate_file",
     .type = CONFIG_TEXT,
     FIELD(certificate_file),
     .least = 0,
     .most = PATH_MOST,
     .pattern = "^(/[ -~]*)?$",
     .shape = PATH_SHAPE ", or empty",
     .default_text = "",
     .text = "PEM file with this node's certificate, and those that lead to the authority's. It is "
             "for clients and servers, and a subject alternative name (DNS) in it is the node's "
             "name. With `key_file` and `authority_file` it takes the place of the secret in TLS."},
    {.name = "key_file",
     .type = CONFIG_TEXT,
     FIELD(key_file),
     .least = 0,
     .most = PATH_MOST,
     .pattern = "^(/[ -~]*)?$",
     .shape = PATH_SHAPE ", or empty",
     .default_text = "",
     .text =
         "PEM file with the key of `certificate_file`, without a passphrase. Like the secret's, "
         "it must be closed to group and others."},
    {.name = "authority_file",
     .type = CONFIG_TEXT,
     FIELD(authority_file),
     .least = 0,
     .most = PATH_MOST,
     .pattern = "^(/[ -~]*)?$",
     .shape = PATH_SHAPE ", or empty",
     .default_text = "",
     .text = "PEM file with the certificates of the authorities that sign those of the roster."},
};

static const struct config_key server_keys[] = {
    {.name = "name",
     .type = CONFIG_TEXT,
     SERVER_FIELD(name),
     .least = 1,
     .most = NAME_MOST,
     .pattern = NAME_PATTERN,
     .shape = NAME_SHAPE,
     .required = true,
     .text = "The node's name, unique in the roster."},
    {.name = "address",
     .type = CONFIG_ENDPOINT,
     SERVER_FIELD(address),
     .least = 3,
     .most = ENDPOINT_MOST,
     .pattern = "^(" IPV4 "|" HOST "|\\[" IPV6 "\\]):" PORT "$",
     .shape = "HOST:PORT, where HOST is an IPv4 address, a host name or an IPv6 address in "
              "brackets (" LINK_LOCAL "), and PORT is 1 to 65535",
     .required = true,
     .text =
         "Where the other daemons reach this node's control port, unique in the roster. Behind a "
         "link-local address stands the interface of the node that reads the file: in that "
         "alone the files of nodes may differ."},
    {.name = "weight",
     .type = CONFIG_INTEGER,
     SERVER_FIELD(weight),
     .least = 0,
     .most = LAYOUT_MAX_WEIGHT,
     .default_number = 1,
     .text = "Its share of every buffer, in proportion to the other weights. 0: it owns no shards. "
             "At least one server has more."},
};

static const struct config_key socket_keys[] = {
    {.name = "path",
     .type = CONFIG_TEXT,
     FIELD(socket_path),
     .least = 2,
     .most = SOCKET_PATH_MOST,
     .pattern = PATH_PATTERN,
     .shape = PATH_SHAPE,
     .default_text = SHOAL_DEFAULT_SOCKET,
     .text = "Unix socket on which workers and `shoalctl` reach the daemon."},
    {.name = "mode",
     .type = CONFIG_MODE,
     FIELD(socket_mode),
     .least = 4,
     .most = 4,
     .pattern = "^0[0-7]{3}$",
     .shape = "that is an octal file mode such as \"0660\"",
     .default_text = "0660",
     .text = "Permissions of the socket: who may write to it may run jobs."},
};

static const struct config_key listen_keys[] = {
    {.name = "address",
     .type = CONFIG_ADDRESS,
     FIELD(listen_address),
     .least = 1,
     .most = ADDRESS_MOST,
     .pattern = "^(" IPV4 "|" HOST "|" IPV6 ")$",
     .shape = "that is an IPv4 address, an IPv6 address (" LINK_LOCAL ") or a host name",
     .default_text = "127.0.0.1",
     .text = "Address of the control port for the other daemons; \"0.0.0.0\" or \"::\" for all of "
             "this machine's. Beyond loopback only with a `secret_file` or certificates."},
    {.name = "port",
     .type = CONFIG_INTEGER,
     FIELD(listen_port),
     .least = 0,
     .most = 65535,
     .default_note = "0",
     .text = "TCP port of the control port. 0: the one in this node's roster entry, or 7070 "
             "without a roster."},
};

static const struct config_key fabric_keys[] = {
    {.name = "provider",
     .type = CONFIG_CHOICE,
     FIELD(provider),
     .choices = provider_choices,
     .default_text = "auto",
     .text = "libfabric provider for the data between daemons. \"auto\": the best of efa, verbs "
             "and tcp that is there. One that is named and not there is an error."},
    {.name = "address",
     .type = CONFIG_ADDRESS,
     FIELD(fabric_address),
     .least = 2,
     .most = ADDRESS_MOST,
     .pattern = "^(" IPV4 "|" HOST "|" IPV6 ")$",
     .shape = "that is an IPv4 address, an IPv6 address (" LINK_LOCAL ") or a host name",
     .default_note = "`listen.address`, or the host of this node's roster entry where that is "
                     "\"0.0.0.0\" or \"::\"",
     .text = "This node's address in the network that carries the data."},
    {.name = "port",
     .type = CONFIG_INTEGER,
     FIELD(fabric_port),
     .least = 0,
     .most = 65535,
     .default_number = 0,
     .text = "TCP port at which the other daemons reach this one with data, for a firewall that "
             "lets in this one and `listen.port`. 0: one that is free. Providers without IP "
             "addresses (efa, shm) have none."},
    {.name = "link_mbits",
     .type = CONFIG_INTEGER,
     FIELD(link_mbits),
     .least = 0,
     .most = UINT32_MAX,
     .default_note = "0",
     .unit = "Mbit/s",
     .text =
         "What this node's link to the others can carry each way: the page shows how much of it "
         "is used. Nothing else depends on it. 0: what its network interface says, where that "
         "is known."},
};

static const struct config_key data_keys[] = {
    {.name = "chunk_bytes",
     .type = CONFIG_INTEGER,
     FIELD(chunk_bytes),
     .least = 4 * KIB,
     .most = 16 * MIB,
     .multiple = 64,
     .default_number = 256 * KIB,
     .default_note =
         "262144 up to 8 servers in the roster, then so much that what a group receives "
         "at once takes 64 MiB at most: about 150000 with 64, 37000 with 256, 9400 with "
         "1000",
     .unit = "bytes",
     .text = "Unit of the pipeline: the most bytes of a chunk. Its contributions from all nodes "
             "should fit into the last-level cache."},
    {.name = "least_shard_bytes",
     .type = CONFIG_INTEGER,
     FIELD(least_shard_bytes),
     .least = 1,
     .most = GIB,
     .default_number = 16 * KIB,
     .unit = "bytes",
     .text = "Fewest bytes worth a server of their own: smaller buffers go to fewer servers, in "
             "turn. At most `chunk_bytes` times `window_chunks`."},
    {.name = "window_chunks",
     .type = CONFIG_INTEGER,
     FIELD(window_chunks),
     .least = 2,
     .most = 256,
     .default_number = 16,
     .unit = "chunks",
     .text = "Chunks in flight for each group and server."},
    {.name = "window_bytes",
     .type = CONFIG_INTEGER,
     FIELD(window_bytes),
     .least = 1,
     .most = GIB,
     .default_number = 512 * KIB,
     .unit = "bytes",
     .text = "Bytes of a collective in flight for each server, where the ranks are on several "
             "nodes; twice as many for a reduce_scatter. 4 chunks are in flight in any case, 2 of "
             "each part of an all_gather over more than 2 nodes, and a quarter of the server's "
             "shard at most. What is in flight lies in the buffers of the network: more than its "
             "bandwidth times its delay gains nothing, and makes switches drop packets. Nodes may "
             "differ."},
    {.name = "instruction_set",
     .type = CONFIG_CHOICE,
     FIELD(isa),
     .choices = instruction_sets,
     .default_text = "auto",
     .text = "Instruction set of the sums; all give the same bits. \"auto\": the widest that the "
             "processor has."},
    {.name = "reduce_threads",
     .type = CONFIG_INTEGER,
     FIELD(reduce_threads),
     .least = 0,
     .most = 256,
     .default_number = 2,
     .unit = "threads",
     .text = "Threads that sum. 0: the engine's thread sums itself."},
    {.name = "bind_threads",
     .type = CONFIG_BOOLEAN,
     FIELD(bind_threads),
     .default_number = 0,
     .text =
         "Bind the reduce threads to cores near the memory that they sum. For a host whose only "
         "daemon this is, and which leaves it cores."},
};

static const struct config_key limit_keys[] = {
    {.name = "memory_bytes",
     .type = CONFIG_INTEGER,
     FIELD(memory_bytes),
     .least = MIB,
     .most = PIB,
     .default_number = 4 * GIB,
     .unit = "bytes",
     .text =
         "Chunk buffers that the groups of all jobs are promised and memory that ranks share for "
         "results, together. It must be enough for any one group of the roster. One user other "
         "than root and the daemon's own may have half of it, or one group's where that "
         "is more. Receives that closed groups have left posted come on top: at most 4 times "
         "`data.window_chunks` buffers for each peer; and 8 for each peer where `protect` is "
         "\"encrypt\"."},
    {.name = "arena_bytes",
     .type = CONFIG_INTEGER,
     FIELD(arena_bytes),
     .least = MIB,
     .most = PIB,
     .default_number = 64 * GIB,
     .unit = "bytes",
     .text = "One worker's arena."},
    {.name = "user_bytes",
     .type = CONFIG_INTEGER,
     FIELD(user_bytes),
     .least = 0,
     .most = PIB,
     .default_number = 0,
     .unit = "bytes",
     .text = "Arenas of one user's workers and memory that they share for results, together. They "
             "count "
             "whole, whatever has been touched of them: a worker decides what the daemon touches. "
             "0: as "
             "much as the machine has memory. Arenas of ranks that have left, until the daemon has "
             "let go of "
             "them, may be as much again. Root and the daemon's own user may have more of both."},
    {.name = "pinned_bytes",
     .type = CONFIG_INTEGER,
     FIELD(pinned_bytes),
     .least = CONFIG_LEAST_PINNED_BYTES,
     .most = PIB,
     .default_number = 256 * MIB,
     .unit = "bytes",
     .text = "How much of one worker's arena is pinned for its GPU: memory that the system cannot "
             "take back while the worker lives. A worker may ask for less (SHOAL_PINNED_BYTES), "
             "not for more."},
    {.name = "jobs",
     .type = CONFIG_INTEGER,
     FIELD(jobs),
     .least = 1,
     .most = 65536,
     .default_number = 64,
     .unit = "jobs",
     .text =
         "Jobs at once on this node, of which one user other than root and the daemon's own may "
         "have half. One that rests costs memory for each of its ranks and "
         "nodes, too, which is not counted elsewhere."},
    {.name = "workers",
     .type = CONFIG_INTEGER,
     FIELD(workers),
     .least = 1,
     .most = 65536,
     .default_number = 1024,
     .unit = "workers",
     .text = "Workers at once on this node, of all jobs. One user other than root and the daemon's "
             "own may have half of them. Each takes descriptors (`connections`), "
             "and has rings that the daemon looks at in every round."},
    {.name = "groups_per_job",
     .type = CONFIG_INTEGER,
     FIELD(groups_per_job),
     .least = 1,
     .most = 65536,
     .default_number = 4096,
     .unit = "groups",
     .text = "Groups that one job may have open. One over several nodes is promised buffers of its "
             "own (`memory_bytes`), whether or not it has anything to do."},
    {.name = "connections",
     .type = CONFIG_INTEGER,
     FIELD(connections),
     .least = 2,
     .most = 1048576,
     .default_number = 4096,
     .unit = "connections",
     .text =
         "Connections to the Unix socket, of workers and `shoalctl`. More than `workers`, so "
         "that an administrator gets in when all workers are there. One user other than root "
         "and the daemon's own may have half of them. "
         "Seven descriptors for each worker, one for each other connection, and 554 must fit "
         "into the hard limit that the daemon is started with (`ulimit -Hn`). Where they do not, "
         "the defaults of `workers` and `connections` are halved until they do. For a daemon that "
         "`shoalrun` starts it is five for each worker, one for each other connection, eight for "
         "each node, and 36."},
};

static const struct config_key replay_keys[] = {
    {.name = "keep_steps",
     .type = CONFIG_INTEGER,
     FIELD(keep_steps),
     .least = 0,
     .most = 65536,
     .default_number = 0,
     .unit = "results",
     .text = "How many results of all-reduces a daemon with ranks keeps of a job: the last ones of "
             "its group of all ranks. A rank that is started again asks for those that it has "
             "missed (`shoal_replay`). It wants `recovery`. 0: none are kept."},
    {.name = "keep_bytes",
     .type = CONFIG_INTEGER,
     FIELD(keep_bytes),
     .least = 0,
     .most = PIB,
     .default_number = 0,
     .default_note = "0",
     .unit = "bytes",
     .text = "The most memory that these take, of all jobs: the oldest goes first, of the largest "
             "job of the user who has most. It is part of `limits.memory_bytes`, and set aside "
             "when the daemon starts. 0: a quarter of that."},
};

static const struct config_key timeout_keys[] = {
    {.name = "heartbeat_ms",
     .type = CONFIG_INTEGER,
     FIELD(heartbeat_ms),
     .least = 10,
     .most = 60000,
     .default_number = 500,
     .unit = "ms",
     .text = "Time between two heartbeats to a peer."},
    {.name = "peer_ms",
     .type = CONFIG_INTEGER,
     FIELD(peer_ms),
     .least = 20,
     .most = 600000,
     .default_number = 3000,
     .unit = "ms",
     .text =
         "A peer that has been silent for so long is gone: on its control connection, or on the "
         "fabric while work waits for it, there for 1000 at least. At least twice "
         "`heartbeat_ms`."},
    {.name = "join_ms",
     .type = CONFIG_INTEGER,
     FIELD(join_ms),
     .least = 100,
     .most = DAY_MS,
     .default_number = DAY_MS,
     .unit = "ms",
     .text = "The most that a job's first rank waits for its last. A worker asks for a time of its "
             "own (libshoal: `SHOAL_TIMEOUT_MS`, 5 minutes); the shorter one counts."},
    {.name = "group_ms",
     .type = CONFIG_INTEGER,
     FIELD(group_ms),
     .least = 100,
     .most = DAY_MS,
     .default_number = DAY_MS,
     .unit = "ms",
     .text = "The most that a group's first rank waits for its last. The worker's own time counts "
             "when it is shorter."},
    {.name = "late_ms",
     .type = CONFIG_INTEGER,
     FIELD(late_ms),
     .least = 1,
     .most = DAY_MS,
     .default_number = 5000,
     .unit = "ms",
     .text = "A rank that has not reached a collective so long after the first one is named in the "
             "log and in the status."},
    {.name = "collective_ms",
     .type = CONFIG_INTEGER,
     FIELD(collective_ms),
     .least = 0,
     .most = DAY_MS,
     .default_number = 0,
     .unit = "ms",
     .text = "A rank that has not handed its part of a collective over so long after the first one "
             "fails the job, by its name: a process that is stopped, or hangs. 0: its job waits, "
             "and each caller's own timeout decides. More than the longest step takes."},
    {.name = "restart_ms",
     .type = CONFIG_INTEGER,
     FIELD(restart_ms),
     .least = 0,
     .most = 600000,
     .default_number = 4000,
     .unit = "ms",
     .text = "In a job with `recovery`, the ranks of a node whose daemon has ended are waited for "
             "so long: they come back with the daemon that is started in its place. So are "
             "ranks that ended with it, for nobody is left to say so. More is for daemons that "
             "take longer to be started again. 0: they are lost with it."},
    {.name = "drain_ms",
     .type = CONFIG_INTEGER,
     FIELD(drain_ms),
     .least = 0,
     .most = DAY_MS,
     .default_number = 30000,
     .unit = "ms",
     .text = "What running collectives may take to finish once the daemon drains."},
};

static const struct config_key log_keys[] = {
    {.name = "level",
     .type = CONFIG_LEVEL,
     FIELD(log_level),
     .choices = levels,
     .default_text = "info",
     .text = "Least important lines that are written."},
};

static const struct config_key metrics_keys[] = {
    {.name = "address",
     .type = CONFIG_ADDRESS,
     FIELD(metrics_address),
     .least = 0,
     .most = ADDRESS_MOST,
     .pattern = "^(" IPV4 "|" HOST "|" IPV6 ")?$",
     .shape = "that is an IPv4 address, an IPv6 address (" LINK_LOCAL "), a host name, or empty",
     .default_text = "",
     .text = "Address of the HTTP port for metrics; empty: off. Whoever reaches it can read the "
             "status, without a secret."},
    {.name = "port",
     .type = CONFIG_INTEGER,
     FIELD(metrics_port),
     .least = 0,
     .most = 65535,
     .default_number = 0,
     .text = "TCP port for metrics; 0: off."},
};

#define SECTION(section_name, section_keys, section_text)                                          \
    {                                                                                              \
        .name = (section_name), .text = (section_text), .keys = (section_keys),                    \
        .key_count = COUNT(section_keys)                                                           \
    }

const struct config_section config_server_section = SECTION(
    "servers", server_keys,
    "The roster: one entry for every daemon, in the same order in every daemon's file; an "
    "entry's place is the node's number. Without it this daemon is the only one. At most 1024: "
    "a sum takes a contribution of each, and for more the chunks that fit into 64 MiB of "
    "receives (`data.chunk_bytes`) would be so small that headers fill the links.");

const struct config_section config_sections[] = {
    SECTION("", top_keys, "Keys at the top of the file."),
    SECTION("socket", socket_keys, "How workers of this node reach the daemon."),
    SECTION("listen", listen_keys, "How other daemons reach this one."),
    SECTION("fabric", fabric_keys, "How data travels between daemons."),
    SECTION("data", data_keys,
            "How buffers are cut and summed. chunk_bytes, least_shard_bytes and window_chunks "
            "are the same on every node."),
    SECTION("limits", limit_keys,
            "What may be in use at once; beyond it a request is refused. No key changes that a job "
            "has at most 32768 ranks, whose list travels in one message, and a group 1024 on one "
            "node and on 1024 nodes, as many as one sum takes."),
    SECTION("replay", replay_keys, "What is kept for ranks that are started again."),
    SECTION("timeouts", timeout_keys, "How long what may take."),
    SECTION("log", log_keys, "What is written to the log."),
    SECTION("metrics", metrics_keys, "Metrics over HTTP."),
};
const size_t config_section_count = COUNT(config_sections);
