#include <stdlib.h>
#include <string.h>

#include "server/shoalctl/shoalctl_print.h"
#include "tests/lib/suite.h"

static const char status_text[] =
    "{'type':'status','software':'shoald 0.1.0','node':'a','pid':4711,'uptime_s':11545,"
    "'state':'serving','provider':{'name':'tcp','endpoint':'connected','version':'libfabric 1.17',"
    "'address':'127.0.0.1'},'instruction_set':'avx2','topology':'1 package, 2 cores',"
    "'peers':[{'node':1,'name':'b','address':'10.0.0.2:7070','weight':2,'state':'up',"
    "'fabric':'up','sealed':true,'bytes_in':1048576,'bytes_out':0,'last_error':'','silent_ms':12},"
    "{'node':2,'name':'a-longer-name','address':'10.0.0.3:7070','weight':1,'state':'connecting',"
    "'fabric':'down','bytes_in':0,'bytes_out':0,'last_error':'connection refused'}],"
    "'jobs':[{'name':'train','job_id':'89ab','state':'running','generation':7,'world_size':6,'uid':"
    "1000,"
    "'ranks_present':[0,1,2,5],'ranks_missing':[3,4],'local_ranks':[{'rank':0,'pid':77},"
    "{'rank':1,'pid':78}],'groups':2,'bytes':3221225472,'collectives':512,'slots':9,"
    "'slowest_rank':5,'late':[{'group':0,'sequence':17,'ranks':[3,4],'since_ms':5300}]}],"
    "'traffic':{'bytes_in':1048576,'bytes_out':2097152,'bytes_reduced':0,'collectives':512,"
    "'dropped_messages':3,'in_GBps':1.25,'out_GBps':0.5},'memory':{'used_bytes':1024,"
    "'allocated_bytes':2048,'reserved_bytes':4096,'limit_bytes':1073741824},'slots':9,"
    "'workers':{'count':2,'limit':64},'users':[{'uid':1000,'memory_bytes':134217728,'left_bytes':0,"
    "'output_bytes':2048,'descriptors':3}]}";

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

static char *print(void (*function)(FILE *out, const json_t *status), const char *text)
{
    char *printed = NULL;
    size_t bytes;
    FILE *out = open_memstream(&printed, &bytes);
    json_t *status = parse(text);
    function(out, status);
    json_decref(status);
    fclose(out);
    return printed;
}

static void has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in:\n%s", part, text);
}

START_TEST(test_status)
{
    char *text = print(shoalctl_print_status, status_text);
    has(text, "shoald 0.1.0, node a, pid 4711, up 3 h 12 min, serving\n");
    has(text, "tcp, connected, libfabric 1.17, address 127.0.0.1\n");
    has(text, "avx2, 1 package, 2 cores\n");
    has(text, "in 1 MiB (1.25 GB/s), out 2 MiB (0.50 GB/s), 3 messages dropped\n");
    has(text, "1 KiB used, 2 KiB allocated, 4 KiB reserved, limit 1 GiB\n");
    has(text, "slots        9 in progress\n");
    has(text, "workers      2, limit 64\n");
    has(text, "connection refused\n");
    has(text, "up      yes  ");
    has(text, "job train waits for rank 3-4 since 5.3 s (group 0, collective 17)\n");
    has(text, "job train has here, rank:pid: 0:77 1:78\n");
    has(text, "\nUSER   MEMORY  LEFT  OUTPUT  DESCRIPTORS\n1000  128 MiB");
    free(text);
}
END_TEST

START_TEST(the_page_is_told)
{
    char *text = print(shoalctl_print_status, "{'page':'http://127.0.0.1:7071/'}");
    has(text, "\npage         http://127.0.0.1:7071/\n");
    free(text);
    text = print(shoalctl_print_status, "{'page':null}");
    ck_assert_ptr_null(strstr(text, "page"));
    free(text);
}
END_TEST

START_TEST(a_link_says_what_it_can_carry)
{
    char *text =
        print(shoalctl_print_status, "{'traffic':{'bytes_in':0,'bytes_out':0,'in_GBps':0.5,"
                                     "'out_GBps':0.25,'link_mbits':10000,'dropped_messages':0}}");
    has(text, "out 0 B (0.25 GB/s), of 1.25 GB/s each way, 0 messages dropped\n");
    free(text);
}
END_TEST

/* Return in which column of its line a word begins. */
static long column(const char *text, const char *word)
{
    const char *found = strstr(text, word), *start = found;
    ck_assert_ptr_nonnull(found);
    while (start > text && start[-1] != '\n')
        start--;
    return found - start;
}

START_TEST(test_columns_are_aligned)
{
    char *text = print(shoalctl_print_status, status_text);
    ck_assert_int_eq(column(text, "ADDRESS"), column(text, "10.0.0.2"));
    ck_assert_int_eq(column(text, "ADDRESS"), column(text, "10.0.0.3"));
    ck_assert_int_eq(column(text, "STATE"), column(text, "connecting"));
    ck_assert_int_eq(column(text, "LAST ERROR"), column(text, "connection refused"));
    ck_assert_int_eq(column(text, "PRESENT"), column(text, "0-2,5"));
    ck_assert_int_eq(column(text, "MISSING"), column(text, "3-4"));
    ck_assert_int_eq(column(text, "GEN") + 2, column(text, "7  ")); /* ends where its title does */
    /* Figures end where their titles end. */
    ck_assert_int_eq(column(text, "BYTES") + 5, column(text, "3 GiB") + 5);
    free(text);
}
END_TEST

START_TEST(test_jobs)
{
    char *text = print(shoalctl_print_jobs, status_text);
    has(text, "JOB    STATE");
    has(text, "train  running");
    ck_assert_ptr_null(strstr(text, "PEER"));
    free(text);
    text = print(shoalctl_print_jobs, "{'jobs':[]}");
    ck_assert_str_eq(text, "no jobs\n");
    free(text);
    text = print(shoalctl_print_jobs,
                 "{'jobs':[],'ended':[{'name':'a','state':'completed','ran_s':190.5,'ended_ms':"
                 "7400,'error':null},{'name':'b','state':'failed','ran_s':5,'ended_ms':65000,"
                 "'error':'rank 1 is gone'}]}");
    ck_assert_str_eq(text, "no jobs\n"
                           "job a ended 7 s ago: completed after 3 min\n"
                           "job b ended 65 s ago: failed after 5 s: rank 1 is gone\n");
    free(text);
}
END_TEST

START_TEST(test_recoveries)
{
    char *text = print(shoalctl_print_jobs, status_text);
    ck_assert_ptr_null(strstr(text, "gone"));
    free(text);
    text = print(
        shoalctl_print_jobs,
        "{'jobs':[{'name':'train','state':'waiting','generation':2,'lost':{'since_ms':3210,"
        "'ranks':[2,3],'nodes':['b','c'],'away':[3,4],'awaited':[1],'least_ranks':8},'recovered':{'"
        "connection':{'times':"
        "2,'last_ms':120,'total_ms':300},'server':{'times':0,'last_ms':0,'total_ms':0},"
        "'generation':{'times':1,'last_ms':80,'total_ms':80}}}]}");
    has(text, "job train has failed 3.2 s ago and may go on; gone: rank 2-3, node b, c; until its "
              "daemon is started "
              "again: rank 3-4; waits for "
              "rank 1; waits for newcomers until it has 8 ranks\n");
    has(text, "job train has recovered: connection 2 times (last 0.120 s, together 0.300 s), "
              "generation 1 time (last 0.080 s, together 0.080 s)\n");
    free(text);
    text =
        print(shoalctl_print_jobs, "{'jobs':[{'name':'train','lost':{'ranks':[0],'awaited':null},"
                                   "'recovered':[1]}]}");
    has(text, "gone: rank 0\n");
    free(text);
}
END_TEST

START_TEST(test_missing_and_odd_keys)
{
    static const char *const odd[] = {
        "{}",
        "{'peers':7,'jobs':'x','provider':[],'traffic':null,'memory':1,'workers':[]}",
        "{'peers':[1,null,{}],'jobs':[{},2,{'late':[{}],'local_ranks':[3]}]}",
        "{'uptime_s':-5,'pid':1.5,'memory':{'used_bytes':-1}}",
    };
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        char *text = print(shoalctl_print_status, odd[i]);
        has(text, "node ");
        has(text, "-");
        free(text);
    }
}
END_TEST

static void ranks(const char *list, size_t room, const char *expected)
{
    char text[64];
    json_t *value = list ? parse(list) : NULL;
    shoalctl_format_ranks(value, text, room);
    ck_assert_str_eq(text, expected);
    json_decref(value);
}

START_TEST(test_format_ranks)
{
    ranks(NULL, 64, "-");
    ranks("[]", 64, "-");
    ranks("[0]", 64, "0");
    ranks("[0,1]", 64, "0-1");
    ranks("[0,1,2,3,7,9,10]", 64, "0-3,7,9-10");
    ranks("[5,4,3]", 64, "5,4,3");
    ranks("[1,3,5,7,9,11,13,15]", 8, "1,3,...");
    char text[16];
    json_t *number = json_integer(12);
    shoalctl_format_ranks(number, text, sizeof(text));
    ck_assert_str_eq(text, "12");
    json_decref(number);
}
END_TEST

START_TEST(test_format_duration)
{
    static const struct {
        uint64_t seconds;
        const char *text;
    } cases[] = {{0, "0 s"},          {119, "119 s"},         {120, "2 min"},    {3599, "59 min"},
                 {3600, "1 h 0 min"}, {86399, "23 h 59 min"}, {93600, "1 d 2 h"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64];
        shoalctl_format_duration(cases[i].seconds, text, sizeof(text));
        ck_assert_str_eq(text, cases[i].text);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl_print");
    TCase *tests = tcase_create("print");
    tcase_add_test(tests, test_status);
    tcase_add_test(tests, the_page_is_told);
    tcase_add_test(tests, a_link_says_what_it_can_carry);
    tcase_add_test(tests, test_columns_are_aligned);
    tcase_add_test(tests, test_jobs);
    tcase_add_test(tests, test_recoveries);
    tcase_add_test(tests, test_missing_and_odd_keys);
    tcase_add_test(tests, test_format_ranks);
    tcase_add_test(tests, test_format_duration);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
