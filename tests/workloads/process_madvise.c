/* SPDX-License-Identifier: GPL-2.0-or-later */
/* process_madvise N ADVICE [BYTES]: N process_madvise calls, each on two ranges of BYTES of a child. */
#include "advice.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif

int main(int argc, char **argv)
{
	unsigned long count, length;
	int advice, failed = 0, error = 0, child_pidfd;
	struct iovec ranges[2];
	char *memory;
	pid_t child;

	if (argc < 3)
		usage("process_madvise N ADVICE [BYTES]");
	count = number(argv[1]);
	advice = advice_number(argv[2]);
	length = argc > 3 ? number(argv[3]) : (unsigned long)sysconf(_SC_PAGESIZE);
	begin();
	memory = mmap(NULL, 2 * length, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, 2 * length);
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0)
		for (;;)
			pause();
	child_pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	if (child_pidfd < 0)
		die("pidfd_open");
	ranges[0] = (struct iovec){ memory, length };
	ranges[1] = (struct iovec){ memory + length, length };
	for (unsigned long i = 0; i < count; i++)
		if (syscall(SYS_process_madvise, child_pidfd, ranges, 2, advice, 0) < 0) {
			failed++;
			error = errno;
		}
	step("process_madvise count=%lu child_pid=%d length_bytes=%lu advice=%d failed=%d errno=%s", count, child,
	     2 * length, advice, failed, error_name(error));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
