/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * fork_exec FORKS THREADS CALLS: FORKS children execute this program again; each starts THREADS threads,
 * and each of these makes CALLS madvise calls. FORKS * THREADS * CALLS calls in all, none by the parent.
 */
#include "workload.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

static unsigned long calls;

static void *advise(void *unused)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);

	(void)unused;
	for (unsigned long i = 0; i < calls; i++)
		if (madvise(memory, page, MADV_DONTNEED))
			die("madvise");
	return NULL;
}

static void run_threads(unsigned long threads)
{
	pthread_t *thread = calloc(threads, sizeof(*thread));

	if (!thread)
		die("calloc");
	for (unsigned long i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, advise, NULL))
			die("pthread_create");
	for (unsigned long i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	step("child pid=%d threads=%lu calls=%lu", getpid(), threads, calls);
}

int main(int argc, char **argv)
{
	unsigned long forks, failed = 0;

	if (argc < 4)
		usage("fork_exec FORKS THREADS CALLS");
	forks = number(argv[1]);
	calls = number(argv[3]);
	if (argc > 4) {
		run_threads(number(argv[2]));
		return 0;
	}
	begin();
	for (unsigned long i = 0; i < forks; i++) {
		pid_t child = fork();

		if (child < 0)
			die("fork");
		if (child == 0) {
			execl(argv[0], argv[0], argv[1], argv[2], argv[3], "child", NULL);
			die(argv[0]);
		}
	}
	for (unsigned long i = 0; i < forks; i++) {
		int status;

		if (wait(&status) < 0)
			die("wait");
		failed += status != 0;
	}
	step("fork_exec forks=%lu calls=%lu failed=%lu", forks, forks * number(argv[2]) * calls, failed);
	return failed != 0;
}
