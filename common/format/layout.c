#include "common/format/layout.h"

#include "common/base/error.h"

#include <assert.h>

/* Borders lie on multiples of this many bytes, so that chunks of an aligned buffer are aligned. */
#define UNIT_BYTES 64u
#define MAX_BUFFER_BYTES (1ull << 62)
/* Fewer pieces leave links idle while the pipeline fills and empties, for about one piece of every
 * shard, and fill the queue of a server's link with what the nodes have under way to it; smaller
 * ones cost more in messages than they gain. */
#define ENOUGH_PIECES_PER_SERVER 64u
#define LEAST_ENOUGH_PIECES 128u
#define MOST_ENOUGH_PIECES 256u
#define LEAST_PIECE_BYTES (64u << 10)
/* Linux' TCP hands up to 64 KiB, less headers, to the network at once. A message of so many bytes
 * with what goes around it (our header of 128, libfabric's tcp's of 16, the trailer of 24 of a
 * sealed one) fits into that: it is 43 segments of 1448 bytes, or with an MTU of 9000 7 of 8948,
 * nearly full. One of 64 KiB is mostly followed by a packet with its rest, which costs every
 * processor on its way as much as a large one. */
#define BURST_BYTES 62080u
/* Fewest pieces that are made as long as bursts: among fewer pieces, one piece more costs more than
 * the packets it saves. */
#define PIECES_WORTH_BURSTS 8u

struct layout_rule layout_rule_single(const struct layout_rule *rule, bool beside_others)
{
    static const uint32_t weight = 1;
    struct layout_rule single = *rule;
    single.servers = 1;
    single.weights = &weight;
    single.equal_weights = true;
    single.fine = beside_others && rule->servers > 1;
    return single;
}

bool layout_weights_equal(const uint32_t *weights, uint32_t servers)
{
    for (uint32_t i = 1; i < servers; i++)
        if (weights[i] != weights[0])
            return false;
    return true;
}

bool layout_rule_valid(const struct layout_rule *rule)
{
    if (rule->servers < 1 || rule->servers > LAYOUT_MAX_SERVERS || !rule->weights)
        return false;
    if (rule->chunk_bytes < UNIT_BYTES || rule->chunk_bytes % UNIT_BYTES != 0)
        return false;
    for (uint32_t i = 0; i < rule->servers; i++)
        if (rule->weights[i] < 1 || rule->weights[i] > LAYOUT_MAX_WEIGHT)
            return false;
    return true;
}

/* The server that is `steps` of them, less than there are, behind this one; they are in a ring. */
static uint32_t server_behind(const struct layout *layout, uint32_t server, uint32_t steps)
{
    uint32_t behind = server + steps;
    return behind < layout->rule->servers ? behind : behind - layout->rule->servers;
}

/* How many servers further than the one of the first part. */
static uint32_t server_steps(const struct layout *layout, uint32_t server)
{
    uint32_t steps = server + layout->rule->servers - layout->part_server;
    return steps < layout->rule->servers ? steps : steps - layout->rule->servers;
}

/* Whether shard 0 has no part, and is there for the sake of its server. */
static bool first_is_empty(const struct layout *layout)
{
    return layout->shards > layout->parts;
}

/* Return the number of the part that is this shard, in the buffer's order. */
static uint32_t shard_part(const struct layout *layout, uint32_t shard)
{
    if (first_is_empty(layout))
        return shard - 1;
    uint32_t part = server_steps(layout, layout->first_server) + shard;
    return part < layout->parts ? part : part - layout->parts;
}

uint32_t layout_server(const struct layout *layout, uint32_t shard)
{
    if (shard == 0)
        return layout->first_server;
    return server_behind(layout, layout->part_server, shard_part(layout, shard));
}

uint32_t layout_shard(const struct layout *layout, uint32_t server)
{
    uint32_t part = server_steps(layout, server);
    if (server == layout->first_server)
        return 0;
    if (part >= layout->parts)
        return layout->shards;
    if (first_is_empty(layout))
        return part + 1;
    uint32_t first = server_steps(layout, layout->first_server);
    return part >= first ? part - first : part + layout->parts - first;
}

static uint64_t unit_elements(const struct layout *layout)
{
    return UNIT_BYTES / layout->element_bytes;
}

static uint64_t buffer_units(const struct layout *layout)
{
    uint64_t elements = unit_elements(layout);
    return layout->count / elements + (layout->count % elements != 0);
}

/* First unit of the part before which weights of `weight_before` lie. */
static uint64_t part_border(const struct layout *layout, uint64_t weight_before)
{
    unsigned __int128 product = (unsigned __int128)buffer_units(layout) * weight_before;
    return (uint64_t)(product / layout->weight_sum);
}

static uint64_t part_weight(const struct layout *layout, uint32_t part)
{
    return layout->equal_weights
               ? 1
               : layout->rule->weights[server_behind(layout, layout->part_server, part)];
}

static uint64_t weight_before(const struct layout *layout, uint32_t part)
{
    if (layout->equal_weights)
        return part;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < part; i++)
        sum += part_weight(layout, i);
    return sum;
}

static uint64_t divide_up(uint64_t number, uint64_t by)
{
    return number / by + (number % by != 0);
}

static uint64_t largest_part_units(const struct layout *layout)
{
    /* A layout is made for every message: no walk over the servers where there is none to make. */
    if (layout->equal_weights)
        return divide_up(buffer_units(layout), layout->parts);
    uint64_t largest = 0, before = 0, border = 0;
    for (uint32_t i = 0; i < layout->parts; i++) {
        before += part_weight(layout, i);
        uint64_t next = part_border(layout, before);
        if (next - border > largest)
            largest = next - border;
        border = next;
    }
    return largest;
}

static uint64_t enough_pieces(uint32_t servers)
{
    uint32_t pieces = servers * ENOUGH_PIECES_PER_SERVER;
    if (pieces < LEAST_ENOUGH_PIECES)
        return LEAST_ENOUGH_PIECES;
    return pieces < MOST_ENOUGH_PIECES ? pieces : MOST_ENOUGH_PIECES;
}

/* The number near `pieces` that makes each piece as large as whole bursts; `pieces` itself where
 * chunk_bytes does not let them be so large. */
static uint64_t pieces_of_bursts(const struct layout_rule *rule, uint64_t units, uint64_t pieces)
{
    uint64_t burst = BURST_BYTES / UNIT_BYTES;
    uint64_t bursts = (divide_up(units, pieces) + burst / 2) / burst;
    bool fits = bursts > 0 && bursts * burst <= rule->chunk_bytes / UNIT_BYTES;
    return fits ? divide_up(units, bursts * burst) : pieces;
}

/* How many chunks the largest shard is cut into, and with it every shard. With one server, or
 * alone, the largest chunks are the cheapest. */
static uint64_t shard_pieces(const struct layout_rule *rule, uint64_t units)
{
    uint64_t pieces = divide_up(units, rule->chunk_bytes / UNIT_BYTES);
    if (units == 0)
        return 1;
    if (rule->servers == 1 && !rule->fine)
        return pieces;
    uint64_t finest = divide_up(units, LEAST_PIECE_BYTES / UNIT_BYTES);
    uint64_t enough = enough_pieces(rule->servers);
    if (finest < enough)
        enough = finest;
    if (pieces < enough)
        pieces = enough;
    return pieces < PIECES_WORTH_BURSTS ? pieces : pieces_of_bursts(rule, units, pieces);
}

int layout_init(struct layout *layout, const struct layout_rule *rule, uint64_t sequence,
                uint32_t identity, uint64_t count, uint32_t element_bytes)
{
    if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8)
        return ERR_INVALID;
    if (count > MAX_BUFFER_BYTES / element_bytes)
        return ERR_INVALID;
    assert(rule->servers > 0);
    uint64_t least = rule->least_shard_bytes ? rule->least_shard_bytes : 1;
    uint64_t parts = count * element_bytes / least;
    if (parts > rule->servers)
        parts = rule->servers;
    if (parts < 1)
        parts = 1;

    uint32_t first_server = (uint32_t)(sequence % rule->servers);
    struct layout made = {
        .rule = rule,
        .count = count,
        .element_bytes = element_bytes,
        .first_server = first_server,
        .part_server = identity ? identity % rule->servers : first_server,
        .parts = (uint32_t)parts,
        .equal_weights = rule->equal_weights || layout_weights_equal(rule->weights, rule->servers),
    };
    made.shards = made.parts + (server_steps(&made, first_server) >= made.parts);
    made.weight_sum = weight_before(&made, made.parts);

    uint64_t units = largest_part_units(&made);
    uint64_t pieces = shard_pieces(rule, units);
    if (pieces > LAYOUT_MAX_CHUNKS / made.shards)
        return ERR_INVALID;
    made.pieces = (uint32_t)pieces;
    made.chunks = made.pieces * made.shards;
    made.largest_bytes = (uint32_t)(divide_up(units, pieces) * UNIT_BYTES);
    *layout = made;
    return 0;
}

/* Units before piece `piece` when `units` are cut into `pieces` parts that differ by one at most.
 */
static uint64_t piece_border(uint64_t units, uint32_t pieces, uint32_t piece)
{
    uint64_t rest = units % pieces;
    return units / pieces * piece + (piece < rest ? piece : rest);
}

static uint64_t first_element(const struct layout *layout, uint64_t unit)
{
    uint64_t element = unit * unit_elements(layout);
    return element < layout->count ? element : layout->count;
}

struct layout_chunk layout_chunk(const struct layout *layout, uint32_t chunk)
{
    uint32_t shard = chunk % layout->shards;
    uint32_t piece = chunk / layout->shards;
    if (shard == 0 && first_is_empty(layout))
        return (struct layout_chunk){.server = layout->first_server};
    uint32_t part = shard_part(layout, shard);
    uint64_t before = weight_before(layout, part);
    uint64_t border = part_border(layout, before);
    uint64_t units = part_border(layout, before + part_weight(layout, part)) - border;
    uint64_t first = first_element(layout, border + piece_border(units, layout->pieces, piece));
    uint64_t next = first_element(layout, border + piece_border(units, layout->pieces, piece + 1));
    return (struct layout_chunk){
        .server = server_behind(layout, layout->part_server, part),
        .first = first,
        .count = next - first,
    };
}
