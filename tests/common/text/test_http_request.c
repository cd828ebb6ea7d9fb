#include "common/text/http_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"

/* In memory of exactly its size, so that a sanitizer sees what is read beyond. */
static int parse(struct http_request *request, const char *text, size_t length)
{
    char *copy = malloc(length > 0 ? length : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, length);
    int status = http_request_parse(request, copy, length);
    free(copy);
    return status;
}

START_TEST(requests_taken)
{
    static const struct {
        const char *text, *path;
        bool head;
    } good[] = {
        {"GET /metrics HTTP/1.0\r\n\r\n", "/metrics", false},
        {"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", "/metrics", false},
        {"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "/metrics", true},
        {"GET /metrics HTTP/1.1\nHost: x\n\n", "/metrics", false},
        {"GET /metrics?name[]=a&b HTTP/1.1\r\n\r\n", "/metrics", false},
        {"GET /metrics? HTTP/1.1\r\n\r\n", "/metrics", false},
        {"GET / HTTP/1.1\r\n\r\n", "/", false},
        {"GET /a/b/../c HTTP/1.9\r\n\r\nwhat comes next", "/a/b/../c", false},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct http_request request;
        size_t length = strlen(good[i].text);
        ck_assert_msg(parse(&request, good[i].text, length) == HTTP_STATUS_OK, "%s", good[i].text);
        ck_assert_str_eq(request.path, good[i].path);
        ck_assert(request.head == good[i].head);
    }
}
END_TEST

START_TEST(requests_refused)
{
    static const struct {
        const char *text;
        int status;
    } bad[] = {
        {"\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"\n\n\n", HTTP_STATUS_BAD_REQUEST},
        {"GET\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /metrics\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /metrics HTTP/2.0\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /metrics HTTP/1.\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /metrics HTTP/1.x\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /metrics HTTP/1.10\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /metrics HTTP/1.1 \r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /met\trics HTTP/1.1\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"GET /met\x80rics HTTP/1.1\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"G\x01T /metrics HTTP/1.1\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {" GET /metrics HTTP/1.1\r\n\r\n", HTTP_STATUS_BAD_REQUEST},
        {"{\"type\":\"hello\"}\n\n", HTTP_STATUS_BAD_REQUEST},
        {"\x16\x03\x01\x02\n\n", HTTP_STATUS_BAD_REQUEST},
        {"GET  HTTP/1.1\r\n\r\n", HTTP_STATUS_NOT_FOUND},
        {"GET ?x HTTP/1.1\r\n\r\n", HTTP_STATUS_NOT_FOUND},
        {"GET http://x/metrics HTTP/1.1\r\n\r\n", HTTP_STATUS_NOT_FOUND},
        {"DELETE /metrics HTTP/1.1\r\n\r\n", HTTP_STATUS_NOT_ALLOWED},
        {"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", HTTP_STATUS_NOT_ALLOWED},
        {"get /metrics HTTP/1.1\r\n\r\n", HTTP_STATUS_NOT_ALLOWED},
        {"GETX /metrics HTTP/1.1\r\n\r\n", HTTP_STATUS_NOT_ALLOWED},
        {"GE /metrics HTTP/1.1\r\n\r\n", HTTP_STATUS_NOT_ALLOWED},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct http_request request;
        int status = parse(&request, bad[i].text, strlen(bad[i].text));
        ck_assert_msg(status == bad[i].status, "%s: %d, not %d", bad[i].text, status,
                      bad[i].status);
        ck_assert_int_gt((int)strlen(http_status_text(status)), 0);
    }
}
END_TEST

/* Under which name the server is asked. */
START_TEST(hosts_taken)
{
    static const struct {
        const char *headers, *host; /* NULL: refused */
    } hosts[] = {
        {"", ""},
        {"X-Host: a\r\nHosts: b\r\n Host: c\r\n", ""},
        {"Host: x\r\n", "x"},
        {"Accept: */*\r\nhOST:\t n0.example:80 \t\r\n", "n0.example"},
        {"Host: 127.0.0.1:7071\n", "127.0.0.1"},
        {"Host: [::1]:7071\r\n", "::1"},
        {"Host: [fe80::1]\r\n", "fe80::1"},
        {"Host: [::1\r\n", NULL},
        {"Host: [::1].example\r\n", NULL},
        {"Host: []:1\r\n", NULL},
        {"Host:\r\n", NULL},
        {"Host: :80\r\n", NULL},
        {"Host: a b\r\n", NULL},
        {"Host: a\x01\r\n", NULL},
        {"Host: \xc3\xa4\r\n", NULL},
        {"Host: a\r\nHost: a\r\n", NULL},
    };
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        struct http_request request;
        char text[256];
        int length = snprintf(text, sizeof(text), "GET / HTTP/1.1\r\n%s\r\n", hosts[i].headers);
        int status = parse(&request, text, (size_t)length);
        ck_assert_msg(status == (hosts[i].host ? HTTP_STATUS_OK : HTTP_STATUS_BAD_REQUEST), "%s",
                      text);
        if (hosts[i].host)
            ck_assert_str_eq(request.host, hosts[i].host);
    }
}
END_TEST

START_TEST(host_of_the_limit)
{
    for (size_t bytes = HTTP_HOST_BYTES - 1; bytes <= HTTP_HOST_BYTES; bytes++) {
        struct http_request request;
        char text[2 * HTTP_HOST_BYTES] = "GET / HTTP/1.1\r\nHost: ";
        size_t length = strlen(text);
        memset(text + length, 'a', bytes);
        memcpy(text + length + bytes, "\r\n\r\n", 4);
        ck_assert_int_eq(parse(&request, text, length + bytes + 4),
                         bytes < HTTP_HOST_BYTES ? HTTP_STATUS_OK : HTTP_STATUS_BAD_REQUEST);
    }
}
END_TEST

START_TEST(hosts_of_nobody_else)
{
    static const char *const local[] = {"localhost", "n0", "127.0.0.1", "10.1.2.3", "::1"};
    static const char *const others[] = {"evil.example", "localhost.evil.example",
                                         "localhost.",   "127.0.0.1.evil.example",
                                         "0x7f.1",       "1.2.3.4.5",
                                         "a:b"};
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        ck_assert_msg(http_host_is_local(local[i]), "%s", local[i]);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        ck_assert_msg(!http_host_is_local(others[i]), "%s", others[i]);
}
END_TEST

/* However it is cut, it is not taken before it is whole. */
START_TEST(cut_anywhere)
{
    static const char text[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";
    struct http_request request;
    for (size_t length = 0; length < sizeof(text) - 1; length++)
        ck_assert_int_eq(parse(&request, text, length), 0);
    ck_assert_int_eq(parse(&request, text, sizeof(text) - 1), HTTP_STATUS_OK);
}
END_TEST

START_TEST(limits)
{
    static char text[3 * HTTP_REQUEST_BYTES];
    struct http_request request;
    memset(text, 'a', sizeof(text));
    ck_assert_int_eq(parse(&request, text, HTTP_REQUEST_BYTES - 1), 0);
    ck_assert_int_eq(parse(&request, text, HTTP_REQUEST_BYTES), HTTP_STATUS_TOO_LARGE);
    ck_assert_int_eq(parse(&request, text, sizeof(text)), HTTP_STATUS_TOO_LARGE);
    /* The end stands beyond the limit, however much is there already. */
    memcpy(text, "GET /metrics HTTP/1.1\r\nx: ", 26);
    memcpy(text + HTTP_REQUEST_BYTES, "\r\n\r\n", 4);
    ck_assert_int_eq(parse(&request, text, sizeof(text)), HTTP_STATUS_TOO_LARGE);
    memcpy(text + HTTP_REQUEST_BYTES - 4, "\r\n\r\n", 4);
    ck_assert_int_eq(parse(&request, text, sizeof(text)), HTTP_STATUS_OK);
    /* A path that no document has. */
    memset(text, 'a', sizeof(text));
    memcpy(text, "GET /", 5);
    memcpy(text + 4 + HTTP_PATH_BYTES - 1, " HTTP/1.1\n\n", 11);
    ck_assert_int_eq(parse(&request, text, 512), HTTP_STATUS_OK);
    ck_assert_uint_eq(strlen(request.path), HTTP_PATH_BYTES - 1);
    memset(text, 'a', sizeof(text));
    memcpy(text, "GET /", 5);
    memcpy(text + 4 + HTTP_PATH_BYTES, " HTTP/1.1\n\n", 11);
    ck_assert_int_eq(parse(&request, text, 512), HTTP_STATUS_NOT_FOUND);
}
END_TEST

/* No byte, wherever it stands, makes of it more than a known status. */
START_TEST(any_byte_anywhere)
{
    static const char text[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    for (size_t at = 0; at < sizeof(text) - 1; at++) {
        for (int byte = 0; byte < 256; byte++) {
            char copy[sizeof(text)];
            struct http_request request;
            memcpy(copy, text, sizeof(text));
            copy[at] = (char)byte;
            int status = parse(&request, copy, sizeof(text) - 1);
            ck_assert(status == 0 || status == HTTP_STATUS_OK ||
                      status == HTTP_STATUS_BAD_REQUEST || status == HTTP_STATUS_NOT_FOUND ||
                      status == HTTP_STATUS_NOT_ALLOWED);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_request");
    TCase *tests = tcase_create("http_request");
    tcase_add_test(tests, requests_taken);
    tcase_add_test(tests, requests_refused);
    tcase_add_test(tests, hosts_taken);
    tcase_add_test(tests, host_of_the_limit);
    tcase_add_test(tests, hosts_of_nobody_else);
    tcase_add_test(tests, cut_anywhere);
    tcase_add_test(tests, limits);
    tcase_add_test(tests, any_byte_anywhere);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
