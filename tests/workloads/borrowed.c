/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * borrowed THREADS BYTES: threads that compute with integers, vectors and the
 * red zone until standard input ends, and compare each round with the first: a
 * register, a flag or a byte of the stack that somebody changed makes a round
 * differ. Counts its SIGRTMIN, of which none is ever merged with another.
 * Its memory is of small pages, and may be of huge ones from then on.
 * Prints `memory address=...` first, `rounds count=... wrong=... signals=...` at the end.
 */
#include "workload.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static atomic_bool done;
static atomic_ulong rounds, wrong, handled;

/* A leaf without calls: the compiler keeps much of it in the red zone and in registers. */
__attribute__((noinline)) static uint64_t compute(uint64_t seed)
{
	uint64_t table[12], value = seed;
	double sum = 1.0;

	for (int i = 0; i < 12; i++)
		table[i] = value = value * 6364136223846793005UL + 1442695040888963407UL;
	for (int i = 0; i < 40000; i++) {
		value ^= table[i % 12] + (value << 7) + (value >> 9);
		table[(i + 5) % 12] = value;
		sum = sum * 1.0000001 + (double)(value & 0xff) / 3.0;
	}
	return value ^ (uint64_t)sum;
}

static void handle(int number)
{
	(void)number;
	atomic_fetch_add(&handled, 1);
}

static void *work(void *seed)
{
	uint64_t expected = compute((uint64_t)seed);
	sigset_t first, now;

	pthread_sigmask(SIG_SETMASK, NULL, &first);
	for (unsigned long round = 1; !atomic_load(&done); round++) {
		pthread_sigmask(SIG_SETMASK, NULL, &now);
		if (compute((uint64_t)seed) != expected || memcmp(&first, &now, sizeof(now)))
			atomic_fetch_add(&wrong, 1);
		atomic_fetch_add(&rounds, 1);
		if (round % 4 == 0) /* many threads on few processors: a borrowed one shall get its turn soon */
			sched_yield();
	}
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned long count, length, page = (unsigned long)sysconf(_SC_PAGESIZE);
	pthread_t threads[64];
	char *memory, byte;

	if (argc != 3)
		usage("borrowed THREADS BYTES");
	count = number(argv[1]);
	length = number(argv[2]);
	if (count > 64)
		usage("at most 64 threads");
	if (sigaction(SIGRTMIN, &(struct sigaction){.sa_handler = handle, .sa_flags = SA_RESTART}, NULL))
		die("sigaction");
	/* between pages without access: else, before Linux 6.7, it is one mapping with the stack of the first thread */
	memory = mmap(NULL, length + 2 * page, PROT_NONE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memory += page;
	if (mprotect(memory, length, PROT_READ | PROT_WRITE))
		die("mprotect");
	/* small pages also where transparent_hugepage/enabled is `always`: what makes huge ones of them shows */
	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
		die("prctl");
	memset(memory, 1, length);
	if (prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0))
		die("prctl");
	for (unsigned long i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)))
			die("pthread_create");
	step("memory address=%lu", (unsigned long)memory);
	while (read(STDIN_FILENO, &byte, 1) < 0) /* its end is the sign to stop; a stop must not end it */
		step("read errno=%s", error_name(errno));
	atomic_store(&done, true);
	for (unsigned long i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	step("rounds count=%lu wrong=%lu signals=%lu", atomic_load(&rounds), atomic_load(&wrong), atomic_load(&handled));
	return 0;
}
