#include "common/format/layout.h"

#include "common/base/error.h"
#include "common/format/wire.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

#define MOST_SERVERS 16 /* of a random rule */

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

struct span {
    uint64_t first, count;
};

static int span_compare(const void *a, const void *b)
{
    const struct span *left = a, *right = b;
    if (left->first != right->first)
        return left->first < right->first ? -1 : 1;
    return left->count < right->count ? -1 : left->count > right->count;
}

/* Everything that must hold of any cut. */
static void check_layout(const struct layout *layout)
{
    const struct layout_rule *rule = layout->rule;
    ck_assert_uint_ge(layout->chunks, 1);
    ck_assert_uint_eq(layout->chunks, layout->shards * layout->pieces);
    ck_assert_uint_le(layout->largest_bytes, rule->chunk_bytes);
    ck_assert_uint_le(layout->shards, rule->servers);
    struct span *spans = calloc(layout->chunks, sizeof(*spans));
    uint64_t *server_elements = calloc(rule->servers, sizeof(*server_elements));
    uint32_t servers[MOST_SERVERS];
    for (uint32_t shard = 0; shard < layout->shards; shard++) {
        servers[shard] = layout_server(layout, shard);
        ck_assert_uint_eq(layout_shard(layout, servers[shard]), shard);
    }
    for (uint32_t c = 0; c < layout->chunks; c++) {
        struct layout_chunk chunk = layout_chunk(layout, c);
        ck_assert_uint_eq(chunk.server, servers[c % layout->shards]);
        ck_assert_uint_le(chunk.count * layout->element_bytes, layout->largest_bytes);
        if (chunk.count > 0)
            ck_assert_uint_eq(chunk.first * layout->element_bytes % 64, 0);
        spans[c] = (struct span){chunk.first, chunk.count};
        server_elements[chunk.server] += chunk.count;
    }
    qsort(spans, layout->chunks, sizeof(*spans), span_compare);
    uint64_t end = 0;
    for (uint32_t c = 0; c < layout->chunks; c++) {
        ck_assert_uint_eq(spans[c].first, end);
        end += spans[c].count;
    }
    ck_assert_uint_eq(end, layout->count);

    /* A shard is off its exact share by one unit of 64 bytes at most (at either border). */
    uint64_t weight_sum = 0;
    for (uint32_t i = 0; i < layout->parts; i++)
        weight_sum += rule->weights[(layout->part_server + i) % rule->servers];
    for (uint32_t i = 0; i < layout->parts; i++) {
        uint32_t server = (layout->part_server + i) % rule->servers;
        double share = (double)layout->count * rule->weights[server] / (double)weight_sum;
        double off = (double)server_elements[server] - share;
        double unit = 64.0 / layout->element_bytes;
        ck_assert(off <= 2 * unit && off >= -2 * unit);
    }
    free(server_elements);
    free(spans);
}

START_TEST(test_random_cuts_tile_the_buffer)
{
    uint64_t state = 0x9e3779b97f4a7c15ull;
    uint32_t weights[MOST_SERVERS];
    for (int round = 0; round < 3000; round++) {
        bool equal = random_next(&state) % 2, large = round % 5 == 0;
        struct layout_rule rule = {
            .servers = 1 + (uint32_t)(random_next(&state) % MOST_SERVERS),
            .weights = weights,
            .chunk_bytes = 64 * (1 + (uint32_t)(random_next(&state) % (large ? 8192 : 64))),
            .least_shard_bytes = (uint32_t)(random_next(&state) % 4096),
        };
        for (uint32_t i = 0; i < rule.servers; i++)
            weights[i] = equal ? 3 : 1 + (uint32_t)(random_next(&state) % 1000);
        rule.equal_weights = round % 2 && layout_weights_equal(weights, rule.servers);
        ck_assert(layout_rule_valid(&rule));
        uint64_t sequence = random_next(&state);
        uint64_t count = random_next(&state) % (round % 3 == 0 ? 40 : 30000);
        if (large)
            count *= 1000;
        uint32_t element_bytes = 1u << (random_next(&state) % 4);
        struct layout layout;
        uint32_t identity = round % 4 < 2 ? 0 : (uint32_t)random_next(&state);
        ck_assert_int_eq(layout_init(&layout, &rule, sequence, identity, count, element_bytes), 0);
        ck_assert_uint_eq(layout.first_server, sequence % rule.servers);
        ck_assert_uint_eq(layout_chunk(&layout, 0).server, sequence % rule.servers);
        if (identity == 0) {
            ck_assert_uint_eq(layout.shards, layout.parts);
            ck_assert_uint_eq(layout.part_server, layout.first_server);
        }
        check_layout(&layout);
    }
}
END_TEST

/* Return which server has the element, in the collective with this number. */
static uint32_t owner_of(const struct layout_rule *rule, uint64_t sequence, uint32_t identity,
                         uint64_t count, uint64_t element)
{
    struct layout layout;
    ck_assert_int_eq(layout_init(&layout, rule, sequence, identity, count, 4), 0);
    for (uint32_t c = 0; c < layout.chunks; c++) {
        struct layout_chunk chunk = layout_chunk(&layout, c);
        if (element >= chunk.first && element - chunk.first < chunk.count)
            return chunk.server;
    }
    ck_abort_msg("nobody has element %u", (unsigned)element);
}

START_TEST(test_one_identity_always_has_the_same_owners)
{
    const uint32_t weights[2][4] = {{1, 1, 1, 1}, {3, 1, 5, 2}};
    static const uint64_t counts[] = {1, 100, 5000, 9000, 40000};
    for (int w = 0; w < 2; w++) {
        struct layout_rule rule = {4, weights[w], 4096, 16384, false, false};
        for (uint32_t identity = 1; identity < 10; identity++) {
            for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
                uint64_t last = counts[i] - 1;
                ck_assert_uint_eq(owner_of(&rule, 0, identity, counts[i], 0), identity % 4);
                for (uint64_t sequence = 1; sequence < 9; sequence++)
                    for (uint64_t element = 0; element <= last; element += 1 + last / 7)
                        ck_assert_uint_eq(owner_of(&rule, sequence, identity, counts[i], element),
                                          owner_of(&rule, 0, identity, counts[i], element));
            }
        }
    }
}
END_TEST

/* Where ranks that disagree meet, also about the identity; it is the only shard without a part. */
START_TEST(test_chunk_0_follows_the_sequence_number_whatever_the_identity)
{
    const uint32_t weights[4] = {1, 1, 1, 1};
    struct layout_rule rule = {4, weights, 65536, 16384, false, false};
    struct layout layout;
    for (uint64_t sequence = 0; sequence < 4; sequence++) {
        ck_assert_int_eq(layout_init(&layout, &rule, sequence, 2, 12000, 4), 0); /* two parts */
        bool has_part = sequence == 2 || sequence == 3;
        ck_assert_uint_eq(layout.parts, 2);
        ck_assert_uint_eq(layout.shards, has_part ? 2 : 3);
        ck_assert_uint_eq(layout_chunk(&layout, 0).server, sequence);
        ck_assert_uint_eq(layout_chunk(&layout, 0).count, has_part ? 6000 : 0);
        ck_assert_uint_eq(layout_shard(&layout, (uint32_t)sequence), 0);
        if (!has_part)
            ck_assert_uint_eq(layout_shard(&layout, 1 - (uint32_t)sequence), layout.shards);
    }
}
END_TEST

START_TEST(test_empty_buffer_has_one_chunk)
{
    uint32_t weights[3] = {1, 1, 1};
    struct layout_rule rule = {3, weights, 4096, 1024, false, false};
    struct layout layout;
    ck_assert_int_eq(layout_init(&layout, &rule, 7, 0, 0, 4), 0);
    ck_assert_uint_eq(layout.chunks, 1);
    struct layout_chunk chunk = layout_chunk(&layout, 0);
    ck_assert_uint_eq(chunk.server, 1);
    ck_assert_uint_eq(chunk.count, 0);
}
END_TEST

START_TEST(test_small_buffers_go_to_fewer_servers_in_turn)
{
    uint32_t weights[4] = {1, 1, 1, 1};
    struct layout_rule rule = {4, weights, 65536, 16384, false, false};
    struct layout layout;
    const struct {
        uint64_t bytes;
        uint32_t shards;
    } cases[] = {{4, 1}, {16383, 1}, {32764, 1}, {32768, 2}, {49152, 3}, {65536, 4}, {1 << 20, 4}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint64_t sequence = 0; sequence < 9; sequence++) {
            ck_assert_int_eq(layout_init(&layout, &rule, sequence, 0, cases[i].bytes, 1), 0);
            ck_assert_uint_eq(layout.shards, cases[i].shards);
            ck_assert_uint_eq(layout_chunk(&layout, 0).server, sequence % 4);
            check_layout(&layout);
        }
    }
}
END_TEST

START_TEST(test_weights_are_followed)
{
    uint32_t weights[3] = {1, 2, 5};
    struct layout_rule rule = {3, weights, 1024, 64, false, false};
    struct layout layout;
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 8 * 1024, 1), 0);
    uint64_t bytes[3] = {0};
    for (uint32_t c = 0; c < layout.chunks; c++) {
        struct layout_chunk chunk = layout_chunk(&layout, c);
        bytes[chunk.server] += chunk.count;
    }
    ck_assert_uint_eq(bytes[0], 1024);
    ck_assert_uint_eq(bytes[1], 2048);
    ck_assert_uint_eq(bytes[2], 5120);
    /* The largest shard decides on the number of pieces. */
    ck_assert_uint_eq(layout.pieces, 5);
}
END_TEST

/* Enough chunks for a pipeline, where several servers share the buffer and chunks stay worth it. */
START_TEST(test_shards_are_cut_fine_enough)
{
    uint32_t weights[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct {
        uint32_t servers;
        uint64_t bytes;
        uint32_t pieces;
    } cases[] = {
        {4, 4 * 65536, 1},
        {4, 4 * 65536 + 4 * 64, 2},
        {4, 4 * 7 * 65536, 7}, /* few: one more would cost more than it is worth */
        {4, 4 * 8 * 65536, 9},
        {4, 4ull << 20, 17},
        {4, 16ull << 20, 68},
        {4, 32ull << 20, 136},
        {4, 64ull << 20, 271},
        {4, 256ull << 20, 271},
        {4, (256ull << 20) + 64, 271},
        {4, 512ull << 20, 541},
        {8, 128ull << 20, 271},
        {3, 60ull << 20, 169},
        {3, 144ull << 20, 203},
        {2, 128 * 131072, 136},
        {2, 64ull << 20, 136},
        {2, 24ull << 20, 102},
        {1, 4 * 65536, 1},
        {1, 4ull << 20, 16},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct layout_rule rule = {cases[i].servers, weights, 256 << 10, 16 << 10, false, false};
        struct layout layout;
        ck_assert_int_eq(layout_init(&layout, &rule, i, 0, cases[i].bytes, 1), 0);
        ck_assert_uint_eq(layout.shards, cases[i].servers);
        ck_assert_uint_eq(layout.pieces, cases[i].pieces);
        check_layout(&layout);
    }
}
END_TEST

/* The messages of a large buffer leave no small rest behind what TCP hands to the network at once:
 * whole segments of up to 64 KiB less its headers, of 1448 bytes, and with jumbo frames of 8948. */
START_TEST(test_messages_fill_what_the_network_takes_at_once)
{
    const uint32_t weights[4] = {1, 1, 1, 1}, headers = WIRE_HEADER_BYTES + 16;
    const uint32_t bursts_bytes[] = {65160, 62636};
    for (uint64_t bytes = 32ull << 20; bytes <= 2ull << 30; bytes += 7777777) {
        struct layout_rule rule = {4, weights, 256 << 10, 16 << 10, true, false};
        struct layout layout;
        ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, bytes, 1), 0);
        ck_assert_uint_le(layout.largest_bytes, 256 << 10);
        for (size_t i = 0; i < 2; i++) {
            uint32_t message = layout.largest_bytes + headers;
            uint32_t bursts = (message + bursts_bytes[i] - 1) / bursts_bytes[i];
            ck_assert_uint_ge(message, bursts * bursts_bytes[i] / 100 * 93);
        }
    }
}
END_TEST

/* The example of common/format/layout.h. */
START_TEST(test_the_headers_example)
{
    uint32_t weights[4] = {1, 1, 1, 1};
    struct layout_rule rule = {.servers = 4,
                               .weights = weights,
                               .chunk_bytes = 1u << 20,
                               .least_shard_bytes = 65536,
                               .equal_weights = true};
    struct layout layout;
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 16u << 20, 4), 0);
    ck_assert_uint_eq(layout.shards, 4);
    ck_assert_uint_eq(layout.pieces, 271);
    ck_assert_uint_eq(layout.chunks, 1084);
    ck_assert_uint_eq(layout.largest_bytes, 61952);
}
END_TEST

/* Blocks go to several servers at the same time, each to one, over the same links. */
START_TEST(test_a_block_is_cut_as_for_two_servers)
{
    uint32_t weights[4] = {1, 1, 1, 1};
    const struct {
        uint32_t servers;
        uint64_t bytes;
        uint32_t pieces;
    } cases[] = {{4, 65536, 1},         {4, 65536 + 64, 2},    {2, 16ull << 20, 136},
                 {4, 32ull << 20, 136}, {4, 64ull << 20, 271}, {1, 1ull << 20, 4},
                 {1, 16ull << 20, 64}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct layout_rule rule = {cases[i].servers, weights, 256 << 10, 16 << 10, true, false};
        struct layout_rule single = layout_rule_single(&rule, true);
        struct layout layout;
        ck_assert_int_eq(layout_init(&layout, &single, i, 0, cases[i].bytes, 1), 0);
        ck_assert_uint_eq(layout.shards, 1);
        ck_assert_uint_eq(layout.pieces, cases[i].pieces);
        check_layout(&layout);
        single = layout_rule_single(&rule, false); /* alone */
        ck_assert_int_eq(layout_init(&layout, &single, i, 0, cases[i].bytes, 1), 0);
        ck_assert_uint_eq(layout.pieces, (cases[i].bytes + (256 << 10) - 1) / (256 << 10));
    }
}
END_TEST

/* The nearest number of whole bursts is taken where it fits, and else nothing. */
START_TEST(test_chunks_without_room_for_bursts_stay_as_configured)
{
    const uint32_t weights[4] = {1, 1, 1, 1};
    const struct {
        uint32_t chunk_bytes, pieces;
    } cases[] = {{62080, 4325},  {62144, 4325},  {65536, 4325}, {98304, 2731},
                 {122880, 2185}, {124160, 2163}, {131072, 2163}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct layout_rule rule = {4, weights, cases[i].chunk_bytes, 16 << 10, true, false};
        struct layout layout;
        ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 1ull << 30, 1), 0);
        ck_assert_uint_eq(layout.pieces, cases[i].pieces);
        ck_assert_uint_le(layout.largest_bytes, cases[i].chunk_bytes);
    }
}
END_TEST

/* Where the configured chunks are smaller than that, they decide. */
START_TEST(test_small_chunks_stay_as_configured)
{
    uint32_t weights[2] = {1, 3};
    struct layout_rule rule = {2, weights, 8192, 64, false, false};
    struct layout layout;
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 65536, 1), 0);
    ck_assert_uint_eq(layout.pieces, 6);
    check_layout(&layout);
}
END_TEST

/* The largest shard decides, so the chunks of the others are smaller than the least. */
START_TEST(test_largest_shard_decides_how_fine)
{
    uint32_t weights[3] = {1, 1, 6};
    struct layout_rule rule = {3, weights, 256 << 10, 64, false, false};
    struct layout layout;
    ck_assert_int_eq(layout_init(&layout, &rule, 2, 0, 24ull << 20, 1), 0);
    ck_assert_uint_eq(layout.pieces, 153);
    ck_assert_uint_eq(layout.largest_bytes, 1928 * 64);
    ck_assert_uint_eq(layout_chunk(&layout, 0).server, 2);
    ck_assert_uint_eq(layout_chunk(&layout, 0).count, 1928 * 64);
    ck_assert_uint_eq(layout_chunk(&layout, 1).count, 322 * 64);
    check_layout(&layout);
}
END_TEST

START_TEST(test_equal_weights_cut_alike_whatever_their_value)
{
    uint32_t ones[5] = {1, 1, 1, 1, 1},
             many[5] = {LAYOUT_MAX_WEIGHT, LAYOUT_MAX_WEIGHT, LAYOUT_MAX_WEIGHT, LAYOUT_MAX_WEIGHT,
                        LAYOUT_MAX_WEIGHT};
    struct layout_rule a = {5, ones, 256, 64, false, false}, b = {5, many, 256, 64, false, false};
    struct layout left, right;
    for (uint64_t count = 0; count < 3000; count += 37) {
        ck_assert_int_eq(layout_init(&left, &a, count, 0, count, 2), 0);
        ck_assert_int_eq(layout_init(&right, &b, count, 0, count, 2), 0);
        ck_assert_uint_eq(left.chunks, right.chunks);
        for (uint32_t c = 0; c < left.chunks; c++) {
            struct layout_chunk x = layout_chunk(&left, c), y = layout_chunk(&right, c);
            ck_assert(x.server == y.server && x.first == y.first && x.count == y.count);
        }
    }
}
END_TEST

START_TEST(test_great_buffers_do_not_overflow)
{
    uint32_t weights[LAYOUT_MAX_SERVERS];
    for (uint32_t i = 0; i < LAYOUT_MAX_SERVERS; i++)
        weights[i] = LAYOUT_MAX_WEIGHT - i;
    struct layout_rule rule = {LAYOUT_MAX_SERVERS, weights, 0xffffffc0u, 1, false, false};
    struct layout layout;
    ck_assert_int_eq(layout_init(&layout, &rule, 5, 0, 1ull << 50, 8), 0);
    uint64_t end = 0;
    for (uint32_t shard = 0; shard < layout.shards; shard++) {
        struct layout_chunk first = layout_chunk(&layout, shard);
        struct layout_chunk last = layout_chunk(&layout, layout.chunks - layout.shards + shard);
        ck_assert_uint_eq(first.first, end);
        ck_assert_uint_le(last.count * 8, rule.chunk_bytes);
        end = last.first + last.count;
    }
    ck_assert_uint_eq(end, 1ull << 50);
}
END_TEST

START_TEST(test_impossible_buffers_are_refused)
{
    uint32_t weights[2] = {1, 1};
    struct layout_rule rule = {2, weights, 64, 64, false, false};
    struct layout layout = {.chunks = 99};
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 1ull << 62, 8), ERR_INVALID);
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, UINT64_MAX, 1), ERR_INVALID);
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 64ull * LAYOUT_MAX_CHUNKS + 1, 1),
                     ERR_INVALID);
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 1, 3), ERR_INVALID);
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 1, 0), ERR_INVALID);
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 1, 16), ERR_INVALID);
    ck_assert_uint_eq(layout.chunks, 99);
    ck_assert_int_eq(layout_init(&layout, &rule, 0, 0, 64ull * LAYOUT_MAX_CHUNKS, 1), 0);
    ck_assert_uint_eq(layout.chunks, LAYOUT_MAX_CHUNKS);
}
END_TEST

START_TEST(test_rules_are_checked)
{
    uint32_t weights[2] = {1, LAYOUT_MAX_WEIGHT};
    const struct layout_rule good = {2, weights, 64, 0, false, false};
    ck_assert(layout_rule_valid(&good));
    struct layout_rule rule = good;
    rule.servers = 0;
    ck_assert(!layout_rule_valid(&rule));
    rule.servers = LAYOUT_MAX_SERVERS + 1;
    ck_assert(!layout_rule_valid(&rule));
    rule = good;
    rule.weights = NULL;
    ck_assert(!layout_rule_valid(&rule));
    rule = good;
    rule.chunk_bytes = 0;
    ck_assert(!layout_rule_valid(&rule));
    rule.chunk_bytes = 100;
    ck_assert(!layout_rule_valid(&rule));
    weights[0] = 0;
    ck_assert(!layout_rule_valid(&good));
    weights[0] = LAYOUT_MAX_WEIGHT + 1;
    ck_assert(!layout_rule_valid(&good));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layout");
    TCase *cases = tcase_create("layout");
    tcase_set_timeout(cases, 240); /* on a machine that does much else */
    tcase_add_test(cases, test_random_cuts_tile_the_buffer);
    tcase_add_test(cases, test_one_identity_always_has_the_same_owners);
    tcase_add_test(cases, test_chunk_0_follows_the_sequence_number_whatever_the_identity);
    tcase_add_test(cases, test_empty_buffer_has_one_chunk);
    tcase_add_test(cases, test_small_buffers_go_to_fewer_servers_in_turn);
    tcase_add_test(cases, test_weights_are_followed);
    tcase_add_test(cases, test_shards_are_cut_fine_enough);
    tcase_add_test(cases, test_messages_fill_what_the_network_takes_at_once);
    tcase_add_test(cases, test_the_headers_example);
    tcase_add_test(cases, test_a_block_is_cut_as_for_two_servers);
    tcase_add_test(cases, test_chunks_without_room_for_bursts_stay_as_configured);
    tcase_add_test(cases, test_small_chunks_stay_as_configured);
    tcase_add_test(cases, test_largest_shard_decides_how_fine);
    tcase_add_test(cases, test_equal_weights_cut_alike_whatever_their_value);
    tcase_add_test(cases, test_great_buffers_do_not_overflow);
    tcase_add_test(cases, test_impossible_buffers_are_refused);
    tcase_add_test(cases, test_rules_are_checked);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
