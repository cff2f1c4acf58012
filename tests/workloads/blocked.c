/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * blocked CALL: one thread in one blocking system call that lasts a second, or
 * for read until a byte comes. Prints `returned result=... errno=...
 * elapsed_ms=...`.
 */
#include "workload.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

static ucontext_t inside, outside;

static void read_a_byte(void)
{
	char byte;

	if (read(STDIN_FILENO, &byte, 1) < 0)
		die("read");
}

static long blocking_call(const char *name)
{
	struct timespec second = {1, 0}, rest;
	struct epoll_event event;
	uint32_t word = 0;
	int pipes[2];
	char byte;

	if (pipe(pipes))
		die("pipe");
	if (!strcmp(name, "read"))
		return read(STDIN_FILENO, &byte, 1);
	if (!strcmp(name, "nanosleep"))
		return nanosleep(&second, &rest);
	if (!strcmp(name, "futex"))
		return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &second, NULL, 0);
	if (!strcmp(name, "poll"))
		return poll(&(struct pollfd){.fd = pipes[0], .events = POLLIN}, 1, 1000);
	if (!strcmp(name, "ppoll"))
		return ppoll(&(struct pollfd){.fd = pipes[0], .events = POLLIN}, 1, &second, &(sigset_t){0});
	if (!strcmp(name, "epoll"))
		return epoll_wait(epoll_create1(0), &event, 1, 1000);
	if (!strcmp(name, "coroutine")) { /* a read on a stack that is a piece of the heap, as goroutines have */
		getcontext(&inside);
		inside.uc_stack.ss_sp = malloc(65536);
		inside.uc_stack.ss_size = 65536;
		inside.uc_link = &outside;
		makecontext(&inside, read_a_byte, 0);
		swapcontext(&outside, &inside);
		return 1;
	}
	usage("blocked read|coroutine|nanosleep|futex|poll|ppoll|epoll");
	return 0;
}

int main(int argc, char **argv)
{
	struct timespec before, after;
	char *memory;
	long result;
	int error;

	if (argc != 2)
		usage("blocked CALL");
	memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, MIB);
	step("memory address=%lu", (unsigned long)memory);
	clock_gettime(CLOCK_MONOTONIC, &before);
	result = blocking_call(argv[1]);
	error = result < 0 ? errno : 0;
	clock_gettime(CLOCK_MONOTONIC, &after);
	step("returned result=%ld errno=%s elapsed_ms=%ld", result, error_name(error),
	     (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000);
	return 0;
}
