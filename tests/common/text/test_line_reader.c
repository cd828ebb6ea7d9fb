/* Streams cut into lines, however the bytes arrive. */
#include "common/text/line_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

static struct line_reader reader;
static struct error error;
static char *line;
static size_t length;

static void teardown(void)
{
    line_reader_clear(&reader);
}

static void start(size_t line_bytes)
{
    line_reader_init(&reader, line_bytes);
    error = (struct error){0};
}

static void feed(const char *bytes, size_t count)
{
    ck_assert_int_eq(line_reader_feed(&reader, bytes, count, &error), 0);
}

static void feed_text(const char *text)
{
    feed(text, strlen(text));
}

static int next(void)
{
    return line_reader_next(&reader, &line, &length, &error);
}

static void expect(const char *text)
{
    ck_assert_int_eq(next(), 1);
    ck_assert_uint_eq(length, strlen(text));
    ck_assert_str_eq(line, text);
}

START_TEST(test_nothing_is_no_line)
{
    start(16);
    ck_assert_int_eq(next(), 0);
    feed("", 0);
    ck_assert_int_eq(next(), 0);
    feed_text("half");
    ck_assert_int_eq(next(), 0);
    ck_assert_int_eq(next(), 0); /* asking again finds no more */
    feed_text("\n");
    expect("half");
    ck_assert_int_eq(next(), 0);
}
END_TEST

START_TEST(test_several_in_one_piece)
{
    start(16);
    feed_text("a\nbb\n\nccc\nd");
    expect("a");
    expect("bb");
    expect("");
    expect("ccc");
    ck_assert_int_eq(next(), 0);
    feed_text("d\ne\n");
    expect("dd");
    expect("e");
    ck_assert_int_eq(next(), 0);
}
END_TEST

START_TEST(test_feeding_with_lines_left)
{
    /* Bytes that have not been asked for yet stay in order, and whole. */
    start(16);
    feed_text("one\ntwo\nth");
    expect("one");
    feed_text("ree\nfour\n");
    expect("two");
    expect("three");
    feed("", 0); /* drops what was given out and nothing else */
    expect("four");
    ck_assert_int_eq(next(), 0);
}
END_TEST

START_TEST(test_carriage_returns)
{
    start(16);
    feed_text("a\r\n\r\nb\rc\nd\r\r\n");
    expect("a");
    expect("");
    expect("b\rc"); /* only the one before the newline goes */
    expect("d\r");
    feed_text("e\r");
    ck_assert_int_eq(next(), 0);
    feed_text("\n");
    expect("e");
}
END_TEST

START_TEST(test_zero_bytes_are_counted)
{
    static const char bytes[] = "a\0b\n\0\n";
    start(16);
    feed(bytes, sizeof(bytes) - 1);
    ck_assert_int_eq(next(), 1);
    ck_assert_uint_eq(length, 3);
    ck_assert_mem_eq(line, "a\0b", 4);
    ck_assert_int_eq(next(), 1);
    ck_assert_uint_eq(length, 1);
    ck_assert_mem_eq(line, "\0", 2);
}
END_TEST

/* --- the limit: a line with its newline */

START_TEST(test_limit_in_one_piece)
{
    start(4);
    feed_text("abc\nxyz\n");
    expect("abc");
    expect("xyz");
    feed_text("abcd\n");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "a line of more than 4 bytes");
}
END_TEST

START_TEST(test_limit_does_not_wait_for_the_newline)
{
    /* A peer that never sends one must not fill the memory. */
    start(4);
    feed_text("abcd");
    ck_assert_int_eq(next(), 0); /* exactly as long: a newline cannot come any more, but may not */
    feed_text("e");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
}
END_TEST

START_TEST(test_limit_behind_good_lines)
{
    start(4);
    feed_text("abc\nabcdefgh");
    expect("abc");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    ck_assert_int_eq(error.code, ERR_PROTOCOL);
}
END_TEST

START_TEST(test_limit_counts_the_carriage_return)
{
    start(4);
    feed_text("ab\r\n");
    expect("ab");
    feed_text("abc\r\n");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
}
END_TEST

START_TEST(test_clear_keeps_the_limit)
{
    start(4);
    feed_text("abc");
    line_reader_clear(&reader);
    ck_assert_ptr_null(reader.data);
    feed_text("x\n");
    expect("x"); /* nothing of before is left */
    feed_text("abcde");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    line_reader_clear(&reader);
    line_reader_clear(&reader); /* may be cleared twice */
    ck_assert_int_eq(next(), 0);
}
END_TEST

/* --- one line that may have more */

START_TEST(test_allowed_once)
{
    const char *head;
    start(4);
    feed_text("a\nlist:1,2");
    expect("a");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    ck_assert_uint_eq(line_reader_head(&reader, &head), 8);
    ck_assert_mem_eq(head, "list:1,2", 8);
    line_reader_allow(&reader, 12);
    ck_assert_int_eq(next(), 0);
    feed_text(",3\nb\nlong\n");
    expect("list:1,2,3");
    expect("b"); /* and others as before */
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    ck_assert_int_eq(next(), ERR_PROTOCOL); /* not given out, however often one asks */
}
END_TEST

START_TEST(test_allowed_when_the_newline_is_there)
{
    start(4);
    feed_text("list:1,2\nb\n");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    line_reader_allow(&reader, 9);
    expect("list:1,2");
    expect("b");
    ck_assert_int_eq(next(), 0);
}
END_TEST

START_TEST(test_allowed_is_a_limit_too)
{
    start(4);
    line_reader_allow(&reader, 8);
    feed_text("1234567\n");
    expect("1234567");
    feed_text("12345678");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    line_reader_allow(&reader, 9);
    feed_text("9\n");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "a line of more than 9 bytes");
    line_reader_allow(&reader, 2); /* never less than any line may have */
    feed_text("");
    ck_assert_int_eq(next(), ERR_PROTOCOL);
    ck_assert_str_eq(error.text, "a line of more than 4 bytes");
}
END_TEST

START_TEST(test_trim)
{
    start(64);
    line_reader_trim(&reader); /* nothing is there */
    feed_text("half");
    line_reader_trim(&reader);
    ck_assert_ptr_nonnull(reader.data); /* of a line that has begun all is kept */
    feed_text("\n");
    expect("half");
    line_reader_trim(&reader);
    ck_assert_ptr_null(reader.data);
    ck_assert_uint_eq(reader.line_bytes, 64);
    feed_text("again\n");
    expect("again");
}
END_TEST

/* --- at random: any cut of a stream gives the same lines */

#define RANDOM_LINES 200
#define RANDOM_LINE_BYTES 300

START_TEST(test_random_cuts)
{
    unsigned seed = (unsigned)_i + 1;
    static char stream[RANDOM_LINES * (RANDOM_LINE_BYTES + 1)];
    size_t starts[RANDOM_LINES + 1], bytes = 0, at = 0, fed = 0;
    for (size_t i = 0; i < RANDOM_LINES; i++) {
        starts[i] = bytes;
        size_t count = (size_t)rand_r(&seed) % RANDOM_LINE_BYTES;
        if (rand_r(&seed) % 3 == 0)
            count = 0;
        for (size_t j = 0; j < count; j++)
            stream[bytes++] = (char)('a' + rand_r(&seed) % 26);
        stream[bytes++] = '\n';
    }
    starts[RANDOM_LINES] = bytes;
    start(RANDOM_LINE_BYTES);
    while (fed < bytes) {
        size_t piece = 1 + (size_t)rand_r(&seed) % (_i % 2 ? 5 : 2000);
        if (piece > bytes - fed)
            piece = bytes - fed;
        feed(stream + fed, piece);
        fed += piece;
        /* Sometimes some lines wait for the next piece. */
        while (rand_r(&seed) % 8 != 0 && next() == 1) {
            ck_assert_uint_lt(at, RANDOM_LINES);
            ck_assert_uint_eq(length, starts[at + 1] - starts[at] - 1);
            ck_assert_mem_eq(line, stream + starts[at], length);
            ck_assert_int_eq(line[length], '\0');
            at++;
        }
    }
    while (next() == 1) {
        ck_assert_mem_eq(line, stream + starts[at], length);
        at++;
    }
    ck_assert_uint_eq(at, RANDOM_LINES);
}
END_TEST

START_TEST(test_long_streams_need_little_memory)
{
    start(64);
    for (int i = 0; i < 20000; i++) {
        char text[32];
        snprintf(text, sizeof(text), "line number %d", i);
        feed_text(text);
        ck_assert_int_eq(next(), 0);
        feed_text("\n");
        expect(text);
    }
    ck_assert_uint_le(reader.capacity, 8192);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("line_reader");
    TCase *cases = tcase_create("line_reader");
    tcase_add_checked_fixture(cases, NULL, teardown);
    tcase_add_test(cases, test_nothing_is_no_line);
    tcase_add_test(cases, test_several_in_one_piece);
    tcase_add_test(cases, test_feeding_with_lines_left);
    tcase_add_test(cases, test_carriage_returns);
    tcase_add_test(cases, test_zero_bytes_are_counted);
    tcase_add_test(cases, test_limit_in_one_piece);
    tcase_add_test(cases, test_limit_does_not_wait_for_the_newline);
    tcase_add_test(cases, test_limit_behind_good_lines);
    tcase_add_test(cases, test_limit_counts_the_carriage_return);
    tcase_add_test(cases, test_clear_keeps_the_limit);
    tcase_add_test(cases, test_allowed_once);
    tcase_add_test(cases, test_allowed_when_the_newline_is_there);
    tcase_add_test(cases, test_allowed_is_a_limit_too);
    tcase_add_test(cases, test_trim);
    tcase_add_loop_test(cases, test_random_cuts, 0, 12);
    tcase_add_test(cases, test_long_streams_need_little_memory);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
