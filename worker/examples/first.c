/* A first use of shoal: every rank gives four numbers and gets the sums over all ranks. */
#include <shoal.h>
#include <stdio.h>

int main(void)
{
    shoal_job *job;
    if (shoal_open(NULL, &job) != SHOAL_OK) {
        fprintf(stderr, "no job: %s\n", shoal_error_text());
        return 1;
    }
    int rank = shoal_rank(job), size = shoal_world_size(job);
    float gradient[4] = {1, 10, 100, rank};
    shoal_request *request;
    int result =
        shoal_all_reduce(shoal_world(job), gradient, gradient, 4, SHOAL_F32, SHOAL_SUM, &request);
    if (result == SHOAL_OK) /* compute something else meanwhile, then: */
        result = shoal_wait(request, -1);
    if (result == SHOAL_OK)
        printf("rank %d of %d: %g %g %g %g\n", rank, size, gradient[0], gradient[1], gradient[2],
               gradient[3]);
    else
        fprintf(stderr, "rank %d: %s\n", rank, shoal_error_text());
    shoal_close(job);
    return result == SHOAL_OK ? 0 : 1;
}
