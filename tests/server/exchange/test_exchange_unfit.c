/* Sends that do not fit their receives: both calls end with what the other one wanted, and all else
 * goes on. */
#include "server/exchange/model/order.h"
#include "server/exchange/owner/slots.h"
#include "tests/lib/server/exchange_transfers.h"
#include "tests/lib/suite.h"

/* The rank's request is done; the completion says what the other one gave or asked for. */
static void expect_refused(struct fixture *fixture, uint32_t rank, uint64_t request, uint64_t count,
                           enum dtype dtype)
{
    for (uint32_t i = 0; i < fixture->completion_count; i++) {
        const struct arena_completion *it = &fixture->completions[i].it;
        if (fixture->completions[i].rank != rank || it->request != request)
            continue;
        ck_assert_uint_eq(it->chunk, ARENA_REFUSED);
        ck_assert_uint_eq(it->count, count);
        ck_assert_uint_eq(it->dtype, dtype);
    }
    ck_assert(fixture_completed(fixture, rank, request));
}

/* A receiver wants this of a send of 8 floats, and gets it or not. */
static const struct wanted {
    uint64_t count;
    enum dtype dtype;
    enum wire_take take;
    bool fits;
} wants[] = {
    {9, DTYPE_F32, WIRE_TAKE_ALL, false},
    {7, DTYPE_F32, WIRE_TAKE_ALL, false},
    {0, DTYPE_F32, WIRE_TAKE_ALL, false},
    {8, DTYPE_I32, WIRE_TAKE_ALL, false},
    {8ull * FIXTURE_CHUNK, DTYPE_F32, WIRE_TAKE_ALL, false},
    {7, DTYPE_F32, WIRE_TAKE_UP_TO, false},
    {8ull * FIXTURE_CHUNK, DTYPE_I32, WIRE_TAKE_UP_TO, false},
    {8, DTYPE_F32, WIRE_TAKE_UP_TO, true},
    {8ull * FIXTURE_CHUNK, DTYPE_F32, WIRE_TAKE_UP_TO, true},
};
#define WANTS (int)(sizeof(wants) / sizeof(wants[0]))

static void submit_wanted(struct fixture *fixture, uint32_t from, uint32_t to, uint64_t sequence,
                          const struct wanted *it, uint32_t place)
{
    struct arena_submission submission =
        transfer_ask(fixture, to, from, to, sequence, it->count, place);
    submission.dtype = (uint8_t)it->dtype;
    submission.op = (uint8_t)it->take;
    memset(fixture_data(fixture, to, place), 0, 8 * FIXTURE_CHUNK * sizeof(float));
    EXPECT_MSG(fixture_submit(fixture, to, &submission) == 0, "%s", fixture->error.text);
}

/* Check that a send that fits goes through afterwards, and that nothing is left. */
static void expect_that_all_goes_on(struct fixture *fixture)
{
    ck_assert_uint_eq(fixture->event_count, 0);
    ck_assert(exchange_idle(fixture->exchange));
    struct exchange_totals totals;
    exchange_totals(fixture->exchange, &totals);
    ck_assert_uint_eq(totals.slots, 0);
    transfer_send(fixture, 0, 3, transfer_number(6, 0), 5, 4);
    transfer_receive(fixture, 0, 3, transfer_number(6, 0), 5, 4);
    fixture_all_reduced(fixture);
    ck_assert(fixture_completed(fixture, 0, 4) && fixture_completed(fixture, 3, 4));
    transfer_expect(fixture, 3, 4, 5, 4);
}

START_TEST(ranks_of_a_node_that_disagree)
{
    struct fixture *fixture = transfer_fixture(0);
    const struct wanted *it = &wants[_i / 2];
    if (_i % 2)
        submit_wanted(fixture, 0, 3, transfer_number(5, 2), it, 2);
    transfer_send(fixture, 0, 3, transfer_number(5, 2), 8, 1);
    if (_i % 2 == 0)
        submit_wanted(fixture, 0, 3, transfer_number(5, 2), it, 2);
    fixture_all_reduced(fixture);
    if (it->fits) {
        ck_assert(fixture_completed(fixture, 0, 1) && fixture_completed(fixture, 3, 2));
        transfer_expect(fixture, 3, 2, 8, 1);
    } else {
        expect_refused(fixture, 0, 1, it->count, it->dtype);
        expect_refused(fixture, 3, 2, 8, DTYPE_F32);
    }
    expect_that_all_goes_on(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* The sender's node finds it, tells its rank, and answers without data. */
START_TEST(nodes_that_disagree)
{
    struct fixture *fixture = transfer_fixture(0);
    const struct wanted *it = &wants[_i / 2];
    struct wire_header header =
        transfer_header(1, WIRE_CONTRIBUTION, 0, 4, transfer_number(0, 0), it->count, 0);
    header.ask.dtype = (uint8_t)it->dtype;
    header.ask.op = (uint8_t)it->take;
    if (_i % 2)
        transfer_send(fixture, 0, 4, transfer_number(0, 0), 8, 1);
    ck_assert_int_eq(fixture_message(fixture, 1, header, NULL, 0), 0);
    if (_i % 2 == 0)
        transfer_send(fixture, 0, 4, transfer_number(0, 0), 8, 1);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header sent = fixture_sending(fixture, 0);
    ck_assert_int_eq(sent.type, WIRE_RESULT);
    ck_assert_uint_eq(sent.ask.count, 8);
    ck_assert_int_eq(sent.ask.dtype, DTYPE_F32);
    ck_assert_uint_eq(sent.payload_bytes, it->fits ? 8 * sizeof(float) : 0);
    fixture_all_sent(fixture);
    if (it->fits)
        ck_assert(fixture_completed(fixture, 0, 1));
    else
        expect_refused(fixture, 0, 1, it->count, it->dtype);
    expect_that_all_goes_on(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* A send of many chunks has given none of them. */
START_TEST(a_long_send_that_does_not_fit)
{
    struct fixture *fixture = transfer_fixture(0);
    transfer_send(fixture, 0, 4, transfer_number(0, 0), 8 * FIXTURE_CHUNK, 1);
    ck_assert_int_eq(
        transfer_asked(fixture, 1, 0, 4, transfer_number(0, 0), 9ull * FIXTURE_CHUNK, 0), 0);
    ck_assert_uint_eq(fixture->send_count, 1);
    ck_assert_uint_eq(fixture_sending(fixture, 0).payload_bytes, 0);
    fixture_all_sent(fixture);
    expect_refused(fixture, 0, 1, 9ull * FIXTURE_CHUNK, DTYPE_F32);
    expect_that_all_goes_on(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* The receiver's node hears of it with the first answer, or gets what was sent. */
START_TEST(a_receiver_that_does_not_fit)
{
    struct fixture *fixture = transfer_fixture(0);
    const struct wanted *it = &wants[_i];
    submit_wanted(fixture, 2, 3, transfer_number(0, 0), it, 1);
    ck_assert_uint_eq(fixture->send_count, 1);
    struct wire_header sent = fixture_sending(fixture, 0);
    ck_assert_uint_eq(sent.ask.count, it->count);
    ck_assert_uint_eq(sent.ask.op, it->take);
    fixture_all_sent(fixture);
    struct wire_header header = transfer_header(1, WIRE_RESULT, 2, 3, transfer_number(0, 0), 8, 0);
    ck_assert_int_eq(it->fits ? transfer_answered(fixture, 1, 2, 3, transfer_number(0, 0), 8, 0, 1)
                              : fixture_message(fixture, 1, header, NULL, 0),
                     0);
    fixture_all_reduced(fixture);
    if (it->fits) {
        ck_assert_uint_eq(fixture->completions[0].it.count, 8);
        ck_assert(fixture_completed(fixture, 3, 1));
        transfer_expect(fixture, 3, 1, 8, 201);
    } else {
        expect_refused(fixture, 3, 1, 8, DTYPE_F32);
    }
    expect_that_all_goes_on(fixture);
    fixture_destroy(fixture);
}
END_TEST

/* The receiver asks for the chunks behind the first one by the send's count. */
START_TEST(a_receive_up_to_many_chunks)
{
    enum { SENT = 3 * FIXTURE_CHUNK };
    static const struct wanted wanted = {8ull * FIXTURE_CHUNK, DTYPE_F32, WIRE_TAKE_UP_TO, true};
    struct fixture *fixture = transfer_fixture(0);
    submit_wanted(fixture, 2, 3, transfer_number(0, 0), &wanted, 1);
    fixture_all_sent(fixture);
    for (uint32_t chunk = 0; chunk < 3; chunk++) {
        ck_assert_int_eq(transfer_answered(fixture, 1, 2, 3, transfer_number(0, 0), SENT, chunk, 1),
                         0);
        if (chunk == 0) {
            ck_assert_uint_eq(fixture->send_count, 2);
            ck_assert_uint_eq(fixture_sending(fixture, 0).ask.count, SENT);
        }
        fixture_all_sent(fixture);
        fixture_all_reduced(fixture);
    }
    ck_assert_uint_eq(fixture->completions[0].it.count, SENT);
    ck_assert(fixture_completed(fixture, 3, 1));
    transfer_expect(fixture, 3, 1, SENT, 201);
    expect_that_all_goes_on(fixture);
    fixture_destroy(fixture);
}
END_TEST

START_TEST(the_receivers_node_is_told)
{
    struct fixture *fixture = transfer_fixture(0);
    transfer_receive(fixture, 4, 3, transfer_number(0, 0), 8, 1);
    fixture_all_sent(fixture);
    struct wire_header header = transfer_header(1, WIRE_ERROR, 4, 3, transfer_number(0, 0), 8, 0);
    header.status = ERR_MISMATCH;
    ck_assert_int_eq(fixture_message(fixture, 1, header, "they disagree", 13), 0);
    fixture_expect_failure(fixture, ERR_MISMATCH, "they disagree");
    fixture_destroy(fixture);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange_unfit");
    TCase *cases = tcase_create("cases");
    tcase_add_loop_test(cases, ranks_of_a_node_that_disagree, 0, 2 * WANTS);
    tcase_add_loop_test(cases, nodes_that_disagree, 0, 2 * WANTS);
    tcase_add_test(cases, a_long_send_that_does_not_fit);
    tcase_add_loop_test(cases, a_receiver_that_does_not_fit, 0, WANTS);
    tcase_add_test(cases, a_receive_up_to_many_chunks);
    tcase_add_test(cases, the_receivers_node_is_told);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
