/* The page of `shoalctl status --watch`: it fits the terminal, whatever is in it, and says what
 * there is. */
#include <stdlib.h>
#include <string.h>

#include "server/shoalctl/shoalctl_screen.h"
#include "tests/lib/suite.h"

#define MANY 200

static json_t *parse(const char *text)
{
    char *quoted = strdup(text);
    for (char *c = quoted; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    json_t *value = json_loads(quoted, 0, NULL);
    ck_assert_ptr_nonnull(value);
    free(quoted);
    return value;
}

/* A daemon with two peers, of which one is down, two jobs and a warning; what has grown grows by
 * `steps` of 2^20 bytes and 100 collectives. */
static json_t *status_make(int steps)
{
    char text[4096];
    snprintf(text, sizeof(text),
             "{'software':'shoald 0.1.0','node':'a','uptime_s':11545.5,'state':'running',"
             "'memory':{'used_bytes':1024,'reserved_bytes':536870912,'limit_bytes':1073741824},"
             "'traffic':{'in_GBps':1.25,'out_GBps':0.5},'slots':9,'workers':{'count':2,'limit':64},"
             "'peers':[{'node':1,'name':'idle','state':'up','bytes_in':7,'bytes_out':7},"
             "{'node':2,'name':'busy','state':'up','bytes_in':%d,'bytes_out':%d},"
             "{'node':3,'name':'gone','state':'down','bytes_in':0,'bytes_out':0,"
             "'last_error':'connection refused'}],"
             "'jobs':[{'name':'train','state':'running','world_size':6,'collectives':%d,'bytes':%d,"
             "'late':[{'group':0,'sequence':17,'ranks':[3,4],'since_ms':5300}]},"
             "{'name':'bad','state':'failed','world_size':2,'error':'rank lost: rank 1'}],"
             "'warnings':[{'time':'T1','level':'warning','text':'first'},"
             "{'time':'T2','level':'error','text':'second'}]}",
             steps << 21, steps << 20, steps * 100, steps << 20);
    return parse(text);
}

static json_t *status_many(void)
{
    json_t *status = status_make(0);
    static const char *const lists[] = {"peers", "jobs", "warnings"};
    for (int k = 0; k < 3; k++) {
        json_t *list = json_object_get(status, lists[k]);
        json_t *one = json_array_get(list, 0);
        for (int i = 0; i < MANY; i++)
            ck_assert_int_eq(json_array_append_new(list, json_deep_copy(one)), 0);
    }
    return status;
}

static char *draw(const struct screen *screen, unsigned columns, unsigned rows, bool color)
{
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    screen_draw(screen, &(struct screen_size){columns, rows, color}, out);
    fclose(out);
    return text;
}

/* Return what a terminal shows of the text: its sequences are those that are meant, and nothing is
 * beyond its edges. The caller frees the lines, with an end of line behind each. */
static char *look(const char *text, unsigned columns, unsigned rows, bool color)
{
    char *shown = calloc(1, strlen(text) + 2);
    size_t used = 0;
    unsigned line = 1, column = 0;
    ck_assert(strncmp(text, "\033[H\033[K", 6) == 0);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '\033') {
            size_t digits = strspn((const char *)c + 2, "0123456789");
            char last = (char)c[2 + digits];
            ck_assert(c[1] == '[' && (digits == 0 ? strchr("HKJ", last) != NULL : last == 'm'));
            ck_assert(color || digits == 0);
            c += 2 + digits;
        } else if (*c == '\r') {
            ck_assert_int_eq(c[1], '\n');
        } else if (*c == '\n') {
            line++;
            column = 0;
            shown[used++] = '\n';
        } else {
            ck_assert_uint_ge(*c, 0x20);
            ck_assert_uint_ne(*c, 0x7f);
            column += (*c & 0xc0) != 0x80;
            shown[used++] = (char)*c;
        }
        ck_assert_uint_le(column, columns);
        ck_assert_uint_le(line, rows);
    }
    shown[used] = '\n';
    return shown;
}

static void has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in:\n%s", part, text);
}

START_TEST(test_page)
{
    struct screen screen = {0};
    screen_take(&screen, status_make(1), 0);
    screen_take(&screen, status_make(3), 2); /* a step a second */
    char *text = draw(&screen, 100, 30, true);
    char *shown = look(text, 100, 30, true);
    has(shown, "shoald 0.1.0  node a  up 3 h 12 min  running");
    has(shown, "memory  [|||||||||||          ] 512 MiB reserved of 1 GiB, 1 KiB used");
    has(shown, "traffic in 1.25 GB/s, out 0.50 GB/s; 2 workers, 9 slots");
    has(shown, "\nJOBS");
    has(shown, "train            running       6 ranks     100.0/s      1 MiB/s  "
               "waits for rank 3-4 since 5.3 s\n");
    has(shown,
        "bad              failed        2 ranks       0.0/s        0 B/s  rank lost: rank 1\n");
    has(shown, "gone             down      connection refused\n");
    has(shown, "busy             in      2 MiB/s [|||||||||||||||||||||] "
               "out      1 MiB/s [||||||||||");
    has(shown, "T1 first\nT2 second\n");
    /* Down first, then by use. */
    ck_assert(strstr(shown, "\ngone ") < strstr(shown, "\nbusy "));
    ck_assert(strstr(shown, "\nbusy ") < strstr(shown, "\nidle "));
    has(text, "\033[31mwaits for rank 3-4"); /* red */
    free(shown);
    free(text);
    screen_clear(&screen);
}
END_TEST

START_TEST(test_sizes)
{
    static const unsigned sizes[][2] = {{200, 60}, {80, 24}, {40, 12}, {20, 6},
                                        {7, 3},    {1, 1},   {1000, 2}};
    struct screen few = {0}, many = {0};
    screen_take(&few, status_make(0), 0);
    screen_take(&many, status_many(), 0);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        unsigned columns = sizes[i][0], rows = sizes[i][1];
        for (int k = 0; k < 4; k++) {
            char *text = draw(k < 2 ? &few : &many, columns, rows, k % 2);
            char *shown = look(text, columns, rows, k % 2);
            bool large = columns >= 80 && rows >= 24;
            if (large && k >= 2) {
                has(shown, " more\n");
                has(shown, "\nLINKS");
                has(shown, "\nWARNINGS");
                has(shown, "gone "); /* of 203 the one that is down */
            }
            free(shown);
            free(text);
        }
    }
    screen_clear(&few);
    screen_clear(&many);
}
END_TEST

/* Names, states and texts of others: none is anything but text. */
START_TEST(test_hostile_names)
{
    static const char hostile[] = "\033]0;owned\a\r\n\033[2J\xc2\x9b"
                                  "31m\x7f<b>&\xc3\xa9";
    json_t *status = status_make(0);
    json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    json_t *peer = json_array_get(json_object_get(status, "peers"), 2);
    json_t *warning = json_array_get(json_object_get(status, "warnings"), 1);
    json_object_set_new(status, "node", json_string(hostile));
    json_object_set_new(status, "state", json_string(hostile));
    json_object_set_new(status, "software", json_string(hostile));
    json_object_set_new(job, "name", json_string(hostile));
    json_object_set_new(job, "state", json_string(hostile));
    json_object_set_new(peer, "name", json_string(hostile));
    json_object_set_new(peer, "last_error", json_string(hostile));
    json_object_set_new(warning, "text", json_string(hostile));
    json_object_set_new(warning, "time", json_string(hostile));
    struct screen screen = {0};
    screen_take(&screen, status, 0);
    char *text = draw(&screen, 120, 30, true);
    char *shown = look(text, 120, 30, true);
    ck_assert_ptr_null(strstr(text, "\xc2\x9b"));
    ck_assert_ptr_null(strstr(text, "\033[2J"));
    has(shown, "\\u001b]0;owned\\u0007\\u000d\\u000a\\u001b[2J\\u009b31m");
    free(shown);
    free(text);
    screen_clear(&screen);
}
END_TEST

/* An empty document, and one that is nonsense. */
START_TEST(test_nonsense)
{
    static const char *const documents[] = {
        "{}", "{'jobs':7,'peers':{},'warnings':'x','memory':[],'uptime_s':-1,'node':7}",
        "{'jobs':[7,null,{}],'peers':[[],{'node':1,'state':1,'bytes_in':-1e300}],'warnings':[1]}"};
    for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
        struct screen screen = {0};
        screen_take(&screen, parse(documents[i]), 0);
        screen_take(&screen, parse(documents[i]), 1);
        char *text = draw(&screen, 80, 24, false);
        free(look(text, 80, 24, false));
        free(text);
        screen_clear(&screen);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl_screen");
    TCase *tests = tcase_create("screen");
    tcase_add_test(tests, test_page);
    tcase_add_test(tests, test_sizes);
    tcase_add_test(tests, test_hostile_names);
    tcase_add_test(tests, test_nonsense);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
